"""Attention masks: which keys a query may attend to, combined by `&` (intersection) and `|` (union).

>>> mask = Causal() & Padding(lengths_to_valid(lengths, 16)) & Window(8)
>>> dot_product_attention(query, key, value, mask=mask)

A mask is turned into a matrix only when a backend needs it, so that a kernel can recognise masks that it implements.
All masks are boolean, True = attend. Source: "What Happens in A Transformer Layer", masks in self-attention.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.pytree import Node


class Mask(Node):
    """Base of the masks: for each of T queries, the keys among S that it may attend to."""

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        """Return the mask as booleans [T, S], or with batch axes [*batch, 1, T, S], to broadcast over heads."""
        raise NotImplementedError

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


class Either(Mask):
    """Union: a query attends to a key if at least one of the masks allows it."""

    first: Mask
    second: Mask

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return jnp.logical_or(*_equalize_ranks(self.first.matrix(queries, keys), self.second.matrix(queries, keys)))


class Causal(Mask):
    """Query t attends to key s if s ≤ t + offset; with a cache, offset is the number of keys before the first query."""

    offset: int | Int[Array, ""] = 0

    def matrix(self, queries: int, keys: int) -> Bool[Array, "T S"]:
        return _distance(queries, keys, self.offset) >= 0


class Window(Mask):
    """A query attends to keys at a distance below `width`; with `Causal`, to the last `width` keys.

    query, key: positions between which distances are measured; None for 0, 1, 2 …. With padding or a cache, the
        position of a token differs from its index.
    """

    width: int | Int[Array, ""]
    query: Int[Array, "*batch T"] | None = None
    key: Int[Array, "*batch S"] | None = None

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        if self.query is None and self.key is None:
            return jnp.abs(_distance(queries, keys, 0)) < self.width
        if self.query is None or self.key is None:
            raise ValueError("Window has the positions of either queries or keys; expected both, or neither")
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            found = f"{self.query.shape} and {self.key.shape}"
            raise ValueError(f"Window has positions of shapes {found}; expected last axes of {queries} and {keys}")
        near = jnp.abs(self.query[..., :, None] - self.key[..., None, :]) < self.width
        return near if near.ndim == 2 else near[..., None, :, :]


class Prefix(Mask):
    """Every query attends to the first length[b] keys; `Causal() | Prefix(length)` masks a prefix language model.

    Source: Raffel et al. 2020, section 3.2.1.
    """

    length: Int[Array, "*batch"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        inside = lengths_to_valid(self.length, keys)
        return jnp.broadcast_to(inside[..., None, None, :], (*inside.shape[:-1], 1, queries, keys))


class Padding(Mask):
    """No query attends to padding; `valid` is False at keys that are padding."""

    valid: Bool[Array, "*batch S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        *batch, length = self.valid.shape
        if length != keys:
            raise ValueError(f"Padding.valid has shape {self.valid.shape}, for {length} keys; expected {keys} keys")
        return jnp.broadcast_to(self.valid[..., None, None, :], (*batch, 1, queries, length))


class Segments(Mask):
    """A query attends to keys of its own segment, such as the same document in a packed sequence."""

    query: Int[Array, "*batch T"]
    key: Int[Array, "*batch S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            raise ValueError(
                f"Segments have shapes {self.query.shape} and {self.key.shape}; "
                f"expected last axes of {queries} and {keys}"
            )
        return (self.query[..., :, None] == self.key[..., None, :])[..., None, :, :]


class Explicit(Mask):
    """Mask given as booleans that broadcast to [..., N, T, S]."""

    allowed: Bool[Array, "*batch T S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return self.allowed


def lengths_to_valid(lengths: Int[Array, "*batch"], size: int) -> Bool[Array, "*batch {size}"]:
    """Return booleans that are True at the first lengths[b] of `size` tokens: the `valid` of `Padding`."""
    return jnp.expand_dims(jnp.arange(size), range(lengths.ndim)) < lengths[..., None]


def _equalize_ranks(first: Array, second: Array) -> tuple[Array, Array]:
    """Add leading axes to one of two arrays, so that they broadcast."""
    rank = max(first.ndim, second.ndim)
    return jnp.expand_dims(first, range(rank - first.ndim)), jnp.expand_dims(second, range(rank - second.ndim))


def _distance(queries: int, keys: int, offset: int | Int[Array, ""]) -> Int[Array, "T S"]:
    return (jnp.arange(queries) + offset)[:, None] - jnp.arange(keys)[None, :]
