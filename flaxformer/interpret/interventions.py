"""Interventions as data: edits that replace activations, of all heads and positions or of some.

Each function returns edits for `model.apply(edit=…)`: a mapping from paths to pytrees, which can be an argument of
functions that are compiled or mapped. `combine` joins several.

>>> apply(params, config, tokens, edit=ablate("blocks/1/attention", heads=[0, 2]))
>>> clean = activations_at(params, config, tokens, "blocks/0/attention/heads")
>>> apply(params, config, other_tokens, edit=patch(clean, positions=[-1]))    # activation patching
>>> apply(params, config, tokens, edit=patch(means(clean), heads=[1]))        # mean ablation
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer.core.points import Edit, edit_after
from flaxformer.core.pytree import Node
from flaxformer.system.errors import UserError

BRANCHES = ("attention", "cross_attention", "feed_forward")
HEAD_AXES = {"query": -2, "key": -2, "value": -2, "heads": -2, "logits": -3, "weights": -3}
"""Axis of the heads at the points that have one; at "key" and "value" it is that of the key-value heads."""
TOKEN_AXES = {"query": -3, "key": -3, "value": -3, "heads": -3, "logits": -2, "weights": -2}
"""Axis of the positions, at "logits" and "weights" of those of the queries; −2 at all other points."""
Indices = Int[Array, "n"] | Bool[Array, "n"] | Sequence[int] | int
"""Numbers of heads or positions, in which negative ones count from the end; or a boolean for each of them."""


class Selection(Node):
    """Heads and positions of the activations at a point; None for all.

    path: path or pattern, which gives the axes of heads and positions and is named in messages.
    count: number of tokens before these activations, during decoding; None for activations of whole sequences.
    """

    path: str = flax.struct.field(pytree_node=False)
    heads: Int[Array, "n"] | Bool[Array, "n"] | None = None
    positions: Int[Array, "n"] | Bool[Array, "n"] | None = None
    count: Int[Array, ""] | None = None

    def mask(self, x: Float[Array, "..."]) -> Bool[Array, "..."] | None:
        """Return a mask that broadcasts to x, True where x is selected; None for all of it.

        Raises:
          UserError: the point has no heads, or no head or position of a number.
        """
        name = self.path.rpartition("/")[2]
        mask = None
        for kind, indices, axis in (
            ("heads", self.heads, HEAD_AXES.get(name)),
            ("positions", self.positions, TOKEN_AXES.get(name, -2)),
        ):
            if indices is None:
                continue
            if axis is None:
                points = ", ".join(HEAD_AXES)
                raise UserError(
                    f"heads is given for '{self.path}', which has none; expected one of the points {points}"
                )
            if kind == "positions" and self.count is not None:
                axis_mask = _is_in(indices, self.count + jnp.arange(x.shape[axis]), self.path)
            else:
                axis_mask = _one_hot(indices, x.shape[axis], kind, self.path)
            axis_mask = axis_mask.reshape([-1 if n == axis else 1 for n in range(-x.ndim, 0)])
            mask = axis_mask if mask is None else mask & axis_mask
        return mask

    def replace_in(self, x: Float[Array, "..."], values: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return x with the values, of the same shape, in place of what is selected."""
        mask = self.mask(x)
        return values if mask is None else jnp.where(mask, values, x)


