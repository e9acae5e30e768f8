"""Position encodings: added to the embeddings, rotating queries and keys, or biasing the attention logits.

Sources: Vaswani et al. 2017, section 3.5; "What Happens in A Transformer Layer", second appendix; Su et al. 2021
(rotary); Press et al. 2022 (ALiBi); Raffel et al. 2020, section 2.1 (relative buckets).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def sinusoidal(
    positions: Int[Array, "*batch T"],
    d_model: int,
    *,
    base: float | Float[Array, ""] = 10_000.0,
    interleaved: bool = True,
) -> Float[Array, "*batch T D"]:
    """r_n[2i] = sin(n / base^(2i/D)), r_n[2i+1] = cos(n / base^(2i/D)): sine and cosine interleaved.

    With interleaved=False, all sines stand before all cosines (the layout of tensor2tensor): a permutation of the same
    numbers. An odd width leaves the last cosine out.
    """
    exponents = np.arange(0, d_model, 2) / d_model
    angles = _angles(positions, exponents, base)
    if interleaved:
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, -1)[..., :d_model]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[..., :d_model]


def rotate(
    x: Float[Array, "*batch T N H"],
    positions: Int[Array, "*#batch T"],
    *,
    base: float | Float[Array, ""] = 10_000.0,
    interleaved: bool = False,
) -> Float[Array, "*batch T N H"]:
    """Rotary positions: turn each pair (x_a, x_b) of a head's numbers by the angle n / base^(2i/H).

    Then q_m · k_n depends on m − n alone. The pairs are (x_i, x_{i+H/2}), or neighbours (x_2i, x_2i+1) when interleaved
    (the original text); the two differ by a fixed permutation of the columns of W_Q and W_K.

    Raises:
      ValueError: an odd head width.
    """
    width = x.shape[-1]
    if width % 2:
        raise ValueError(f"head width is {width}; expected an even number, for rotary positions turn pairs")
    angles = jnp.expand_dims(_angles(positions, np.arange(0, width, 2) / width, base), -2)
    angles = jnp.expand_dims(angles, range(x.ndim - angles.ndim))
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
        pairs = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
        return pairs.reshape(x.shape).astype(x.dtype)
    first, second = jnp.split(wide, 2, axis=-1)
    turned = [first * cosine - second * sine, first * sine + second * cosine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def alibi_slopes(heads: int) -> Float[np.ndarray, "N"]:
    """m_h = 2^(−8h/N) for h = 1 … N, where N is a power of two.

    Other numbers of heads take those of the power of two below, then every second one of the power of two above.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-8 / (2 * below) * np.arange(1, 2 * below + 1, 2))
    return np.concatenate([slopes, between])[:heads].astype(np.float32)


def alibi(
    query_positions: Int[Array, "*batch T"], key_positions: Int[Array, "*batch S"], heads: int
) -> Float[Array, "*batch N T S"]:
    """The bias −m_h · |i − j|, added to the logits of head h."""
    distance = jnp.abs(relative(query_positions, key_positions)).astype(jnp.float32)
    slopes = alibi_slopes(heads).reshape((heads, 1, 1))
    return -jnp.expand_dims(slopes, range(distance.ndim - 2)) * distance[..., None, :, :]


def relative_buckets(
    relative_positions: Int[Array, "*shape"], *, buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "*shape"]:
    """The bucket of key position − query position: one a distance when near, logarithmic when far.

    With b buckets for a direction, distances below b/2 have their own, and distances d up to max_distance share
    b/2 + ⌊ln(d / (b/2)) / ln(max_distance / (b/2)) · b/2⌋, at most b − 1. With bidirectional, half of the buckets are
    for keys after the query; without, those all share bucket 0.
    """
    count = buckets // 2 if bidirectional else buckets
    later = jnp.where(relative_positions > 0, count, 0) if bidirectional else 0
    distance = jnp.abs(relative_positions) if bidirectional else jnp.maximum(-relative_positions, 0)
    exact = count // 2
    firsts = jnp.asarray(_first_distances(exact, count - exact, max_distance), jnp.int32)
    far = exact + jnp.searchsorted(firsts, distance, side="right")
    return later + jnp.where(distance < exact, distance, far)


def _first_distances(exact: int, far: int, max_distance: int) -> list[int]:
    """The first distance of every far bucket but the nearest, in whole numbers: a logarithm may fall on either side.

    That of bucket k is the smallest d with (d / exact)^far ≥ (max_distance / exact)^k.
    """
    found, distance = [], exact
    for k in range(1, far):
        while distance**far * exact**k < max_distance**k * exact**far:
            distance += 1
        found.append(distance)
    return found


def relative(
    query_positions: Int[Array, "*batch T"], key_positions: Int[Array, "*batch S"]
) -> Int[Array, "*batch T S"]:
    """Key position − query position."""
    return key_positions[..., None, :] - query_positions[..., :, None]


def _angles(
    positions: Int[Array, "*batch T"], exponents: Float[np.ndarray, "half"], base: float | Float[Array, ""]
) -> Float[Array, "*batch T half"]:
    return positions[..., None] * jnp.expand_dims(jnp.power(base, -exponents), range(positions.ndim))
