"""Inputs of the laws: a few rows of a task's batch, cut to a length, in double or single precision."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from flaxformer.tasks.batch import Batch

Arguments = Mapping[str, PyTree]
"""Keyword arguments of a forward pass, such as padding, a mask or a source."""
NO_MASKS: dict[str, PyTree] = {"valid": None, "mask": None, "positions": None, "prefix": None}
"""Arguments of a forward pass without padding, mask, given positions and prefix."""


def first_rows(batch: Batch, rows: int, length: int) -> Batch:
    """Return the first rows of a batch; sequences with one target per token are cut to at most `length` tokens."""
    selected = jax.tree.map(lambda x: np.asarray(x)[:rows], batch)
    has_tokens = selected.inputs.ndim <= 3 and selected.targets.shape[:2] == selected.inputs.shape[:2]
    if not has_tokens or selected.inputs.shape[1] <= length:
        return selected
    selected = cut(selected, length)
    if not np.all(selected.weights.any(axis=1)):  # all scored targets were cut off: score every target
        selected = selected.replace(weights=np.ones_like(selected.weights))
    return selected


def lengthen(batch: Batch, extra: int, limit: int | None) -> Batch:
    """Return a batch with further tokens in each row, the first ones of the row before it; all of them are scored.

    Batches whose sequences have no target per token, and packed ones, are returned unchanged.

    Args:
      extra: largest number of further tokens.
      limit: largest length of a sequence; None for none.
    """
    shape = batch.inputs.shape[:2]
    if batch.targets.shape[:2] != shape or batch.segments is not None or batch.positions is not None:
        return batch
    count = min(extra, shape[1], extra if limit is None else max(0, limit - shape[1]))
    further: dict[str, np.ndarray] = {}
    for name in ("inputs", "targets", "weights", "valid"):
        x = getattr(batch, name)
        if x is not None and x.shape[:2] == shape:
            more = np.ones_like(x[:, :count]) if name == "weights" else np.roll(x, 1, axis=0)[:, :count]
            further[name] = np.concatenate([x, more], axis=1)
    return batch.replace(**further)


def cut(batch: Batch, length: int) -> Batch:
    """Return the first `length` tokens of each sequence; arrays without an entry per token stay as they are."""
    shape = batch.inputs.shape[:2]
    names = ("inputs", "targets", "weights", "valid", "segments", "positions")
    arrays = {name: getattr(batch, name) for name in names}
    return batch.replace(
        **{name: x[:, :length] for name, x in arrays.items() if x is not None and x.shape[:2] == shape}
    )


def arguments_of(batch: Batch) -> dict[str, PyTree]:
    """Return the arguments of a forward pass that a batch has beside its inputs."""
    return {
        name: value for name, value in batch.replace(padding_is_behind=False).arguments.items() if value is not None
    }


def to_float64(x: ArrayLike) -> np.ndarray:
    """Return an array on the host, with real numbers converted to float64."""
    x = np.asarray(x)
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


def to_float32(x: ArrayLike) -> np.ndarray:
    """Return an array on the host, with float64 converted to float32."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 else x
