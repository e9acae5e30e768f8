"""Inputs of the laws: a few rows of a task's batch, cut to a length, in double or single precision."""

from typing import Any

import jax
import numpy as np

from flaxformer.tasks.base import Batch

NO_MASKS: dict[str, Any] = {"valid": None, "mask": None, "positions": None, "prefix": None}
"""Arguments of a call without padding, a further mask, given positions or a prefix."""


def first_rows(batch: Batch, rows: int, length: int) -> Batch:
    """Return the first rows of a batch, with sequences cut to at most `length` tokens where they can be."""
    found = jax.tree.map(lambda x: np.asarray(x)[:rows], batch)
    has_tokens = found.inputs.ndim <= 3 and found.targets.shape[:2] == found.inputs.shape[:2]
    if not has_tokens or found.inputs.shape[1] <= length:
        return found
    found = cut(found, length)
    if not np.all(found.weights.any(axis=1)):  # what the task scores is cut off: score everything
        found = found.replace(weights=np.ones_like(found.weights))
    return found


def cut(batch: Batch, length: int) -> Batch:
    """Return the first `length` tokens of each sequence; arrays without an entry per token stay as they are."""
    shape = batch.inputs.shape[:2]
    names = ("inputs", "targets", "weights", "valid", "segments", "positions")
    arrays = {name: getattr(batch, name) for name in names}
    return batch.replace(
        **{name: x[:, :length] for name, x in arrays.items() if x is not None and x.shape[:2] == shape}
    )


def arguments_of(batch: Batch) -> dict[str, Any]:
    """Return the arguments of the model that a batch gives beside its inputs."""
    return {name: value for name, value in batch.given.items() if value is not None}


def widen(x: Any) -> np.ndarray:
    """Return the array, in float64 where it holds real numbers."""
    x = np.asarray(x)
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


def narrow(x: Any) -> np.ndarray:
    """Return the array, in float32 where it is float64."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 else x
