"""Sums over tokens in chunks, for functions whose values per token are too large to hold for all tokens at once."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from flaxformer.nn.formulations import Formulation

LARGE = 2**29
"""Numbers above which the logits of a batch are computed in chunks of tokens, and about as many per chunk.

They are 2 GiB in float32. A chunk then has about 10,700 tokens for 50,304 ids: enough that the sum of the gradient of
the table, which is read and written once per chunk, takes a small part of the time.
"""

ChunkFunction = Callable[[PyTree, Array, PyTree], PyTree]
"""function(shared, x, rows): a tree of sums over tokens, with x [tokens, D] and rows [tokens, ...]."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """Placement of sums [shards, ...], one per part of the batch on its own devices; by default, on one device."""

    place: Callable[[list[Array]], list[Array]] = lambda sums: sums
    """Give the gradients of `shared`, [shards, ...] each, their sharding."""
    add: Callable[[list[Array]], list[Array]] = lambda sums: [gradient.sum(0) for gradient in sums]
    """Return their sums over the shards."""


ONE = Shards()


def chunk_count(tokens: int, width: int, large: int = LARGE) -> int:
    """Return the number of chunks of `tokens` tokens with `width` numbers each, such that a chunk has about `large`.

    It is a divisor of the number of tokens, if there is one below twice the least number of chunks.
    """
    least = min(max(1, -(-tokens * width // large)), max(tokens, 1))
    return next((count for count in range(least, 2 * least) if tokens % count == 0), least)


@dataclasses.dataclass(frozen=True)
class Division:
    """Division of the tokens of a batch: into one part per shard, and each of these into chunks.

    The leading axis of the batch is divided into the shards first, so that no token leaves its device.

    Args:
      batch: shape of the batch in tokens, such as (B, T).
      shards: number of shards.
      count: number of chunks.
    """

    batch: tuple[int, ...]
    shards: int
    count: int

    def split(self, tree: PyTree) -> PyTree:
        """Return arrays [*batch, ...] as [chunks, shards, tokens, ...], padded with zeros at the end of each shard."""

        def split_array(x: Array) -> Array:
            feature_shape = x.shape[len(self.batch) :]
            x = x.reshape(self.shards, -1, *feature_shape)
            padding = -x.shape[1] % self.count
            x = jnp.pad(x, [(0, 0), (0, padding), *((0, 0) for _ in feature_shape)]) if padding else x
            return jnp.moveaxis(x.reshape(self.shards, self.count, -1, *feature_shape), 1, 0)

        return jax.tree.map(split_array, tree)

    def merge(self, tree: PyTree) -> PyTree:
        """Return arrays [chunks, shards, tokens, ...] as [*batch, ...]: the inverse of `split`."""

        def merge_array(x: Array) -> Array:
            x, feature_shape = jnp.moveaxis(x, 0, 1), x.shape[3:]
            x = x.reshape(self.shards, -1, *feature_shape)
            size = math.prod(self.batch) // self.shards
            return x[:, :size].reshape(*self.batch, *feature_shape)

        return jax.tree.map(merge_array, tree)


def _divide(shape: tuple[int, ...], shards: int, width: int) -> Division:
    """Return the division of a batch of this shape, with `width` numbers per token."""
    return Division(shape, shards, chunk_count(math.prod(shape) // shards, width, LARGE))


def _unsuitable_reason(shape: tuple[int, ...], shards: int, width: int) -> str | None:
    numbers = math.prod(shape) * width // shards
    return None if numbers > LARGE else f"{numbers:,} outputs; chunks save memory above {LARGE:,}"


FORMULATIONS = {
    "chunks": Formulation(
        _divide,
        gain="holds the outputs of a chunk alone; the largest chunks that fit are fastest (bench formulations)",
        unsuitable_reason=_unsuitable_reason,
    )
}


def map_chunks(function: ChunkFunction, shared: PyTree, x: Array, rows: PyTree, division: Division) -> PyTree:
    """Return the results of function(shared, x, rows) per token, [*batch, ...], computed for one chunk at a time."""
    cut = division.split((x, rows))
    return division.merge(jax.lax.map(lambda part: jax.vmap(function, (None, 0, 0))(shared, *part), cut))


def sum_chunks(
    function: ChunkFunction, shared: PyTree, x: Array, rows: PyTree, division: Division, shards: Shards = ONE
) -> PyTree:
    """Return Σ function(shared, x_i, rows_i) over chunks and shards; the gradient computes each chunk again.

    The gradients of `shared` are summed in float32 or wider, per shard, and over the shards once at the end.

    Args:
      function: pure, and without traced values in its closure; its result is a tree of scalars.
      x, rows: [*batch, ...]; only x has a gradient.
    """
    floats, rebuild = _partition(shared)
    return _sums(_Bound(function, division, shards, rebuild), floats, x, rows, _others(shared))


def sum_chunks_once(
    function: ChunkFunction, shared: PyTree, x: Array, rows: PyTree, division: Division, shards: Shards = ONE
) -> Float[Array, ""]:
    """Return `sum_chunks` of a function whose result is one scalar, with the gradient computed in the forward pass.

    A chunk is computed once: with the values of a chunk at hand, its gradient needs no second computation of them
    (Hsu et al. 2024, "Liger Kernel", section 3.2).
    """
    floats, rebuild = _partition(shared)
    return _sum_once(_Bound(function, division, shards, rebuild), floats, x, rows, _others(shared))


class _Bound:
    """A function of (floats, others, x, rows), the division of x and rows, and the sharding of its gradients."""

    def __init__(
        self, function: ChunkFunction, division: Division, shards: Shards, rebuild: Callable[..., PyTree]
    ) -> None:
        self.function, self.division, self.shards, self.rebuild = function, division, shards, rebuild

    def __call__(self, floats: list[Array], x: Array, rows: PyTree, constants: list[Array]) -> PyTree:
        return self.function(self.rebuild(floats, constants), x, rows)


def _is_float(x: object) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _partition(tree: PyTree) -> tuple[list[Array], Callable[[list[Array], list[Array]], PyTree]]:
    """Return the real numbers of a tree, and the function that builds the tree from these and its other leaves."""
    leaves, structure = jax.tree.flatten(tree)
    is_float = tuple(map(_is_float, leaves))

    def rebuild(floats: list[Array], constants: list[Array]) -> PyTree:
        real, constant = iter(floats), iter(constants)
        return jax.tree.unflatten(structure, [next(real) if is_real else next(constant) for is_real in is_float])

    return [jnp.asarray(leaf) for leaf, is_real in zip(leaves, is_float, strict=True) if is_real], rebuild


def _others(tree: PyTree) -> list[Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if not _is_float(leaf)]


def _scan(bound: _Bound, floats: list[Array], x: Array, rows: PyTree, constants: list[Array]) -> PyTree:
    def sum_shard(x: Array, rows: PyTree) -> PyTree:
        return bound(floats, x, rows, constants)

    def body(sums: PyTree, part: tuple[Array, PyTree]) -> tuple[PyTree, None]:
        chunk_sums = jax.vmap(sum_shard)(*part)
        return jax.tree.map(lambda total, shards: total + shards.sum(0), sums, chunk_sums), None

    x, rows = bound.division.split((x, rows))
    shapes = jax.eval_shape(sum_shard, *jax.tree.map(lambda leaf: leaf[0, 0], (x, rows)))
    sums, _ = jax.lax.scan(body, jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes), (x, rows))
    return sums


def _gradients(bound: _Bound, arguments: PyTree, cotangent: PyTree | None) -> tuple[PyTree, list[Array], Array]:
    """Return the sums, and their gradients with respect to the real numbers and x; a cotangent None is 1."""
    floats, x, rows, constants = arguments

    def differentiate_shard(x: Array, rows: PyTree) -> tuple[PyTree, list[Array], Array]:
        sums, pull = jax.vjp(lambda floats, x: bound(floats, x, rows, constants), floats, x)
        return sums, *pull(jax.tree.map(jnp.ones_like, sums) if cotangent is None else cotangent)

    def body(carry: PyTree, part: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
        sums, gradients = carry
        shard_sums, new_gradients, of_x = jax.vmap(differentiate_shard)(*part)
        sums = jax.tree.map(jnp.add, sums, shard_sums)
        added = [total + new.astype(total.dtype) for total, new in zip(gradients, new_gradients, strict=True)]
        return (sums, bound.shards.place(added)), of_x

    x, rows = bound.division.split((x, rows))
    shapes = jax.eval_shape(jax.vmap(differentiate_shard), *jax.tree.map(lambda leaf: leaf[0], (x, rows)))[0]
    zeros = [
        jnp.zeros((bound.division.shards, *leaf.shape), jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in floats
    ]
    start = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes), bound.shards.place(zeros)
    (sums, gradients), of_x = jax.lax.scan(body, start, (x, rows))
    # The barrier keeps the shape of the chunks out of later sums over tokens. libtpu 0.0.52 aborts where such
    # a sum is fused with a reshape from chunks whose length is not a multiple of 1,024 tokens.
    of_x = jax.lax.optimization_barrier(bound.division.merge(of_x))
    return jax.tree.map(lambda shards: shards.sum(0), sums), bound.shards.add(gradients), of_x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(bound: _Bound, floats: list[Array], x: Array, rows: PyTree, constants: list[Array]) -> PyTree:
    return _scan(bound, floats, x, rows, constants)


def _sums_forward(bound: _Bound, *arguments: PyTree) -> tuple[PyTree, PyTree]:
    return _scan(bound, *arguments), arguments


def _sums_backward(bound: _Bound, arguments: PyTree, cotangent: PyTree) -> tuple[PyTree, ...]:
    floats = arguments[0]
    _, of_floats, of_x = _gradients(bound, arguments, cotangent)
    return [gradient.astype(leaf.dtype) for gradient, leaf in zip(of_floats, floats, strict=True)], of_x, None, None


_sums.defvjp(_sums_forward, _sums_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_once(bound: _Bound, floats: list[Array], x: Array, rows: PyTree, constants: list[Array]) -> Float[Array, ""]:
    return _scan(bound, floats, x, rows, constants)


def _once_forward(bound: _Bound, *arguments: PyTree) -> tuple[Float[Array, ""], PyTree]:
    floats = arguments[0]
    total, of_floats, of_x = _gradients(bound, arguments, None)
    return total, (of_floats, of_x, [jnp.zeros((), leaf.dtype) for leaf in floats])


def _once_backward(bound: _Bound, residuals: PyTree, cotangent: Float[Array, ""]) -> tuple[PyTree, ...]:
    of_floats, of_x, kinds = residuals
    of_floats = [(gradient * cotangent).astype(kind.dtype) for gradient, kind in zip(of_floats, kinds, strict=True)]
    return of_floats, (of_x * cotangent).astype(of_x.dtype), None, None


_sum_once.defvjp(_once_forward, _once_backward)
