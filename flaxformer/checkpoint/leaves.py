"""Leaves of a state as they are on disk: named by their path, one per layer in both layouts.

Stacked weights of scanned layers [L, ...] are stored as `blocks/0/...` to `blocks/(L − 1)/...`, like unrolled ones, and
so are the optimizer's moments, if all leaves of such a tree have the leading axis L. A checkpoint that one layout wrote
can therefore be read in the other. Scanned layers that differ (`Periods`) are stored by their index in the stack too. A
random key is stored as its words, with its generator in the dtype: `key<threefry2x32>`.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, KeyPath, SequenceKey
from jax.typing import ArrayLike
from jaxtyping import PyTree

from flaxformer.core.params import Parameters, SubtreeRule, path_name, rule_of
from flaxformer.model.layout import Periods


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and dtype of one array on disk."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def storage_dtype(self) -> str:
        """The dtype of the stored array: that of a random key's words for a key."""
        return "uint32" if self.dtype.startswith("key<") else self.dtype

    @property
    def bytes(self) -> int:
        """Size of the stored array."""
        return math.prod(self.shape) * jnp.dtype(self.storage_dtype).itemsize


def describe_leaves(tree: PyTree) -> dict[str, Leaf]:
    """Return shape and dtype of every leaf by its name on disk; leaves are arrays or `jax.ShapeDtypeStruct`s."""
    leaves = [describe_leaf(leaf) for leaf in jax.tree.leaves(tree)]
    rows = {}
    for name, index, layer in stored_names(tree):
        if name in rows:
            raise ValueError(f"two leaves are named {name}; expected one")
        leaf = leaves[index]
        rows[name] = leaf if layer is None else Leaf(leaf.shape[1:], leaf.dtype)
    return rows


def first_difference(stored: Mapping[str, Leaf], expected: Mapping[str, Leaf], partial: bool = False) -> str | None:
    """Return in words how the first leaf differs from the expected one; None if all agree.

    Args:
      stored: the leaves of a checkpoint.
      expected: the leaves of the config.
      partial: ignore leaves that are not expected.
    """
    for name, leaf in expected.items():
        if name not in stored:
            return f"checkpoint has no {name}, the config has {list(leaf.shape)}"
        if stored[name].shape != leaf.shape:
            return f"checkpoint has {name} {list(stored[name].shape)}, the config has {list(leaf.shape)}"
        if stored[name].dtype != leaf.dtype:
            return f"checkpoint has {name} in {stored[name].dtype}, the config has {leaf.dtype}"
    if unexpected := [] if partial else [name for name in stored if name not in expected]:
        return f"checkpoint has {unexpected[0]} {list(stored[unexpected[0]].shape)}, the config has none"
    return None


def digest(data: np.ndarray | bytes) -> str:
    """Return the BLAKE2b digest of the bytes, 128 bits in hexadecimal."""
    buffer = as_bytes(data).data if isinstance(data, np.ndarray) else data
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array in the order of its axes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def is_key(leaf: object) -> bool:
    """True for a random key."""
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def key_generator(leaf: jax.Array | jax.ShapeDtypeStruct) -> str:
    """Return the name of the random number generator of a key or of a key's `ShapeDtypeStruct`."""
    names: list[str] = []
    jax.eval_shape(lambda key: names.append(str(jax.random.key_impl(key))), leaf)
    return names[0]


def describe_leaf(leaf: ArrayLike | jax.ShapeDtypeStruct) -> Leaf:
    """Return shape and dtype of a leaf on disk."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and is_key(leaf):
        return Leaf(jax.eval_shape(jax.random.key_data, leaf).shape, f"key<{key_generator(leaf)}>")
    array = leaf if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else np.asarray(leaf)
    return Leaf(tuple(array.shape), str(array.dtype))


def stored_names(tree: PyTree) -> Iterator[tuple[str, int, int | None]]:
    """Yield (name on disk, index of the leaf, index in its leading axis of layers); without such an axis, None."""
    depths: dict[int, int | None] = {}
    for index, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        stack = _stack_on(path, tree, depths)
        if stack is None:
            yield path_name(path), index, None
            continue
        for row in range(stack.depth):
            layer = SequenceKey(row * stack.period + stack.place)
            yield path_name((*path[: stack.begin], layer, *path[stack.end :])), index, row


@dataclasses.dataclass(frozen=True)
class _Stack:
    """A tree of stacked layers on the path of a leaf: every `period`-th layer from index `place` on."""

    begin: int
    end: int
    """path[begin:end] is the place in the period; it is empty if the period is 1."""
    depth: int
    period: int = 1
    place: int = 0


def _stack_on(path: KeyPath, tree: PyTree, depths: dict[int, int | None]) -> _Stack | None:
    """Return the stacked layers on a path; None if there are none, or if their leaves share no leading axis."""
    node = tree
    for place, key in enumerate(path):
        field, parent = getattr(key, "name", None), node
        if isinstance(key, GetAttrKey):
            node = getattr(parent, key.name)
        elif isinstance(key, SequenceKey | DictKey):
            node = parent[key.idx if isinstance(key, SequenceKey) else key.key]
        else:
            break
        if isinstance(parent, Parameters) and isinstance(node, Parameters) and _repeats(parent, field):
            if id(node) not in depths:
                depths[id(node)] = _depth(node)
            depth, begin = depths[id(node)], place + 1
            if depth is None:
                return None
            if isinstance(node, Periods):
                return _Stack(begin, begin + 2, depth, len(node.blocks), path[begin + 1].idx)
            return _Stack(begin, begin, depth)
    return None


def _repeats(parent: Parameters, name: str | None) -> bool:
    """True if a field of a parameter tree holds layers."""
    rule = None if name is None else rule_of(type(parent).__dataclass_fields__[name])
    return isinstance(rule, SubtreeRule) and rule.repeat is not None


def _depth(stacked: PyTree) -> int | None:
    """Return the size of the leading axis that all leaves share; None if they share none, as factored moments do."""
    sizes = {describe_leaf(leaf).shape[:1] for leaf in jax.tree.leaves(stacked)}
    return next(iter(sizes))[0] or None if len(sizes) == 1 and sizes != {()} else None
