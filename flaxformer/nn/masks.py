"""Attention masks: which keys a query may attend to, combined by `&` (intersection) and `|` (union).

>>> mask = Causal() & Padding(lengths_to_valid(lengths, 16)) & Window(8)
>>> dot_product_attention(query, key, value, mask=mask)

A mask is turned into booleans only when a backend needs them, whole (`matrix`) or a part at a time (`tile`), so that a
kernel can recognise masks that it implements. All masks are boolean, True = attend. Source: "What Happens in A
Transformer Layer", masks in self-attention.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from flaxformer.core.pytree import Node


class Span(NamedTuple):
    """Consecutive queries or keys: `size` of them, from index `start` on."""

    start: int | Int[Array, ""]
    size: int

    @property
    def indices(self) -> Int[Array, "n"]:
        """The indices start, start + 1, …"""
        return jnp.arange(self.size) + self.start

    def of(self, x: Shaped[Array, "*shape"], axis: int = -1) -> Shaped[Array, "*shape"]:
        """Return this part of an array along an axis; an axis of size 1, which broadcasts, stays whole."""
        if x.shape[axis] in (1, self.size):
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.start, self.size, axis)


class Mask(Node):
    """Base of the masks: for each of T queries, the keys among S that it may attend to.

    A subclass defines `tile`. One that defines `matrix` alone is never computed part by part.
    """

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        """Return the mask as booleans [T, S], or with batch axes [*batch, 1, T, S], to broadcast over heads."""
        self.check(queries, keys)
        part = self.tile(Span(0, queries), Span(0, keys))
        return jnp.broadcast_to(part, (*part.shape[:-2], queries, keys))

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*#batch #T #S"]:
        """Return a part of `matrix`, or booleans that broadcast to it, for some queries and some keys."""
        raise NotImplementedError(f"{type(self).__name__} does not define `tile`")

    def check(self, queries: int, keys: int) -> None:
        """Check the shapes of the mask.

        Raises:
          ValueError: they do not fit so many queries and keys.
        """

    def __and__(self, other: "Mask | None") -> "Mask":
        return self if other is None else Both(first=self, second=other)

    __rand__ = __and__

    def __or__(self, other: "Mask") -> "Mask":
        return Either(first=self, second=other)


class Both(Mask):
    """Intersection: a query attends to a key if both masks allow it."""

    first: Mask
    second: Mask

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return jnp.logical_and(*_equalize_ranks(self.first.matrix(queries, keys), self.second.matrix(queries, keys)))

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*#batch #T #S"]:
        return jnp.logical_and(*_equalize_ranks(self.first.tile(queries, keys), self.second.tile(queries, keys)))

    def check(self, queries: int, keys: int) -> None:
        self.first.check(queries, keys)
        self.second.check(queries, keys)


class Either(Mask):
    """Union: a query attends to a key if at least one of the masks allows it."""

    first: Mask
    second: Mask

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return jnp.logical_or(*_equalize_ranks(self.first.matrix(queries, keys), self.second.matrix(queries, keys)))

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*#batch #T #S"]:
        return jnp.logical_or(*_equalize_ranks(self.first.tile(queries, keys), self.second.tile(queries, keys)))

    def check(self, queries: int, keys: int) -> None:
        self.first.check(queries, keys)
        self.second.check(queries, keys)


class Causal(Mask):
    """Query t attends to key s if s ≤ t + offset; with a cache, offset is the number of keys before the first query."""

    offset: int | Int[Array, ""] = 0

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "T S"]:
        return _distance(queries, keys, self.offset) >= 0


class Window(Mask):
    """A query attends to keys at a distance below `width`; with `Causal`, to the last `width` keys.

    query, key: positions between which distances are measured; None for 0, 1, 2 …. With padding or a cache, the
        position of a token differs from its index.
    """

    width: int | Int[Array, ""]
    query: Int[Array, "*batch T"] | None = None
    key: Int[Array, "*batch S"] | None = None

    def check(self, queries: int, keys: int) -> None:
        if self.query is None and self.key is None:
            return
        if self.query is None or self.key is None:
            raise ValueError("Window has the positions of either queries or keys; expected both, or neither")
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            shapes = f"{self.query.shape} and {self.key.shape}"
            raise ValueError(f"Window has positions of shapes {shapes}; expected last axes of {queries} and {keys}")

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*batch T S"]:
        if self.query is None or self.key is None:
            return jnp.abs(_distance(queries, keys, 0)) < self.width
        near = jnp.abs(queries.of(self.query)[..., :, None] - keys.of(self.key)[..., None, :]) < self.width
        return near if near.ndim == 2 else near[..., None, :, :]


class Prefix(Mask):
    """Every query attends to the first length[b] keys; `Causal() | Prefix(length)` masks a prefix language model.

    `Causal() & Prefix(length)` masks padding at the end, in a form that fused kernels take.

    Source: Raffel et al. 2020, section 3.2.1.
    """

    length: Int[Array, "*batch"]

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*batch 1 1 S"]:
        inside = jnp.expand_dims(keys.indices, range(self.length.ndim)) < self.length[..., None]
        return inside[..., None, None, :]


class Padding(Mask):
    """No query attends to padding; `valid` is False at keys that are padding."""

    valid: Bool[Array, "*batch S"]

    def check(self, queries: int, keys: int) -> None:
        if (length := self.valid.shape[-1]) != keys:
            raise ValueError(f"Padding.valid has shape {self.valid.shape}, for {length} keys; expected {keys} keys")

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*batch 1 1 S"]:
        return keys.of(self.valid)[..., None, None, :]


class Segments(Mask):
    """A query attends to keys of its own segment, such as the same document in a packed sequence."""

    query: Int[Array, "*batch T"]
    key: Int[Array, "*batch S"]

    def check(self, queries: int, keys: int) -> None:
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            raise ValueError(
                f"Segments have shapes {self.query.shape} and {self.key.shape}; "
                f"expected last axes of {queries} and {keys}"
            )

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*batch 1 T S"]:
        return (queries.of(self.query)[..., :, None] == keys.of(self.key)[..., None, :])[..., None, :, :]


class Explicit(Mask):
    """Mask given as booleans that broadcast to [..., N, T, S]."""

    allowed: Bool[Array, "*batch T S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return self.allowed

    def tile(self, queries: Span, keys: Span) -> Bool[Array, "*batch #T #S"]:
        allowed = jnp.asarray(self.allowed)
        allowed = allowed.reshape((1,) * (2 - allowed.ndim) + allowed.shape)
        return queries.of(keys.of(allowed), axis=-2)


def lengths_to_valid(lengths: Int[Array, "*batch"], size: int) -> Bool[Array, "*batch {size}"]:
    """Return booleans that are True at the first lengths[b] of `size` tokens: the `valid` of `Padding`."""
    return jnp.expand_dims(jnp.arange(size), range(lengths.ndim)) < lengths[..., None]


def _equalize_ranks(first: Array, second: Array) -> tuple[Array, Array]:
    """Add leading axes to one of two arrays, so that they broadcast."""
    rank = max(first.ndim, second.ndim)
    return jnp.expand_dims(first, range(rank - first.ndim)), jnp.expand_dims(second, range(rank - second.ndim))


def _distance(queries: Span, keys: Span, offset: int | Int[Array, ""]) -> Int[Array, "T S"]:
    return (queries.indices + offset)[:, None] - keys.indices[None, :]
