"""Law of decoding: outputs with a cache, token by token, are those of the whole sequence."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.errors import UserError
from flaxformer.laws.inputs import NO_MASKS
from flaxformer.laws.law import Finding, compare, first_violated, law, not_applicable
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer
from flaxformer.model.cache import Cache
from flaxformer.model.weights import with_layout

CHUNK = 3
"""Number of tokens that are read at once, where it is not 1."""


@law("decoding", "decoding with a cache gives the outputs of the whole sequence, also with padding")
def decoding(subject: Subject) -> Finding:
    """Read tokens in chunks and one by one, in rows with and without padding, in both layouts."""
    if subject.reason_not_causal is not None:
        return not_applicable(subject.reason_not_causal)
    if not subject.reads_tokens:
        return not_applicable("the model does not decode tokens")
    try:
        return first_violated(itertools.chain(_check_chunks(subject), _check_padding(subject)))
    except UserError as error:
        return not_applicable(str(error))


def _check_chunks(subject: Subject) -> Iterator[Finding]:
    """Decode with chunks and single tokens in turn, and compare with the whole sequence."""
    params, inputs = jax.tree.map(jnp.asarray, subject.params), subject.batch.inputs
    length = inputs.shape[1]
    sizes: list[int] = []
    while (left := length - sum(sizes)) > 0:
        sizes.append(CHUNK if left >= CHUNK and len(sizes) % 3 == 0 else 1)
    expected = np.asarray(subject.output(**NO_MASKS))
    found = _decode(subject, params, inputs, sizes, None)
    for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        here, last = slice(int(start), int(start) + size), int(start) + size - 1
        tokens = f"token {start}" if size == 1 else f"tokens {start} to {last}, read at once"
        what = f"outputs for {tokens}, by decoding and of the whole sequence,"
        yield compare(expected[:, here], found[:, here], what, subject.tolerance)


def _check_padding(subject: Subject) -> Iterator[Finding]:
    """Decode rows with padding, with scanned layers if possible, and compare with the rows without padding."""
    params, inputs = jax.tree.map(jnp.asarray, subject.params), subject.batch.inputs
    rows, length = inputs.shape
    scanned = with_layout(params, "scanned")
    pattern = np.ones((rows, length), bool)
    pattern[0, [at for at in (0, 1, CHUNK + 1) if at < length - 1]] = False
    pattern[-1, min(CHUNK - 1, length - 1)] = False
    compressed = np.zeros_like(np.asarray(inputs))
    for row in range(rows):
        compressed[row, : pattern[row].sum()] = np.asarray(inputs)[row, pattern[row]]
    real = np.arange(length) < pattern.sum(-1, keepdims=True)
    expected = np.asarray(subject.output(np.asarray(compressed), **NO_MASKS | {"valid": real}))
    chunks = [CHUNK] * (length // CHUNK) + [1] * (length % CHUNK)
    found = _decode(subject, scanned, inputs, chunks, pattern)
    for row in range(rows):
        count = int(pattern[row].sum())
        how = "" if isinstance(scanned.blocks, tuple) else ", with scanned layers,"
        what = f"outputs by decoding a sequence with padding{how} and of its {count} tokens alone"
        yield compare(expected[row, :count], found[row, pattern[row]], what, subject.tolerance)


def _decode(
    subject: Subject, params: Transformer, inputs: Array, sizes: list[int], valid: Bool[np.ndarray, "rows T"] | None
) -> np.ndarray:
    """Return the outputs of tokens that are read in chunks of these sizes."""
    config, (rows, length), limit = subject.config, inputs.shape, subject.config.max_length
    capacity = length + 2 if limit is None or length + 2 <= limit else length
    cache, start, outputs = model.new_cache(params, config, (rows,), capacity, **subject.source), 0, []
    for size in sizes:
        here = slice(start, start + size)
        own = None if valid is None else jnp.asarray(valid[:, here])
        output, cache = _extend(params, config, inputs[:, here], cache, own)
        outputs.append(output)
        start += size
    return np.concatenate(outputs, axis=1)


@fast_jit
def _extend(
    params: Transformer, config: ModelConfig, inputs: Array, cache: Cache, valid: Array | None
) -> tuple[Array, Cache]:
    return model.extend(params, config, inputs, cache, valid=valid)
