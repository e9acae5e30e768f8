"""Laws of dependence on later tokens, padding, and other sequences of the batch."""

import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, PyTree

from flaxformer.laws.calls import random_key
from flaxformer.laws.embedded import embedded_config
from flaxformer.laws.inputs import NO_MASKS, Arguments, arguments_of, cut
from flaxformer.laws.law import (
    Finding,
    compare,
    compare_trees,
    difference,
    first_violated,
    law,
    not_applicable,
    violated,
)
from flaxformer.laws.subject import Subject
from flaxformer.laws.where import locate
from flaxformer.tasks.base import Batch

POSITIONS = 24
"""Largest number of places in a long sequence after which the tokens are changed."""
EXTRA = 3
"""Number of padding tokens that are added."""
LONGER = 5
"""Number of tokens that are added to a sequence of the task's length."""


@law("causality", "no output depends on later tokens, in value or in gradient, at any length, also in training")
def causality(subject: Subject) -> Finding:
    """Change all tokens after each token, take gradients by later tokens, and shorten the sequence."""
    if subject.reason_not_causal is not None:
        return not_applicable(subject.reason_not_causal)
    return first_violated(_check_causality(subject))


def _check_causality(subject: Subject) -> Iterator[Finding]:
    batch, length = subject.batch, subject.batch.inputs.shape[1]
    yield from _change_later_tokens(subject, batch, range(length - 1), {"prefix": None})
    yield from _take_later_gradients(subject)
    if not subject.mixes_batch:
        places = sorted({0, length // 2, length - 2} - {-1})
        yield from _change_later_tokens(subject, batch, places, {"prefix": None, "key": random_key()})
    yield from _change_length(subject)


def _change_later_tokens(subject: Subject, batch: Batch, places: Iterable[int], given: Arguments) -> Iterator[Finding]:
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
            one, two = ({"inputs": tokens, **given} for tokens in (inputs, changed))
            yield locate(found, subject, one, two, up_to_last)


def _take_later_gradients(subject: Subject) -> Iterator[Finding]:
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


def _change_length(subject: Subject) -> Iterator[Finding]:
    """Compare the outputs of sequences with those of their beginnings."""
    batch, limit = subject.long_batch, subject.config.max_length
    given = arguments_of(batch) | {"prefix": None}
    length, short = batch.inputs.shape[1], subject.batch.inputs.shape[1]
    if length > short:
        places = np.unique(np.linspace(0, length - 2, POSITIONS).astype(int))
        yield from _change_later_tokens(subject, batch, places, given)
    expected = np.asarray(subject.output(batch.inputs, **given))
    for end in sorted({1, short if short < length else max(1, length // 2)} - {length}):
        part = cut(batch, end)
        found = subject.output(part.inputs, **arguments_of(part) | {"prefix": None})
        what = f"outputs of the first {end} of {length} tokens alone and within the sequence"
        yield compare(expected[:, :end], found, what, subject.tolerance)
    if not {"positions", "mask"} & given.keys() and (limit is None or length + LONGER <= limit):
        further = np.repeat(subject.other_inputs(batch=batch)[:, :1], LONGER, axis=1)
        valid = None if batch.valid is None else np.pad(batch.valid, ((0, 0), (0, LONGER)), constant_values=True)
        found = subject.output(np.concatenate([batch.inputs, further], axis=1), **given | {"valid": valid})
        what = f"outputs of {length} tokens, the task's length, and of the same followed by {LONGER} more"
        yield compare(expected, found[:, :length], what, subject.tolerance)


@law("padding", "padding changes no output and no gradient, on either side and between, even where it is NaN")
def padding(subject: Subject) -> Finding:
    """Add padding with arbitrary contents to the embedded inputs and to the source."""
    limit = subject.config.max_length
    length = subject.vectors.shape[1]
    length = length if limit is None else min(length, limit - EXTRA)
    if length < 3:
        return not_applicable(f"the model reads at most {limit} tokens")
    return first_violated(itertools.chain(PaddingCheck(subject, length).findings(), _check_source_padding(subject)))


class ProbeResult(NamedTuple):
    """Results of `Subject.probe`, on the host."""

    output: np.ndarray
    by_tokens: np.ndarray
    """Gradient by the embedded inputs."""
    by_weights: PyTree


class PaddingCheck:
    """Comparisons of a model's outputs and gradients with and without padding.

    Args:
      subject: the model.
      length: number of real tokens per row.
    """

    def __init__(self, subject: Subject, length: int) -> None:
        self.subject = subject
        self.vectors = subject.vectors[:, :length]
        self.every = np.ones((len(self.vectors), length), bool)
        self.given = subject.source | {"prefix": subject.given.get("prefix")}

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of all comparisons."""
        yield from self._compare_padding_behind()
        yield from self._compare_contents()
        yield from self._compare_contents_in_training()

    def _probe(self, vectors: np.ndarray, valid: Bool[np.ndarray, "rows T"], fill: float) -> ProbeResult:
        counted = valid if self.subject.has_output_per_token else np.any(valid, axis=-1)
        return ProbeResult(*jax.device_get(self.subject.probe(vectors, valid, counted, fill, **self.given)))

    def _compare(
        self,
        one: tuple[ProbeResult, Bool[np.ndarray, "rows T"]],
        two: tuple[ProbeResult, Bool[np.ndarray, "rows T"]],
        what: str,
        with_gradient: bool = True,
    ) -> Iterator[Finding]:
        """Compare two results, each with its mask: outputs for real tokens, gradients by them, gradients by weights."""
        allowed, is_per_token = self.subject.tolerance, self.subject.has_output_per_token
        first, second = (probe.output[valid if is_per_token else valid.any(-1)] for probe, valid in (one, two))
        yield compare(first, second, f"outputs {what}", allowed)
        if with_gradient:
            first, second = (probe.by_tokens[valid] for probe, valid in (one, two))
            yield compare(first, second, f"gradients by real tokens {what}", allowed)
            yield compare_trees(one[0].by_weights, two[0].by_weights, f"gradients {what},", allowed)

    def _compare_padding_behind(self) -> Iterator[Finding]:
        """Add padding behind the tokens, also with NaN as its embeddings, and with NaN in every layer."""
        x, every = self.vectors, self.every
        valid = np.pad(every, ((0, 0), (0, EXTRA)))
        alone = self._probe(x, every, 0.0), every
        longer = np.concatenate([x, 0 * x[:, :1].repeat(EXTRA, axis=1)], axis=1)
        what = f"without padding and with {EXTRA} tokens behind"
        yield from self._compare(alone, (self._probe(longer, valid, 3.0), valid), what)
        with_nan = np.where(valid[..., None], longer, np.nan)
        nan_embeddings = self._probe(with_nan, valid, 0.0), valid
        yield from self._compare(alone, nan_embeddings, f"{what}, whose embeddings are NaN,")
        nan_layers = self._probe(longer, valid, np.nan), valid
        yield from self._compare(alone, nan_layers, f"{what}, which are NaN in every layer,", with_gradient=False)

    def _padded(self) -> tuple[np.ndarray, dict[str, Bool[np.ndarray, "rows T"]]]:
        """Return longer inputs, and masks with padding at several places of them."""
        x = self.vectors
        full = np.concatenate([x[:, :1].repeat(EXTRA, axis=1), x], axis=1)
        before = np.broadcast_to(np.arange(full.shape[1]) >= EXTRA, full.shape[:2]).copy()
        between, whole_row = np.ones_like(before), before.copy()
        between[0, 1:3] = between[-1, full.shape[1] // 2] = whole_row[-1] = False
        return full, {"before the tokens": before, "between tokens": between, "in all of a sequence": whole_row}

    def _compare_contents(self) -> Iterator[Finding]:
        """Change the contents of padding at several places."""
        full, places = self._padded()
        for where, valid in places.items():
            one = self._probe(full, valid, 0.0)
            if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves((one.by_tokens[valid], one.by_weights))):
                yield violated(f"gradients with padding {where} are not finite")
            if not np.all(np.isfinite(one.output)):
                yield violated(f"outputs with padding {where} are not finite")
            other, with_nan = (self._probe(full, valid, fill) for fill in (3.0, np.nan))
            yield from self._compare((one, valid), (other, valid), f"with other contents of padding {where}")
            yield from self._compare((one, valid), (with_nan, valid), f"with NaN in padding {where}", False)

    def _compare_contents_in_training(self) -> Iterator[Finding]:
        """Change the contents of padding in training, at the same length, since random draws depend on the shape."""
        subject, (full, places) = self.subject, self._padded()
        valid = places["between tokens"]
        call = NO_MASKS | {"key": random_key(), "valid": valid} | self.given
        configs = [embedded_config(subject.config, fill) for fill in (0.0, 3.0, np.nan)]
        first, *others = (np.asarray(subject.output(full, config=config, **call)) for config in configs)
        own = valid if subject.has_output_per_token else valid.any(-1)
        for other in others:
            what = "outputs in training with different contents of padding"
            yield compare(first[own], other[own], what, subject.tolerance)


def _check_source_padding(subject: Subject) -> Iterator[Finding]:
    """Add padding to the source, and compare the outputs."""
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
        yield compare(expected, found, what, subject.tolerance)


@law("batch", "the sequences of a batch do not influence each other")
def batch(subject: Subject) -> Finding:
    """Change one sequence, also to NaN, or leave it out, and compare the outputs for the others."""
    if len(subject.batch.inputs) < 2:
        return not_applicable("the batch has one sequence")
    return first_violated(_check_batch(subject))


def _check_batch(subject: Subject) -> Iterator[Finding]:
    inputs, other, allowed = subject.batch.inputs, subject.other_inputs(3), subject.tolerance
    changed = np.concatenate([inputs[:1], other[1:]])
    expected = np.asarray(subject.output())[:1]
    found = compare(expected, subject.output(changed)[:1], "outputs of a sequence beside different others", allowed)
    yield locate(found, subject, {}, {"inputs": changed}, lambda x: x[:1])
    own = {name: jax.tree.map(lambda x: x[:1], value) for name, value in subject.given.items()}
    alone = subject.output(inputs[:1], **own)
    yield compare(expected, alone, "outputs of a sequence in a batch and alone", allowed)
    with_nan = subject.vectors.copy()
    with_nan[1:] = np.nan
    one, two = (subject.output(x, config=subject.embedded_config)[:1] for x in (subject.vectors, with_nan))
    yield compare(one, two, "outputs of a sequence beside another and beside NaN", allowed)
    if subject.mixes_batch:
        return
    one, two = (subject.output(x, key=random_key())[:1] for x in (inputs, changed))
    found = compare(one, two, "outputs, in training, of a sequence beside different others", allowed)
    yield locate(found, subject, {"key": random_key()}, {"inputs": changed, "key": random_key()}, lambda x: x[:1])
