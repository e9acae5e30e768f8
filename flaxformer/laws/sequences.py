"""Laws about what a token may depend on: order, padding, length, the batch, and decoding."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.config import Attention
from flaxformer.laws.law import (
    OK,
    Finding,
    compared,
    compared_trees,
    difference,
    first_violated,
    law,
    not_applicable,
    violated,
)
from flaxformer.laws.subject import Subject, fast_jit, of_batch, random_key
from flaxformer.laws.where import located
from flaxformer.model.transformer import with_layout
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.positions import NoPositions
from flaxformer.struct import UserError

POSITIONS = 24
"""Most places of a long sequence after which the tokens are changed."""
EXTRA = 3
"""Tokens of padding that are added."""


@law("causality", "no output depends on later tokens, in value or in gradient, at any length, also in training")
def causality(subject: Subject) -> Finding:
    """Change everything after each token, take gradients by later tokens, and cut the sequence."""
    if (why := _why_not_causal(subject)) is not None:
        return not_applicable(why)
    return first_violated(_causality(subject))


def _why_not_causal(subject: Subject) -> str | None:
    config = subject.config
    if getattr(config, "visibility", "causal") == "full":
        return "a token may read later ones: the model is bidirectional"
    if not subject.is_causal:
        kinds = {type(norm).__name__ for norm in config.norms if not norm.is_causal}
        return f"{', '.join(sorted(kinds))} declares that it reads later tokens"
    return None if subject.answers_each_token else "the model has one output per sequence"


def _causality(subject: Subject) -> Iterator[Finding]:
    batch, none = subject.batch, {"prefix": None}
    length = batch.inputs.shape[1]
    expected, other = np.asarray(subject.output(**none)), subject.other_inputs()
    for last in range(length - 1):
        changed = np.concatenate([batch.inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
        yield _unchanged(subject, expected, {"inputs": changed} | none, none, last)
    # The gradient of the outputs up to a token by the embeddings after it.
    valid = np.ones(subject.vectors.shape[:2], bool)
    given = {name: value for name, value in subject.given.items() if name not in ("valid", "prefix")}
    for last in range(length - 1):
        counted = np.broadcast_to(np.arange(length) <= last, valid.shape)
        gradient = np.asarray(subject.probe(subject.vectors, valid, counted, **given)[1])[:, last + 1 :]
        size = float(np.abs(gradient).max()) if np.all(np.isfinite(gradient)) else float("inf")
        if size > 1e-12:
            yield violated(f"the outputs up to token {last} have a gradient of {size:.2g} by later tokens")
    training = none | {"key": random_key()}
    if not subject.mixes_batch:
        expected = np.asarray(subject.output(**training))
        for last in {0, length // 2, length - 2} - {-1}:
            changed = np.concatenate([batch.inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
            found = _unchanged(subject, expected, {"inputs": changed} | training, training, last)
            yield violated(f"in training, {found.words}") if found.is_violated else found
    yield from _lengths(subject)


def _unchanged(subject: Subject, expected: np.ndarray, call: Any, base: Any, last: int) -> Finding:
    """Compare the outputs up to a token with those of another call."""
    found = np.asarray(subject.output(**call))
    gap = difference(expected[:, : last + 1], found[:, : last + 1])
    if gap <= subject.tolerance:
        return OK
    words = f"the outputs up to token {last} change by {gap:.2g} when later tokens do"
    return located(violated(words), subject, base, call, lambda x: x[:, : last + 1])


def _lengths(subject: Subject) -> Iterator[Finding]:
    """Compare the outputs at several lengths: a longer sequence has the outputs of its beginning."""
    batch, limit = subject.long_batch, subject.config.max_length
    own = {name: value for name, value in of_batch(batch).items() if name != "prefix"}
    length, short = batch.inputs.shape[1], subject.batch.inputs.shape[1]
    expected, other = np.asarray(subject.output(batch.inputs, **own | {"prefix": None})), None
    other = subject.other_inputs(batch=batch)
    if length > short:
        for last in np.unique(np.linspace(0, length - 2, POSITIONS).astype(int)):
            changed = np.concatenate([batch.inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
            own_call = own | {"prefix": None}
            yield _unchanged(
                subject, expected, {"inputs": changed} | own_call, {"inputs": batch.inputs} | own_call, last
            )
    keeps_length = {"segments", "positions", "mask"} & own.keys()
    for cut in sorted({1, short if short < length else max(1, length // 2)} - {length}):
        given = of_batch(_cut(batch, cut)) | {"prefix": None}
        found = np.asarray(subject.output(batch.inputs[:, :cut], **given))
        what = f"outputs of the first {cut} of {length} tokens alone and within the sequence"
        yield compared(expected[:, :cut], found, what, subject.tolerance)
    longer = length + 5
    if not keeps_length and (limit is None or longer <= limit):
        more = np.concatenate([batch.inputs, np.repeat(other[:, :1], 5, axis=1)], axis=1)
        valid = None if batch.valid is None else np.pad(batch.valid, ((0, 0), (0, 5)), constant_values=True)
        found = np.asarray(subject.output(more, **own | {"prefix": None, "valid": valid}))[:, :length]
        what = f"outputs of {length} tokens, the task's length, and of the same followed by 5 more"
        yield compared(expected, found, what, subject.tolerance)


def _cut(batch: Any, length: int) -> Any:
    names = ("valid", "segments", "positions")
    return batch.replace(**{n: getattr(batch, n)[:, :length] for n in names if getattr(batch, n) is not None})


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
    call = {"key": random_key(), "valid": between, "mask": None, "positions": None} | given
    first, *others = (
        np.asarray(subject.output(full, config=subject.filled_config(fill), **call)) for fill in (0.0, 3.0, np.nan)
    )
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


@law("tokens", "nothing but token mixers carries information from one token to another")
def tokens(subject: Subject) -> Finding:
    """Replace every token mixer by one that does nothing, and change one token; the others' results stay."""
    config = subject.config
    if not hasattr(config, "attention"):
        return not_applicable("the model has no token mixers to replace")
    cross = {"cross_attention": config.cross} if config.reads_memory else {}
    pattern = tuple(
        block.replace(attention=_NoMixing()) if "attention" in block.changes() else block for block in config.pattern
    )
    still = config.replace(
        attention=_NoMixing(), pattern=pattern, inputs=subject.embedded_config.inputs, dropout=None, **cross
    )
    if not all(norm.is_causal for norm in still.norms):
        return not_applicable("a norm declares that it reads other tokens")
    idle = _NoMixing.Weights()
    params = subject.params.replace(blocks=tuple(own.replace(attention=idle) for own in subject.params.blocks))
    x = subject.vectors
    given = {name: value for name, value in subject.given.items() if name in ("source", "source_valid")}
    changed = x.copy()
    changed[:, 2] += np.random.default_rng(6).standard_normal(changed[:, 2].shape)
    others = np.arange(x.shape[1]) != 2
    keys = (None,) if subject.mixes_batch else (None, random_key())
    for key in keys:
        one, two = (_final(params, still, inputs, given, key) for inputs in (x, changed))
        gap = difference(np.asarray(one)[:, others], np.asarray(two)[:, others])
        if gap > subject.tolerance:
            when = "" if key is None else " in training"
            found = violated(f"without token mixers, changing one token changes others{when} by {gap:.2g}")
            call = {"config": still, "params": params, "key": key, "valid": None, "mask": None, "positions": None}
            one, two = ({"inputs": inputs} | call for inputs in (x, changed))
            return located(found, subject, one, two, lambda x: x[:, others] if x.ndim > 2 else x)
    return OK


