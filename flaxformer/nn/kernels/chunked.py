"""Attention in tiles, in plain JAX: neither pass holds more than `MAX_LOGITS` logits per head.

Forward, each query has the running maximum m of its logits, the sum l of e^(logit − m), and the sum o of these weights
times the values; a tile of keys updates them, and y = o / l. Backward, the weights of each tile are computed again
from m + log l. Tiles that the mask excludes by its band, such as those above the diagonal, are not computed.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe and Staats 2021,
"Self-attention does not need O(n²) memory"; Dao et al. 2022, "FlashAttention", algorithms 1 and 4.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from flaxformer.nn.heads import broadcast_grouped, group_heads, heads_first, heads_last, logits_shape, with_rank
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.structure import Structure, as_mask, has_tiles, structure
from flaxformer.nn.masks import Mask, Span

MAX_LOGITS = 512 * 512
"""Logits per head (T · S) up to which plain products are used, and in each tile above."""
SIDE = 512
"""Queries, and keys, per tile; more of one if there are fewer of the other."""


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why a call cannot be computed in tiles, or None if it can."""
    if not has_tiles(call.mask):
        return f"tiles need masks with `tile`; mask is {type(call.mask).__name__}"
    return None


def unsuitable_reason(call: AttentionCall) -> str | None:
    """Return why plain products are better, or None if tiles are."""
    T, S = call.lengths
    return f"T · S is {T * S:,}; tiles save memory above {MAX_LOGITS:,}" if T * S <= MAX_LOGITS else None