class Replacement(Node):
    """x ← values at a selection; the values broadcast to the shape of x."""

    selection: Selection
    values: Float[Array, "..."]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the activation after the replacement."""
        values = jnp.asarray(self.values)
        if _broadcast_shape(values.shape, x.shape) != x.shape:
            raise UserError(
                f"the values for '{self.selection.path}' have shape {list(values.shape)}; expected one that broadcasts "
                f"to {list(x.shape)}"
            )
        return self.selection.replace_in(x, jnp.broadcast_to(values, x.shape).astype(x.dtype))

    def after(self, count: int | Int[Array, ""]) -> "Replacement":
        """Return the replacement in activations of tokens that follow `count` others; see `points.Edit`."""
        return self.replace(selection=self.selection.replace(count=jnp.asarray(count)))


class Resampling(Node):
    """x ← activations of another sequence of the batch at a selection.

    Sequence i has the activations of sequence (i + s) mod B, with one random s in 1 … B − 1 that depends on the key
    alone: all points that are resampled by one key have activations of the same sequence.
    """

    selection: Selection
    key: Array

    def __call__(self, x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        """Return the activation after the replacement."""
        if x.shape[0] < 2:
            raise UserError(f"resample of '{self.selection.path}' has {x.shape[0]} sequence; expected at least 2")
        shift = jax.random.randint(self.key, (), 1, x.shape[0])
        return self.selection.replace_in(x, jnp.roll(x, -shift, axis=0))

    def after(self, count: int | Int[Array, ""]) -> "Resampling":
        """Return the replacement in activations of tokens that follow `count` others; see `points.Edit`."""
        return self.replace(selection=self.selection.replace(count=jnp.asarray(count)))


class Sequential(Node):
    """Several edits of one point, one after another."""

    edits: tuple[Edit, ...]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the activation after all edits."""
        for edit in self.edits:
            x = edit(x)
        return x

    def after(self, count: int | Int[Array, ""]) -> "Sequential":
        """Return the edits of tokens that follow `count` others; see `points.Edit`."""
        return Sequential(tuple(edit_after(edit, count) for edit in self.edits))


class _Make(Protocol):
    def __call__(self, selection: Selection) -> Edit: ...


def ablate(
    path: str | Sequence[str],
    *,
    heads: Indices | None = None,
    positions: Indices | None = None,
    value: float | Float[Array, "..."] = 0.0,
) -> dict[str, Edit]:
    """Return the edits that replace activations by a value, by default zero (zero ablation).

    Args:
      path: path or pattern of a point, or several; of a branch, such as "blocks/1/attention", its "output", or with
        heads its "heads".
      heads: numbers of heads, in which negative ones count from the end, or a boolean per head; None for all.
      positions: numbers of positions in the sequence, likewise; None for all.
      value: what they are replaced by; it broadcasts to the activation. For mean ablation, see `means`.
    """
    return _edits(path, heads, positions, lambda selection: Replacement(selection, jnp.asarray(value)))


def resample(
    path: str | Sequence[str], key: Array, *, heads: Indices | None = None, positions: Indices | None = None
) -> dict[str, Edit]:
    """Return the edits that replace activations by those of another sequence of the batch; see `Resampling`.

    Args:
      path, heads, positions: as for `ablate`.
      key: random key.
    """
    return _edits(path, heads, positions, lambda selection: Resampling(selection, key))


def patch(
    activations: Mapping[str, Float[Array, "..."]],
    *,
    heads: Indices | None = None,
    positions: Indices | None = None,
) -> dict[str, Edit]:
    """Return the edits that replace activations by given ones (activation patching).

    Args:
      activations: values by the path of the point, such as `model.activations_at` gives of another input, or `means`.
      heads, positions: as for `ablate`.
    """
    edits: dict[str, Edit] = {}
    for path, values in activations.items():
        edits |= {path: Replacement(_selection(path, heads, positions), values)}
    return edits


def means(
    activations: Mapping[str, Float[Array, "..."]],
    valid: Bool[Array, "*batch T"] | None = None,
    *,
    per_position: bool = False,
) -> dict[str, Float[Array, "..."]]:
    """Return the mean of each activation over the batch and the positions, with axes of size 1, for `patch`.

    Args:
      activations: by path, as `model.activations_at` gives them; at "key", "value", "logits" and "weights", the valid
        tokens must be those of the axis of `TOKEN_AXES`.
      valid: False at padding, which does not count.
      per_position: True for a mean over the batch alone.
    """
    means_by_path = {}
    for path, x in activations.items():
        total, count = sum_over_tokens(path, x, valid, per_position)
        means_by_path[path] = total / jnp.maximum(count, 1)
    return means_by_path