class _NoMixing(TokenMixer):
    """A token mixer whose update is 0."""

    def apply(self, weights: Any, x: Any, context: Any) -> Any:
        return jnp.zeros_like(x)


@fast_jit
def _final(params: Any, config: Any, inputs: Any, given: Any, key: Any) -> Any:
    """Return the vectors before the head, or its output where it has one per token."""
    outcome = model.run(params, config, inputs, given, dropout_key=key, keep=True)
    return outcome.intermediates.final if getattr(config.head, "pool", "none") != "none" else outcome.output


@law("order", "the model is equivariant to permutations exactly where nothing tells it the order")
def order(subject: Subject) -> Finding:
    """Permute the tokens of a bidirectional model, and take the positions away."""
    config = subject.config
    if not hasattr(config, "attention"):
        return not_applicable("the model has no position scheme")
    if not subject.answers_each_token:
        return not_applicable("the model has one output per sequence")
    mixers = [own.attention for own in config.block_configs] or [config.attention]
    others = {type(own).__name__ for own in mixers if not isinstance(own, Attention)}
    none = {"valid": None, "mask": None, "positions": None, "prefix": None}
    x = subject.vectors
    call = {"config": subject.embedded_config} | none
    if isinstance(config.positions, NoPositions):
        if config.visibility != "full":
            return not_applicable("the causal mask tells the order")
        if others or any(own.window is not None or own.frozen_pattern is not None for own in mixers):
            what = ", ".join(sorted(others)) or "a window or a frozen pattern"
            return not_applicable(f"{what} may tell the order")
        permutation = np.random.default_rng(0).permutation(x.shape[1])
        expected = np.asarray(subject.output(x, **call))[:, permutation]
        gap = difference(expected, np.asarray(subject.output(x[:, permutation], **call)))
        words = f"permuted inputs give outputs that differ by {gap:.2g}, and the model has no positions"
        return OK if gap <= subject.tolerance else violated(words)
    if config.positions.width:
        return OK
    if not config.layers and subject.is_causal:
        return not_applicable("the model has no layers")
    silent = subject.embedded_config.replace(positions=NoPositions())
    params = subject.params.replace(positions=NoPositions.Weights())
    gap = difference(subject.output(x, **call), subject.output(x, params, **call | {"config": silent}))
    kind = type(config.positions).__name__
    if gap > 0:
        return OK
    if others and not any(isinstance(own, Attention) and own.frozen_pattern is None for own in mixers):
        return not_applicable(f"{', '.join(sorted(others))} does not read {kind}")
    if all(isinstance(own, Attention) and own.frozen_pattern is not None for own in mixers):
        return not_applicable("a frozen pattern does not read the positions")
    return violated(f"{kind} has no effect: without positions, the outputs are the same")