class Tiling(NamedTuple):
    """Division of T × S logits into tiles of equal size.

    If the size does not divide T or S, the last tile begins earlier, and what it shares with the one before is masked.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    height: int
    width: int
    starts: tuple[tuple[int, int, int, int], ...]
    """Per tile: the first query and key that it reads, and the first of each that is its own."""


def tiling(batch: tuple[int, ...], T: int, S: int, known: Structure, side: int = SIDE) -> Tiling:
    """Return the tiles of T queries and S keys that the band of a mask does not exclude."""
    height = _divide(T, max(side, side * side // max(S, 1)))
    width = _divide(S, max(side, side * side // height))
    tiles = [
        (min(t, T - height), min(s, S - width), t, s)
        for t in range(0, T, height)
        for s in range(0, S, width)
        if known.reaches((t, min(t + height, T)), (s, min(s + width, S)))
    ]
    return Tiling(batch, T, S, height, width, tuple(tiles))


def _divide(length: int, side: int) -> int:
    """Return the size of the fewest parts of a length that are at most `side` long."""
    return -(-length // max(1, -(-length // side)))


def chunked_attention(call: AttentionCall, side: int = SIDE) -> Float[Array, "*batch T N d_v"]:
    """softmax(cap(Q Kᵀ · scale) + bias) V, tile by tile.

    Args:
      side: queries and keys per tile.
    """
    mask, heads = as_mask(call.mask), call.key.shape[-2]
    if mask is not None:
        mask.check(*call.lengths)
    tiles = tiling(call.query.shape[:-3], *call.lengths, structure(mask), side)
    full = logits_shape(call.query, call.key)
    operands = _Operands(
        query=group_heads(heads_first(call.query), heads),
        key=heads_first(call.key),
        value=heads_first(call.value),
        bias=None if call.bias is None else with_rank(jnp.asarray(call.bias), len(full)),
        scale=jnp.asarray(call.scale),
        logit_cap=None if call.logit_cap is None else jnp.asarray(call.logit_cap),
    )
    return heads_last(_attend(tiles, operands, mask), call.query.shape[:-1])


class _Operands(NamedTuple):
    """Arrays with a gradient."""

    query: Float[Array, "B K G T d_k"]
    key: Float[Array, "B K S d_k"]
    value: Float[Array, "B K S d_v"]
    bias: Float[Array, "..."] | None
    scale: Float[Array, ""]
    logit_cap: Float[Array, ""] | None


class _Tile(NamedTuple):
    """One tile: its operands, the pairs that it may use, and its logits, masked and before cap and bias."""

    part: _Operands
    reached: Bool[Array, "B K S 1"] | None
    allowed: Bool[Array, "B K G T S"] | None
    products: Float[Array, "B K G T S"]
    logits: Float[Array, "B K G T S"]


def _spans(tiles: Tiling, starts: Array) -> tuple[Span, Span]:
    return Span(starts[0], tiles.height), Span(starts[1], tiles.width)


def _tile(tiles: Tiling, operands: _Operands, mask: Mask | None, starts: Array) -> _Tile:
    """Compute the logits of a tile."""
    queries, keys = _spans(tiles, starts)
    full = (*tiles.batch, math.prod(operands.query.shape[1:3]), tiles.height, tiles.width)
    heads = operands.key.shape[1]
    parts = [] if mask is None else [with_rank(mask.tile(queries, keys), len(full))]
    if tiles.queries % tiles.height:
        parts.append(with_rank(queries.indices[:, None] >= starts[2], len(full)))
    if tiles.keys % tiles.width:
        parts.append(with_rank(keys.indices[None, :] >= starts[3], len(full)))
    allowed = broadcast_grouped(functools.reduce(jnp.logical_and, parts), full, heads) if parts else None
    part = operands._replace(
        query=queries.of(operands.query, -2),
        key=keys.of(operands.key, -2),
        value=keys.of(operands.value, -2),
        bias=None if operands.bias is None else queries.of(keys.of(operands.bias), -2),
    )
    reached = None
    if mask is not None and allowed is not None:  # a NaN that no query may read must not be multiplied, even by 0
        reached = allowed.any((2, 3))[..., None]
        part = part._replace(key=jnp.where(reached, part.key, 0), value=jnp.where(reached, part.value, 0))
    wide = jnp.promote_types(part.query.dtype, jnp.float32)
    products = jnp.matmul(part.query, jnp.matrix_transpose(part.key)[:, :, None], preferred_element_type=wide)
    logits = products * part.scale
    if part.logit_cap is not None:
        logits = part.logit_cap * jnp.tanh(logits / part.logit_cap)
    if part.bias is not None:
        bias = broadcast_grouped(part.bias, full, heads)
        assert bias is not None
        logits = logits + bias
    return _Tile(part, reached, allowed, products, logits)


def _fill_excluded(
    x: Float[Array, "*shape"], tile: _Tile, other: float | np.floating[Any] = 0
) -> Float[Array, "*shape"]:
    return x if tile.allowed is None else jnp.where(tile.allowed, x, other)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiles: Tiling, operands: _Operands, mask: Mask | None) -> Float[Array, "B K G T d_v"]:
    return _forward(tiles, operands, mask)[0]


def _forward(
    tiles: Tiling, operands: _Operands, mask: Mask | None
) -> tuple[Float[Array, "B K G T d_v"], tuple[_Operands, Mask | None, Array, Array]]:
    """Return the output; and for the backward pass the operands, the output, and log Σ e^logits of each query."""
    rows = operands.query.shape[:-1]
    wide = jnp.promote_types(operands.query.dtype, jnp.float32)
    lowest = jnp.finfo(wide).min

    def add(sums: tuple[Array, Array, Array], starts: Array) -> tuple[tuple[Array, Array, Array], None]:
        tile = _tile(tiles, operands, mask, starts)
        queries, _ = _spans(tiles, starts)
        maximum, total, output = (queries.of(x, 3) for x in sums)
        logits = _fill_excluded(tile.logits, tile, lowest)
        highest = jnp.maximum(maximum, logits.max(-1))
        weights = _fill_excluded(jnp.exp(logits - highest[..., None]), tile)
        shrink = jnp.exp(maximum - highest)
        products = jnp.matmul(
            weights.astype(tile.part.value.dtype), tile.part.value[:, :, None], preferred_element_type=wide
        )
        new = (highest, total * shrink + weights.sum(-1), output * shrink[..., None] + products)
        first, second, third = map(functools.partial(_write, start=starts[0]), sums, new)
        return (first, second, third), None

    shapes = (jnp.full(rows, lowest, wide), jnp.zeros(rows, wide), jnp.zeros((*rows, operands.value.shape[-1]), wide))
    (maximum, total, output), _ = jax.lax.scan(add, shapes, _starts(tiles))
    # A query without any key has total 0: its output is 0, and with a finite logarithm so are its gradients.
    total = jnp.where(total > 0, total, 1)
    y = (output / total[..., None]).astype(operands.value.dtype)
    return y, (operands, mask, y, maximum + jnp.log(total))


def _backward(
    tiles: Tiling, saved: tuple[_Operands, Mask | None, Array, Array], cotangent: Float[Array, "B K G T d_v"]
) -> tuple[_Operands, None]:
    """Return the gradient of the operands."""
    operands, mask, y, log_total = saved
    wide = log_total.dtype
    inner = (cotangent.astype(wide) * y.astype(wide)).sum(-1)  # Σ_s A[t, s] · ∂A[t, s]

    def add(sums: _Operands, starts: Array) -> tuple[_Operands, None]:
        tile = _tile(tiles, operands, mask, starts)
        queries, keys = _spans(tiles, starts)
        part, (own_log, own_inner) = tile.part, (queries.of(x, 3) for x in (log_total, inner))
        tile_cotangent = queries.of(cotangent, 3)
        weights = _fill_excluded(jnp.exp(_fill_excluded(tile.logits, tile, 0) - own_log[..., None]), tile)
        lower = functools.partial(jnp.einsum, preferred_element_type=wide)
        of_weights = lower("bkgtd,bksd->bkgts", tile_cotangent, part.value)
        of_logits = weights * (of_weights - own_inner[..., None])
        of_bias, of_cap = None if sums.bias is None else _bias_gradient(tiles, part, sums, starts, of_logits), None
        if part.logit_cap is not None:
            scaled = tile.products * part.scale / part.logit_cap
            capped = jnp.tanh(scaled)
            slope = 1 - capped**2
            assert sums.logit_cap is not None
            of_cap = sums.logit_cap + (_fill_excluded(of_logits * (capped - scaled * slope), tile)).sum()
            of_logits = of_logits * slope
        of_scale = sums.scale + _fill_excluded(of_logits * tile.products, tile).sum()
        narrow = (of_logits * part.scale).astype(part.query.dtype)
        of_query = lower("bkgts,bksd->bkgtd", narrow, part.key)
        of_key = lower("bkgts,bkgtd->bksd", narrow, part.query)
        of_value = lower("bkgts,bkgtd->bksd", weights.astype(tile_cotangent.dtype), tile_cotangent)
        if tile.reached is not None:
            of_key, of_value = (jnp.where(tile.reached, x, 0) for x in (of_key, of_value))
        return _Operands(
            query=_write(sums.query, queries.of(sums.query, 3) + of_query, starts[0]),
            key=_write(sums.key, keys.of(sums.key, 2) + of_key, starts[1], 2),
            value=_write(sums.value, keys.of(sums.value, 2) + of_value, starts[1], 2),
            bias=of_bias,
            scale=of_scale,
            logit_cap=of_cap,
        ), None

    # A constant scale may be saved as a literal, which has no `shape`.
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), wide), operands)
    gradient, _ = jax.lax.scan(add, zeros, _starts(tiles))
    return jax.tree.map(lambda g, x: g.astype(jnp.result_type(x)), gradient, operands), None


def _bias_gradient(
    tiles: Tiling, part: _Operands, sums: _Operands, starts: Array, of_logits: Float[Array, "B K G T S"]
) -> Float[Array, "..."]:
    """Add a tile's gradient of the bias, summed over the axes along which the bias broadcasts."""
    assert part.bias is not None
    assert sums.bias is not None
    full = (*tiles.batch, math.prod(of_logits.shape[1:3]), tiles.height, tiles.width)
    broadcast = functools.partial(broadcast_grouped, full=full, key_value_heads=of_logits.shape[1])
    _, transpose = jax.vjp(broadcast, part.bias.astype(of_logits.dtype))
    (tile_gradient,) = transpose(of_logits)
    queries, keys = _spans(tiles, starts)
    new = queries.of(keys.of(sums.bias), -2) + tile_gradient
    first = jnp.where(np.array(sums.bias.shape[-2:]) > 1, starts[:2], 0)
    place = (jnp.int32(0),) * (sums.bias.ndim - 2)
    return jax.lax.dynamic_update_slice(sums.bias, new, (*place, first[0], first[1]))