def sum_over_tokens(
    path: str, x: Float[Array, "..."], valid: Bool[Array, "*batch T"] | None, per_position: bool
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the sum of an activation over valid tokens of the batch, and their number, with axes of size 1."""
    name = path.rpartition("/")[2]
    axis, batch = x.ndim + TOKEN_AXES.get(name, -2), x.ndim - (3 if name in HEAD_AXES else 2)
    counted = jnp.broadcast_to(jnp.ones((), bool) if valid is None else _align(valid, x.ndim, axis), x.shape)
    over = (*range(batch), *(() if per_position else (axis,)))
    return jnp.where(counted, x, 0).sum(over, keepdims=True), counted.sum(over, keepdims=True)


def combine(*edits: Mapping[str, Edit]) -> dict[str, Edit]:
    """Return the union of several edits; edits of one path are applied in the given order."""
    combined: dict[str, list[Edit]] = {}
    for by_path in edits:
        for path, edit in by_path.items():
            combined.setdefault(path, []).append(edit)
    return {
        path: path_edits[0] if len(path_edits) == 1 else Sequential(tuple(path_edits))
        for path, path_edits in combined.items()
    }


def _edits(path: str | Sequence[str], heads: Indices | None, positions: Indices | None, make: _Make) -> dict[str, Edit]:
    paths = [path] if isinstance(path, str) else list(path)
    selections = [_selection(_point(point, heads is not None), heads, positions) for point in paths]
    return {selection.path: make(selection) for selection in selections}


def _selection(path: str, heads: Indices | None, positions: Indices | None) -> Selection:
    return Selection(
        path, *(None if indices is None else jnp.atleast_1d(jnp.asarray(indices)) for indices in (heads, positions))
    )


def _point(path: str, has_heads: bool) -> str:
    """Return the path of the point that a branch stands for; that of a point itself."""
    if path.rpartition("/")[2] not in BRANCHES:
        return path
    return f"{path}/heads" if has_heads else f"{path}/output"


def _align(valid: Bool[Array, "*batch T"], rank: int, axis: int) -> Bool[Array, "..."]:
    """Return a mask of tokens with the axis T at `axis`, and axes of size 1 around it."""
    batch = valid.shape[:-1]
    between = axis - len(batch)
    return valid.reshape(*batch, *(1,) * between, valid.shape[-1], *(1,) * (rank - axis - 1))


def _one_hot(indices: Int[Array, "n"] | Bool[Array, "n"], size: int, kind: str, path: str) -> Bool[Array, "size"]:
    """Return True at the given numbers; traced ones are not checked. Booleans are returned as they are."""
    if indices.dtype == bool:
        if indices.shape != (size,):
            raise UserError(f"{kind} has {indices.size} booleans for '{path}'; expected {size}")
        return indices
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise UserError(f"{kind} is {np.asarray(indices).tolist()} for '{path}'; expected whole numbers")
    if not isinstance(indices, jax.core.Tracer):
        wrong = [number for number in np.asarray(indices).tolist() if not -size <= number < size]
        if wrong:
            raise UserError(f"{kind} has {wrong[0]} for '{path}', which has {size} of them; expected 0 to {size - 1}")
    return (jnp.arange(size)[:, None] == indices[None, :] % size).any(1)


def _is_in(
    positions: Int[Array, "n"] | Bool[Array, "n"], token_positions: Int[Array, "T"], path: str
) -> Bool[Array, "T"]:
    """Return True where a position of a growing sequence is one of those given; traced ones are not checked."""
    if positions.dtype == bool:
        raise UserError(f"positions has {positions.size} booleans for '{path}'; expected numbers, as a sequence grows")
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise UserError(f"positions is {np.asarray(positions).tolist()} for '{path}'; expected whole numbers")
    if not isinstance(positions, jax.core.Tracer) and (np.asarray(positions) < 0).any():
        number = int(np.asarray(positions).min())
        raise UserError(
            f"positions has {number} for '{path}'; expected at least 0, since a growing sequence has no last token"
        )
    return (token_positions[:, None] == positions[None, :]).any(1)


def _broadcast_shape(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of both broadcast together; None if they do not fit."""
    try:
        return np.broadcast_shapes(shape, target)
    except ValueError:
        return None
