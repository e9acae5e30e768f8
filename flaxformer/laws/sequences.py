"""Laws about what an output may depend on: later tokens, padding, and other sequences of the batch."""

import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from flaxformer.laws.embedded import embedded_config
from flaxformer.laws.inputs import NO_MASKS, arguments_of, cut
from flaxformer.laws.law import (
    Finding,
    compared,
    compared_trees,
    difference,
    first_violated,
    law,
    not_applicable,
    violated,
)
from flaxformer.laws.subject import Subject, random_key
from flaxformer.laws.where import located
from flaxformer.tasks.base import Batch

POSITIONS = 24
"""Most places of a long sequence after which the tokens are changed."""
EXTRA = 3
"""Tokens of padding that are added."""
LONGER = 5
"""Tokens that are added to a sequence of the task's length."""


@law("causality", "no output depends on later tokens, in value or in gradient, at any length, also in training")
def causality(subject: Subject) -> Finding:
    """Change everything after each token, take gradients by later tokens, and cut the sequence."""
    if subject.why_not_causal is not None:
        return not_applicable(subject.why_not_causal)
    return first_violated(_causality(subject))


def _causality(subject: Subject) -> Iterator[Finding]:
    batch, length = subject.batch, subject.batch.inputs.shape[1]
    yield from _later_changes(subject, batch, range(length - 1), {"prefix": None})
    yield from _later_gradients(subject)
    if not subject.mixes_batch:
        places = sorted({0, length // 2, length - 2} - {-1})
        yield from _later_changes(subject, batch, places, {"prefix": None, "key": random_key()})
    yield from _lengths(subject)


def _later_changes(subject: Subject, batch: Batch, places: Iterable[int], given: Any) -> Iterator[Finding]:
    """Change the tokens after each place, and compare the outputs up to it."""
    inputs, other = batch.inputs, subject.other_inputs(batch=batch)
    when = "in training, " if "key" in given else ""
    expected = np.asarray(subject.output(inputs, **given))
    for last in places:
        up_to_last = operator.itemgetter((slice(None), slice(last + 1)))
        changed = np.concatenate([inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
        gap = difference(up_to_last(expected), up_to_last(np.asarray(subject.output(changed, **given))))
        if gap > subject.tolerance:
            found = violated(f"{when}the outputs up to token {last} change by {gap:.2g} when later tokens do")
            one, two = ({"inputs": tokens} | given for tokens in (inputs, changed))
            yield located(found, subject, one, two, up_to_last)


def _later_gradients(subject: Subject) -> Iterator[Finding]:
    """Take the gradient of the outputs up to each token by the embeddings after it."""
    rows, length = subject.vectors.shape[:2]
    valid = np.ones((rows, length), bool)
    given = {name: value for name, value in subject.given.items() if name not in ("valid", "prefix")}
    for last in range(length - 1):
        counted = np.broadcast_to(np.arange(length) <= last, valid.shape)
        gradient = np.asarray(subject.probe(subject.vectors, valid, counted, **given)[1])[:, last + 1 :]
        size = float(np.abs(gradient).max()) if np.all(np.isfinite(gradient)) else float("inf")
        if size > 1e-12:
            yield violated(f"the outputs up to token {last} have a gradient of {size:.2g} by later tokens")


def _lengths(subject: Subject) -> Iterator[Finding]:
    """Compare the outputs at several lengths: a longer sequence has the outputs of its beginning."""
    batch, limit = subject.long_batch, subject.config.max_length
    given = arguments_of(batch) | {"prefix": None}
    length, short = batch.inputs.shape[1], subject.batch.inputs.shape[1]
    if length > short:
        places = np.unique(np.linspace(0, length - 2, POSITIONS).astype(int))
        yield from _later_changes(subject, batch, places, given)
    expected = np.asarray(subject.output(batch.inputs, **given))
    for end in sorted({1, short if short < length else max(1, length // 2)} - {length}):
        part = cut(batch, end)
        found = subject.output(part.inputs, **arguments_of(part) | {"prefix": None})
        what = f"outputs of the first {end} of {length} tokens alone and within the sequence"
        yield compared(expected[:, :end], found, what, subject.tolerance)
    if not {"positions", "mask"} & given.keys() and (limit is None or length + LONGER <= limit):
        further = np.repeat(subject.other_inputs(batch=batch)[:, :1], LONGER, axis=1)
        valid = None if batch.valid is None else np.pad(batch.valid, ((0, 0), (0, LONGER)), constant_values=True)
        found = subject.output(np.concatenate([batch.inputs, further], axis=1), **given | {"valid": valid})
        what = f"outputs of {length} tokens, the task's length, and of the same followed by {LONGER} more"
        yield compared(expected, found[:, :length], what, subject.tolerance)


@law("padding", "padding changes no output and no gradient, on either side and between, even where it is NaN")
def padding(subject: Subject) -> Finding:
    """Add padding with arbitrary contents to the embedded inputs and to the source."""
    limit = subject.config.max_length
    length = subject.vectors.shape[1]
    length = length if limit is None else min(length, limit - EXTRA)
    if length < 3:
        return not_applicable(f"the model reads at most {limit} tokens")
    return first_violated(itertools.chain(_padding(subject, length), _source_padding(subject)))


def _padding(subject: Subject, length: int) -> Iterator[Finding]:
    given = subject.source | {"prefix": subject.given.get("prefix")}
    x = subject.vectors[:, :length]
    rows, wide, each = len(x), length + EXTRA, subject.answers_each_token
    every = np.ones((rows, length), bool)
    allowed = subject.tolerance

    def probe(vectors: Any, valid: Any, fill: float) -> tuple[np.ndarray, np.ndarray, Any]:
        counted = valid if each else valid.any(-1)
        return jax.device_get(subject.probe(vectors, valid, counted, fill, **given))

    def compare(one: Any, two: Any, masks: Any, what: str, with_gradient: bool = True) -> Iterator[Finding]:
        """Compare the outputs for real tokens, the gradients by them, and those by the weights."""
        per_row = [mask if each else mask.any(-1) for mask in masks]
        outputs, by_tokens = ((one[i][own[0]], two[i][own[1]]) for i, own in enumerate((per_row, masks)))
        yield compared(*outputs, f"outputs {what}", allowed)
        if with_gradient:
            yield compared(*by_tokens, f"gradients by real tokens {what}", allowed)
            yield compared_trees(one[2], two[2], f"gradients {what},", allowed)

    behind = np.pad(every, ((0, 0), (0, EXTRA)))
    alone, longer = probe(x, every, 0.0), np.concatenate([x, 0 * x[:, :1].repeat(EXTRA, axis=1)], axis=1)
    what = f"without padding and with {EXTRA} tokens behind"
    yield from compare(alone, probe(longer, behind, 3.0), (every, behind), what)
    rotten = np.where(behind[..., None], longer, np.nan)
    yield from compare(alone, probe(rotten, behind, 0.0), (every, behind), f"{what}, whose embeddings are NaN,")
    found = probe(longer, behind, np.nan)
    yield from compare(alone, found, (every, behind), f"{what}, which are NaN in every layer,", False)
    full = np.concatenate([x[:, :1].repeat(EXTRA, axis=1), x], axis=1)
    before = np.broadcast_to(np.arange(wide) >= EXTRA, behind.shape).copy()
    between, nothing = np.ones_like(before), before.copy()
    between[0, 1:3] = between[-1, wide // 2] = nothing[-1] = False
    places = {"before the tokens": before, "between tokens": between, "in all of a sequence": nothing}
    for where, valid in places.items():
        one = probe(full, valid, 0.0)
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((one[1][valid], one[2]))):
            yield violated(f"gradients with padding {where} are not finite")
        if not np.all(np.isfinite(one[0])):
            yield violated(f"outputs with padding {where} are not finite")
        yield from compare(one, probe(full, valid, 3.0), (valid, valid), f"with other contents of padding {where}")
        yield from compare(one, probe(full, valid, np.nan), (valid, valid), f"with NaN in padding {where}", False)
    # In training, random draws depend on the shape: the length stays, the contents change.
    call = NO_MASKS | {"key": random_key(), "valid": between} | given
    configs = [embedded_config(subject.config, fill) for fill in (0.0, 3.0, np.nan)]
    first, *others = (np.asarray(subject.output(full, config=config, **call)) for config in configs)
    own = between if each else between.any(-1)
    for other in others:
        yield compared(first[own], other[own], "outputs in training with different contents of padding", allowed)


def _source_padding(subject: Subject) -> Iterator[Finding]:
    """The same for what the encoder reads."""
    if "source" not in subject.source:
        return
    source = subject.source["source"]
    own = subject.source.get("source_valid")
    own = np.ones(source.shape[:2], bool) if own is None else own
    encoder = subject.config.encoder
    if encoder is None or (encoder.max_length is not None and source.shape[1] + EXTRA > encoder.max_length):
        return
    expected = np.asarray(subject.output(source_valid=own))
    for fill in (source[:, :EXTRA], source[:, -EXTRA:] * 0):
        wide = np.concatenate([source, fill], axis=1)
        found = subject.output(source=wide, source_valid=np.pad(own, ((0, 0), (0, fill.shape[1]))))
        what = "outputs with padding behind the source and without"
        yield compared(expected, found, what, subject.tolerance)


@law("batch", "the sequences of a batch do not influence each other")
def batch(subject: Subject) -> Finding:
    """Change one sequence, also to NaN, or leave it out; the outputs for the others stay."""
    if len(subject.batch.inputs) < 2:
        return not_applicable("the batch has one sequence")
    return first_violated(_batch(subject))


def _batch(subject: Subject) -> Iterator[Finding]:
    inputs, other, allowed = subject.batch.inputs, subject.other_inputs(3), subject.tolerance
    changed = np.concatenate([inputs[:1], other[1:]])
    expected = np.asarray(subject.output())[:1]
    found = compared(expected, subject.output(changed)[:1], "outputs of a sequence beside different others", allowed)
    yield located(found, subject, {}, {"inputs": changed}, lambda x: x[:1])
    own = {name: jax.tree.map(lambda x: x[:1], value) for name, value in subject.given.items()}
    alone = subject.output(inputs[:1], **own)
    yield compared(expected, alone, "outputs of a sequence in a batch and alone", allowed)
    rotten = subject.vectors.copy()
    rotten[1:] = np.nan
    one, two = (subject.output(x, config=subject.embedded_config)[:1] for x in (subject.vectors, rotten))
    yield compared(one, two, "outputs of a sequence beside another and beside NaN", allowed)
    if subject.mixes_batch:
        return
    one, two = (subject.output(x, key=random_key())[:1] for x in (inputs, changed))
    found = compared(one, two, "outputs, in training, of a sequence beside different others", allowed)
    yield located(found, subject, {"key": random_key()}, {"inputs": changed, "key": random_key()}, lambda x: x[:1])