def _write(x: Array, new: Array, start: Array, axis: int = 3) -> Array:
    """Return an array with a part replaced along an axis."""
    return new if new.shape == x.shape else jax.lax.dynamic_update_slice_in_dim(x, new, start, axis)


_attend.defvjp(_forward, _backward)


def _starts(tiles: Tiling) -> Array:
    return jnp.asarray(np.array(tiles.starts, np.int32).reshape(-1, 4))


def reachable_keys(mask: Mask, batch: tuple[int, ...], T: int, S: int) -> Bool[Array, "*batch #N S"]:
    """Return which keys at least one query may attend to, tile by tile."""
    mask.check(T, S)
    tiles = tiling(batch, T, S, structure(mask))

    def part(starts: Array) -> Bool[Array, "*batch #N S"]:
        queries, keys = _spans(tiles, starts)
        is_reached = with_rank(mask.tile(queries, keys).any(-2), len(batch) + 2)
        return jnp.broadcast_to(is_reached, (*batch, is_reached.shape[-2], tiles.width))

    def add(reached: Array, starts: Array) -> tuple[Array, None]:
        _, keys = _spans(tiles, starts)
        return _write(reached, keys.of(reached) | part(starts), starts[1], reached.ndim - 1), None

    starts = _starts(tiles)
    shape: PyTree = jax.eval_shape(part, starts[0]) if len(starts) else None
    heads = shape.shape[-2] if len(starts) else 1
    reached, _ = jax.lax.scan(add, jnp.zeros((*batch, heads, S), bool), starts)
    return reached