@law("decoding", "decoding with a state gives the outputs of the whole sequence, also with padding")
def decoding(subject: Subject) -> Finding:
    """Read tokens in chunks and one by one, in rows with and without padding, in both layouts."""
    if (why := _why_not_causal(subject)) is not None:
        return not_applicable(why)
    if not subject.reads_tokens:
        return not_applicable("the model does not decode tokens")
    try:
        return first_violated(_decoding(subject))
    except UserError as error:
        return not_applicable(str(error))


CHUNK = 3


def _decoding(subject: Subject) -> Iterator[Finding]:
    params, inputs = subject.params, subject.batch.inputs
    rows, length = inputs.shape
    none = {"valid": None, "mask": None, "positions": None, "prefix": None}
    sizes: list[int] = []
    while (left := length - sum(sizes)) > 0:  # chunks and single tokens, in turn
        sizes.append(CHUNK if left >= CHUNK and len(sizes) % 3 == 0 else 1)
    expected = np.asarray(subject.output(**none))
    found = _decoded(subject, params, inputs, sizes, None)
    for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        here, last = slice(int(start), int(start) + size), int(start) + size - 1
        tokens = f"token {start}" if size == 1 else f"tokens {start} to {last}, read at once"
        what = f"outputs for {tokens}, by decoding and of the whole sequence,"
        yield compared(expected[:, here], found[:, here], what, subject.tolerance)
    # Rows with padding, in the other layout where there is one: each is what it is without.
    scanned = with_layout(params, "scanned")
    pattern = np.ones((rows, length), bool)
    pattern[0, [at for at in (0, 1, CHUNK + 1) if at < length - 1]] = False
    pattern[-1, min(CHUNK - 1, length - 1)] = False
    compressed = np.zeros_like(np.asarray(inputs))
    for row in range(rows):
        compressed[row, : pattern[row].sum()] = np.asarray(inputs)[row, pattern[row]]
    real = np.arange(length) < pattern.sum(-1, keepdims=True)
    expected = np.asarray(subject.output(np.asarray(compressed), **none | {"valid": real}))
    chunks = [CHUNK] * (length // CHUNK) + [1] * (length % CHUNK)
    found = _decoded(subject, scanned, inputs, chunks, pattern)
    for row in range(rows):
        count = int(pattern[row].sum())
        how = "" if isinstance(getattr(scanned, "blocks", ()), tuple) else ", with scanned layers,"
        what = f"outputs by decoding a sequence with padding{how} and of its {count} tokens alone"
        yield compared(expected[row, :count], found[row, pattern[row]], what, subject.tolerance)


def _decoded(subject: Subject, params: Any, inputs: Any, sizes: list[int], valid: np.ndarray | None) -> np.ndarray:
    """Outputs of tokens that are read in chunks of these sizes."""
    config, (rows, length), limit = subject.config, inputs.shape, subject.config.max_length
    capacity = length + 2 if limit is None or length + 2 <= limit else length
    state, seen, outputs = model.new_cache(params, config, (rows,), capacity, **subject.source), 0, []
    for size in sizes:
        here = slice(seen, seen + size)
        own = None if valid is None else np.asarray(valid[:, here])
        output, state = _extend(params, config, inputs[:, here], state, own)
        outputs.append(output)
        seen += size
    return np.concatenate(outputs, axis=1)


@fast_jit
def _extend(params: Any, config: Any, inputs: Any, state: Any, valid: Any) -> Any:
    return model.extend(params, config, inputs, state, valid=valid)


LAWS = (causality, padding, batch, tokens, order, decoding)
