"""The leaves of a state as they lie on disk: named by their path, one a layer whatever the layout, on the host.

The stacked weights of scanned layers [L, ...] lie on disk as `blocks/0/...` to `blocks/(L − 1)/...`, as unrolled ones
do, and so do the optimizer's moments, wherever all leaves of such a tree have the leading axis L; so what one layout
wrote, the other reads. Scanned layers that differ (`Periods`) lie there likewise, each under its number in the stack.
A random key lies there as its words, with its kind in the dtype: `key<threefry2x32>`.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from flaxformer import distributed
from flaxformer.model.layout import Periods
from flaxformer.params import Parameters, path_name
from flaxformer.sharding import from_process_local


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and dtype of one array on disk."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def words(self) -> str:
        """The dtype of the numbers."""
        return "uint32" if self.dtype.startswith("key<") else self.dtype


def described(tree: Any) -> dict[str, Leaf]:
    """Every leaf by its name on disk; the tree holds arrays, or `jax.ShapeDtypeStruct`s."""
    leaves = [_described(leaf) for leaf in jax.tree.leaves(tree)]
    rows = {}
    for name, index, layer in _rows(tree):
        if name in rows:
            raise ValueError(f"two leaves are named {name}; expected one")
        leaf = leaves[index]
        rows[name] = leaf if layer is None else Leaf(leaf.shape[1:], leaf.dtype)
    return rows


def on_host(tree: Any) -> dict[str, np.ndarray]:
    """A copy of every leaf by its name on disk, which nothing that happens to the tree afterwards can change.

    Of several processes, each has to ask for it, and gets it whole.
    """
    leaves = jax.tree.leaves(tree)
    words = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    # Not np.asarray, which would keep signals waiting until the device is done. On a CPU it is a view.
    arrays = [np.array(array) for array in distributed.on_host(words)]
    return {name: arrays[index] if layer is None else arrays[index][layer, ...] for name, index, layer in _rows(tree)}


def from_first(arrays: Mapping[str, np.ndarray], leaves: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """The arrays of the first process, in all of them."""
    here = {name: arrays[name] if name in arrays else np.zeros(leaf.shape, leaf.words) for name, leaf in leaves.items()}
    return {name: distributed.broadcast(array) for name, array in here.items()}


def from_host(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A tree like `like`, in its layout and on its devices, of the arrays that `on_host` gave."""
    leaves, structure = jax.tree.flatten(like)
    parts: list[Any] = [None] * len(leaves)
    for name, index, layer in _rows(like):
        if layer is None:
            parts[index] = arrays[name]
        else:
            parts[index] = [*(parts[index] or []), arrays[name]]
    complete = [np.stack(part) if isinstance(part, list) else part for part in parts]
    return jax.tree.unflatten(structure, [_put_like(array, leaf) for array, leaf in zip(complete, leaves, strict=True)])


def difference(found: Mapping[str, Leaf], wanted: Mapping[str, Leaf], complete: bool = True) -> str | None:
    """Return how the first leaf that differs from what is wanted differs; with `whole`, or that it has over."""
    for name, leaf in wanted.items():
        if name not in found:
            return f"checkpoint has no {name}, the config wants {list(leaf.shape)}"
        if found[name].shape != leaf.shape:
            return f"checkpoint has {name} {list(found[name].shape)}, the config wants {list(leaf.shape)}"
        if found[name].dtype != leaf.dtype:
            return f"checkpoint has {name} in {found[name].dtype}, the config wants {leaf.dtype}"
    if over := [name for name in found if name not in wanted] if complete else []:
        return f"checkpoint has {over[0]} {list(found[over[0]].shape)}, the config has none"
    return None


def digest(data: np.ndarray | bytes) -> str:
    """BLAKE2b of the bytes, 128 bits in hexadecimal."""
    own = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else data
    return hashlib.blake2b(own, digest_size=16).hexdigest()


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _key_kind(leaf: Any) -> Any:
    """The random number generator of a key, or of the shape of one, which alone does not tell."""
    kinds: list[Any] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), leaf)
    return kinds[0]


def _described(leaf: Any) -> Leaf:
    if _is_key(leaf):
        return Leaf(jax.eval_shape(jax.random.key_data, leaf).shape, f"key<{_key_kind(leaf)}>")
    if not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    return Leaf(tuple(leaf.shape), str(leaf.dtype))


def _put_like(array: np.ndarray, like: Any) -> Any:
    """The array as the leaf is: a random key, on the leaf's devices, or on the host."""
    if not isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        return array
    if like.sharding is not None and not like.sharding.is_fully_addressable and not _is_key(like):
        return from_process_local(array, like.sharding)
    value = jax.random.wrap_key_data(jnp.asarray(array), impl=_key_kind(like)) if _is_key(like) else array
    # An array that no device was chosen for stays so, or it could not be used beside one that is elsewhere.
    chosen = like.committed if isinstance(like, jax.Array) else True
    return jax.device_put(value, like.sharding if chosen else None)


def _rows(tree: Any) -> Iterator[tuple[str, int, int | None]]:
    """Name on disk, number of the leaf, and which of the layers that are stacked in it, or None."""
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
    """A tree of stacked layers on the path of a leaf: every `period`-th layer from number `place` on."""

    begin: int
    end: int
    """Between the two, the path says which place of the period it is; nothing where the period is 1."""
    depth: int
    period: int = 1
    place: int = 0


def _stack_on(path: Any, tree: Any, depths: dict[int, int | None]) -> _Stack | None:
    """The stacked layers on a path; None where there are none, or no leading axis that all their leaves share."""
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


def _repeats(parent: Parameters, field: str | None) -> bool:
    return bool(type(parent).__dataclass_fields__[field].metadata.get("repeat"))  # type: ignore[index]


def _depth(stacked: Any) -> int | None:
    """The leading axis that all leaves share; None where they do not, as in factored moments: left as they are."""
    sizes = {_described(leaf).shape[:1] for leaf in jax.tree.leaves(stacked)}
    return next(iter(sizes))[0] or None if len(sizes) == 1 and sizes != {()} else None
