"""Evaluation examples that also occur in training, and a digest of the evaluation data."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, UInt64

from flaxformer.tasks.batch import AnyBatch, Batch, Source, batch_shapes

SAMPLE = 2**14
"""Largest number of training examples that are drawn of a source without a table of them."""
SAMPLE_BYTES = 2**27
"""Largest size of the drawn examples in bytes."""
PIECE = 2**20
"""Number of windows of a text that are hashed at a time."""
FACTOR = 0x9E3779B97F4A7C15
"""An odd number of 64 bits, the base of a polynomial hash."""


class Overlap(NamedTuple):
    """Number of evaluation examples, and of those that also occur in training."""

    examples: int
    in_training: int
    compared: int | None = None
    """Number of training examples that were drawn for the comparison; None if all were compared."""

    @property
    def fraction(self) -> float:
        """Fraction of the evaluation examples that also occur in training."""
        return self.in_training / max(self.examples, 1)


def merge_batches(batches: "Batch") -> "Batch":
    """Return batches [batches, B, …] as one batch [batches · B, …] of NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), batches)


def example_keys(batch: "Batch") -> Iterator[bytes]:
    """Yield the content of each example of a batch [B, …] that has a scored target.

    It is what the model reads, and the scored targets; padding does not count, nor do targets that are not scored.
    """
    weights = np.asarray(batch.weights)
    parts = [*_contents(batch.inputs, batch.valid), *_contents(batch.targets, weights > 0)]
    if batch.source is not None:
        parts += _contents(batch.source, batch.source_valid)
    for row, example_weights in zip(zip(*parts, strict=True), weights.reshape(len(weights), -1), strict=True):
        if example_weights.any():
            yield b"|".join(part.tobytes().rstrip(b"\0") for part in row)


def _contents(values: "np.ndarray | jax.Array", mask: "np.ndarray | jax.Array | None") -> list[np.ndarray]:
    """Return values with 0 where the mask is False, and the number of values that count, per example."""
    array = np.asarray(values)
    array = array.astype(np.int32) if array.dtype.kind in "ui" else array
    if mask is None:
        return [array]
    is_counted = np.asarray(mask)
    spread = is_counted.reshape(*is_counted.shape, *[1] * (array.ndim - is_counted.ndim))
    return [np.where(spread, array, 0), is_counted.reshape(len(is_counted), -1).sum(1).astype(np.int32)]


def evaluation_digest(source: "Source") -> str:
    """Return a digest, in 16 hexadecimal digits, of the scored evaluation examples, in whatever batches they are."""
    return examples_digest(_evaluation(source))


def examples_digest(batch: "Batch") -> str:
    """Return a digest, in 16 hexadecimal digits, of the scored examples of a batch [B, …]."""
    digest = hashlib.blake2b(digest_size=8)
    for key in example_keys(batch):
        digest.update(len(key).to_bytes(8, "little") + key)
    return digest.hexdigest()


def count_overlap(source: "Source", sample: int) -> Overlap:
    """Compare the evaluation examples of a source with its training examples: with all, or with a sample.

    Args:
      source: the data.
      sample: number of training examples to draw, if the source has no table of them.
    """
    evaluation = list(example_keys(_evaluation(source)))
    tables = source.training_examples()
    evaluation_keys, compared = set(evaluation), None
    if tables is not None:
        training = _keys_in(tables, evaluation_keys)
    else:
        drawn = _draw(source, sample)
        training, compared = _keys_in(drawn, evaluation_keys), sum(len(table.targets) for table in drawn)
    return Overlap(len(evaluation), sum(key in training for key in evaluation), compared)


def _keys_in(tables: "Iterable[Batch]", wanted: set[bytes]) -> set[bytes]:
    return {key for table in tables for key in example_keys(table) if key in wanted}


def _draw(source: "Source", sample: int) -> "list[Batch]":
    """Draw about `sample` training examples, from a seed of their own; a table per bucket."""
    shape = batch_shapes(source)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shape))
    rows = sum(len(bucket.targets) for bucket in (shape if isinstance(shape, tuple) else (shape,)))
    steps = max(1, min(-(-sample // rows), SAMPLE_BYTES // max(size, 1)))
    if source.on_host:
        batches = [source.batch(jax.random.key(0), step) for step in range(steps)]
        drawn = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    else:
        drawn = _jit_once(_draw_batches)(source, jnp.arange(steps))
    return [merge_batches(bucket) for bucket in (drawn if isinstance(drawn, tuple) else (drawn,))]


def _draw_batches(source: "Source", steps: Int[Array, " steps"]) -> "AnyBatch":
    key = jax.random.key(0)
    return jax.vmap(lambda step: source.batch(key, step))(steps)


def _evaluation(source: "Source") -> "Batch":
    """Return the evaluation set as one batch on the host."""
    return merge_batches(source.evaluation() if source.on_host else _jit_once(_evaluation_set)(source))


def _evaluation_set(source: "Source") -> "Batch":
    return source.evaluation()


@functools.cache
def _jit_once(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compile a function that is called once per task, on a CPU with few optimizations, which take longer than it."""
    few = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(function, compiler_options=few if jax.default_backend() == "cpu" else None)


def windows_in_text(windows: np.ndarray, text: np.ndarray) -> Bool[np.ndarray, " N"]:
    """Return, for each of N windows of n tokens, whether these tokens also follow each other somewhere in a text.

    Windows are compared by a polynomial hash of 64 bits, and equal hashes by their tokens.
    """
    count, n = windows.shape
    is_in_text = np.zeros(count, bool)
    if text.size < n:
        return is_in_text
    hashes = np.array([_window_hashes(window, n)[0] for window in windows], np.uint64)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    for start in range(0, text.size - n + 1, PIECE):
        piece = text[start : start + PIECE + n - 1]
        piece_hashes = _window_hashes(piece, n)
        place = np.minimum(np.searchsorted(ordered, piece_hashes), count - 1)
        hits = np.flatnonzero(ordered[place] == piece_hashes)
        for value, at in zip(*np.unique(piece_hashes[hits], return_index=True), strict=True):
            same = windows[hashes == value] == piece[hits[at] : hits[at] + n]
            is_in_text[hashes == value] |= same.all(1)
    return is_in_text


def _window_hashes(text: np.ndarray, n: int) -> UInt64[np.ndarray, " starts"]:
    """Return a hash of the n tokens from each place on; of 2ᵏ tokens by doubling, of n from two that overlap."""
    hashes, length = text.astype(np.uint64) + np.uint64(1), 1
    while 2 * length <= n:
        hashes = hashes[:-length] * np.uint64(pow(FACTOR, length, 2**64)) + hashes[length:]
        length *= 2
    last = n - length
    first = hashes[: len(hashes) - last] if last else hashes
    return first * np.uint64(pow(FACTOR, n, 2**64)) + hashes[last:]
