"""Masks as a small algebra: each says which keys a query may attend to, `&` intersects them, `|` unites them.

>>> mask = Causal() & Padding(lengths_to_valid(lengths, 16)) & Window(8)
>>> dot_product_attention(query, key, value, mask=mask)

A mask stays symbolic until attention asks for its matrix, so a kernel that knows causality by itself can see it.
All masks are boolean, True = attend. Source: "What Happens in A Transformer Layer", masks in self-attention.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.pytree import Node


class Mask(Node):
    """Mask: for each of T queries, the keys among S that it may attend to."""

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        """The mask as booleans; with batch axes, these are [..., 1, T, S] to broadcast over heads."""
        raise NotImplementedError

    def __and__(self, other: "Mask | None") -> "Mask":
        return self if other is None else Both(first=self, second=other)

    __rand__ = __and__

    def __or__(self, other: "Mask") -> "Mask":
        return Either(first=self, second=other)


class Both(Mask):
    """Attend where both masks allow it."""

    first: Mask
    second: Mask

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return jnp.logical_and(*_alike(self.first.matrix(queries, keys), self.second.matrix(queries, keys)))


class Either(Mask):
    """Attend where one of the masks allows it."""

    first: Mask
    second: Mask

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return jnp.logical_or(*_alike(self.first.matrix(queries, keys), self.second.matrix(queries, keys)))


class Causal(Mask):
    """Query t sees key s when s ≤ t + offset; offset is the number of keys before the first query (a cache)."""

    offset: int | Int[Array, ""] = 0

    def matrix(self, queries: int, keys: int) -> Bool[Array, "T S"]:
        return _distance(queries, keys, self.offset) >= 0


class Window(Mask):
    """A query sees keys at a distance below width; with `Causal`, its last `width` keys.

    Distances are between positions; None means 0, 1, 2 … (with padding or a cache, position and place differ).
    """

    width: int | Int[Array, ""]
    query: Int[Array, "*batch T"] | None = None
    key: Int[Array, "*batch S"] | None = None

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        if self.query is None and self.key is None:
            return jnp.abs(_distance(queries, keys, 0)) < self.width
        if self.query is None or self.key is None:
            raise ValueError("Window has positions of one side alone; expected query and key, or neither")
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            found = f"{self.query.shape} and {self.key.shape}"
            raise ValueError(f"Window has positions {found}; expected {queries} and {keys} last")
        near = jnp.abs(self.query[..., :, None] - self.key[..., None, :]) < self.width
        return near if near.ndim == 2 else near[..., None, :, :]


class Prefix(Mask):
    """Every query sees the first length[b] keys; `Causal() | Prefix(length)` is the mask of a prefix language model.

    Source: Raffel et al. 2020, section 3.2.1.
    """

    length: Int[Array, "*batch"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        inside = lengths_to_valid(self.length, keys)
        return jnp.broadcast_to(inside[..., None, None, :], (*inside.shape[:-1], 1, queries, keys))


class Padding(Mask):
    """No query sees a key that is padding; valid is True at real keys."""

    valid: Bool[Array, "*batch S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        *batch, length = self.valid.shape
        if length != keys:
            raise ValueError(f"Padding.valid is {self.valid.shape}, for {length} keys; expected {keys}")
        return jnp.broadcast_to(self.valid[..., None, None, :], (*batch, 1, queries, length))


class Segments(Mask):
    """A query sees keys of its own segment, so that documents packed into one sequence stay apart."""

    query: Int[Array, "*batch T"]
    key: Int[Array, "*batch S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch 1 T S"]:
        if (self.query.shape[-1], self.key.shape[-1]) != (queries, keys):
            raise ValueError(
                f"Segments are {self.query.shape} and {self.key.shape}; expected {queries} and {keys} last"
            )
        return (self.query[..., :, None] == self.key[..., None, :])[..., None, :, :]


class Explicit(Mask):
    """Any boolean matrix that broadcasts to [..., N, T, S]."""

    allowed: Bool[Array, "*batch T S"]

    def matrix(self, queries: int, keys: int) -> Bool[Array, "*batch T S"]:
        return self.allowed


def lengths_to_valid(lengths: Int[Array, "*batch"], size: int) -> Bool[Array, "*batch {size}"]:
    """True at the first lengths[b] of size places: the `valid` of `Padding`."""
    return jnp.expand_dims(jnp.arange(size), range(lengths.ndim)) < lengths[..., None]


def _alike(first: Array, second: Array) -> tuple[Array, Array]:
    """Both with the same rank, so that they broadcast."""
    rank = max(first.ndim, second.ndim)
    return jnp.expand_dims(first, range(rank - first.ndim)), jnp.expand_dims(second, range(rank - second.ndim))


def _distance(queries: int, keys: int, offset: int | Int[Array, ""]) -> Int[Array, "T S"]:
    return (jnp.arange(queries) + offset)[:, None] - jnp.arange(keys)[None, :]
