"""Edits of activations during decoding: arguments of compiled functions, and the check that they edit token by token.

Decoding reads the prompt, and then one token at a time. An edit has the same meaning there as in one forward pass over
the whole sequence if it changes each token on its own: f(x)[t] = f_t(x[t]), where f_t is `edit_after(f, t)`.
"""

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Mapping
from typing import Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit, Edits, checked_edit, edit_after, unknown_point
from flaxformer.core.pytree import Node
from flaxformer.model.call import PrefixInputs
from flaxformer.model.interface import points
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError

MAX_NUMBERS = 2**24
"""Largest size of the random activations of a check; longer sequences are checked up to the tokens that fit."""
MORE_KEYS = 3
"""Number of keys that a check appends, as a cache has entries after the last token."""


class EditArguments(Node):
    """Edits as an argument of a compiled function: their arrays are leaves, their functions are static."""

    arrays: tuple[Array, ...] = ()
    static: "_Static | None" = flax.struct.field(pytree_node=False, default=None)

    @classmethod
    def of(cls, edit: Mapping[str, Edit] | None) -> Self:
        """Return the argument for the edits of a call."""
        if not edit:
            return cls()
        leaves, structure = jax.tree.flatten(tuple(edit.items()))
        arrays = tuple(leaf for leaf in leaves if _is_array(leaf))
        constants = tuple(None if _is_array(leaf) else _Constant(leaf) for leaf in leaves)
        return cls(arrays, _Static(structure, constants))

    def edits(self) -> Edits | None:
        """Return the edits; None if there are none."""
        if self.static is None:
            return None
        arrays = iter(self.arrays)
        leaves = [next(arrays) if constant is None else constant.value for constant in self.static.constants]
        return Edits.of(dict(jax.tree.unflatten(self.static.structure, leaves)))


@dataclasses.dataclass(frozen=True)
class _Static:
    """Structure of some edits, and their leaves that are not arrays; None in place of an array."""

    structure: jax.tree_util.PyTreeDef
    constants: "tuple[_Constant | None, ...]"


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    """Path or function of an edit. Paths are equal by their text, functions if they are the same object."""

    value: object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return NotImplemented
        both = (self.value, other.value)
        return both[0] == both[1] if all(isinstance(value, str) for value in both) else both[0] is both[1]

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, str) else id(self.value)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int)


def check_edits(
    params: Transformer,
    config: ModelConfig,
    edit: Mapping[str, Edit] | None,
    rows: int,
    tokens: int,
    prefix_inputs: PrefixInputs,
) -> None:
    """Check that edits match points, and that they change each token of self-attention's sequence on its own.

    The points of the encoder, and keys and values of cross-attention, are computed once, for the whole source.

    Args:
      tokens: number of tokens that are read.

    Raises:
      UserError: an edit that matches no point or returns another shape; positions that are negative or booleans; or a
        function whose result for a token depends on the token's number or on other tokens.
    """
    if Edits.of(edit) is None:
        return
    assert edit is not None
    shapes = [
        points(params, config, jnp.zeros((rows, length), jnp.int32), **prefix_inputs)
        for length in (tokens, tokens - 1)
        if length
    ]
    seen = set()
    for pattern, function in edit.items():
        matched = fnmatch.filter(shapes[0], pattern)
        if not matched:
            raise unknown_point("edit", pattern, list(shapes[0]))
        for path in matched:
            full, shorter = shapes[0][path], shapes[-1].get(path)
            leaves, structure = jax.tree.flatten(full)
            kind = (id(function), path.rpartition("/")[2], structure, *((x.shape, x.dtype) for x in leaves))
            if kind in seen:
                continue
            seen.add(kind)
            jax.eval_shape(checked_edit(function, pattern, path), full)
            if not _is_source(path) and len(shapes) == 2:
                _check_each_token(function, pattern, path, full, shorter)


