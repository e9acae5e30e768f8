"""Law of decoding: token by token, a model gives what it gives for the whole sequence."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.laws.inputs import NO_MASKS
from flaxformer.laws.law import Finding, compared, first_violated, law, not_applicable
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model.transformer import with_layout
from flaxformer.struct import UserError

CHUNK = 3
"""Tokens that are read at once, where it is more than one."""


@law("decoding", "decoding with a state gives the outputs of the whole sequence, also with padding")
def decoding(subject: Subject) -> Finding:
    """Read tokens in chunks and one by one, in rows with and without padding, in both layouts."""
    if subject.why_not_causal is not None:
        return not_applicable(subject.why_not_causal)
    if not subject.reads_tokens:
        return not_applicable("the model does not decode tokens")
    try:
        return first_violated(_decoding(subject))
    except UserError as error:
        return not_applicable(str(error))


def _decoding(subject: Subject) -> Iterator[Finding]:
    params, inputs = jax.tree.map(jnp.asarray, subject.params), subject.batch.inputs
    rows, length = inputs.shape
    sizes: list[int] = []
    while (left := length - sum(sizes)) > 0:  # chunks and single tokens, in turn
        sizes.append(CHUNK if left >= CHUNK and len(sizes) % 3 == 0 else 1)
    expected = np.asarray(subject.output(**NO_MASKS))
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
    expected = np.asarray(subject.output(np.asarray(compressed), **NO_MASKS | {"valid": real}))
    chunks = [CHUNK] * (length // CHUNK) + [1] * (length % CHUNK)
    found = _decoded(subject, scanned, inputs, chunks, pattern)
    for row in range(rows):
        count = int(pattern[row].sum())
        how = "" if isinstance(scanned.blocks, tuple) else ", with scanned layers,"
        what = f"outputs by decoding a sequence with padding{how} and of its {count} tokens alone"
        yield compared(expected[row, :count], found[row, pattern[row]], what, subject.tolerance)


def _decoded(subject: Subject, params: Any, inputs: Any, sizes: list[int], valid: np.ndarray | None) -> np.ndarray:
    """Return the outputs of tokens that are read in chunks of these sizes."""
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