def _is_source(path: str) -> bool:
    """True for the activations that are computed once, for the whole source."""
    return path.startswith("encoder/") or path.endswith(("cross_attention/key", "cross_attention/value"))


def _check_each_token(function: Edit, pattern: str, path: str, full: PyTree, shorter: PyTree) -> None:
    """Check f(x)[t] = f_t(x[t]) on random activations, with further keys at points that have an axis of keys.

    Raises:
      UserError: it does not hold.
    """
    shapes, structure = jax.tree.flatten(full)
    axes = [_growing_axes(*pair) for pair in zip(shapes, jax.tree.leaves(shorter), strict=True)]
    if not all(axes):
        return  # an activation of the whole sequence
    per_token = max(
        math.prod(size for n, size in enumerate(x.shape) if n not in axis) for x, axis in zip(shapes, axes, strict=True)
    )
    length = shapes[0].shape[axes[0][0]]
    length = max(2, min(length, int((MAX_NUMBERS / per_token) ** (1 / max(map(len, axes))))))
    sizes = [
        tuple(length if n in axis else size for n, size in enumerate(x.shape))
        for x, axis in zip(shapes, axes, strict=True)
    ]
    dice = np.random.default_rng(0)
    x = [jnp.asarray(dice.normal(size=size)).astype(leaf.dtype) for size, leaf in zip(sizes, shapes, strict=True)]
    call = functools.partial(_edit_leaves, structure, pattern, path)

    def at_token(index: Array) -> list[Array]:
        token = [jax.lax.dynamic_slice_in_dim(leaf, index, 1, axis[0]) for leaf, axis in zip(x, axes, strict=True)]
        token = [_append(leaf, MORE_KEYS, axis[1:]) for leaf, axis in zip(token, axes, strict=True)]
        edited = call(edit_after(function, index), token)
        return [_crop(leaf, length, axis[1:]).squeeze(axis[0]) for leaf, axis in zip(edited, axes, strict=True)]

    each = jax.lax.map(at_token, jnp.arange(length))
    for alone, every, axis in zip(each, call(function, x), axes, strict=True):
        if not _are_close(jnp.moveaxis(alone, 0, axis[0]), every):
            raise UserError(
                f"edit['{pattern}'] at {path} depends on the number of a token or on other tokens; expected a function "
                "of each token on its own, since decoding computes one token per step. ablate, patch and resample of "
                "flaxformer.interpret take positions"
            )


def _edit_leaves(
    structure: jax.tree_util.PyTreeDef, pattern: str, path: str, function: Edit, leaves: list[Array]
) -> list[Array]:
    """Return the leaves of an activation after an edit."""
    return jax.tree.leaves(checked_edit(function, pattern, path)(jax.tree.unflatten(structure, leaves)))


def _growing_axes(full: jax.ShapeDtypeStruct, shorter: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Return the axes whose sizes grow with the sequence: that of the tokens, and that of the keys if there is one."""
    return tuple(n for n, sizes in enumerate(zip(full.shape, shorter.shape, strict=True)) if len(set(sizes)) == 2)


def _append(x: Array, count: int, axes: tuple[int, ...]) -> Array:
    """Append ones along some axes."""
    return jnp.pad(x, [(0, count if n in axes else 0) for n in range(x.ndim)], constant_values=1)


def _crop(x: Array, length: int, axes: tuple[int, ...]) -> Array:
    """Return the first entries along some axes."""
    return x[tuple(slice(length) if n in axes else slice(None) for n in range(x.ndim))]


def _are_close(x: Array, y: Array) -> bool:
    """True if two arrays agree up to the rounding of their dtype."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return bool((x == y).all())
    tolerance = float(jnp.finfo(x.dtype).eps) ** 0.5
    first, other = (np.asarray(array, np.float64) for array in (x, y))
    return np.allclose(first, other, rtol=tolerance, atol=tolerance, equal_nan=True)
