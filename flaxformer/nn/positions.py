"""Position encodings: vectors added to embeddings, rotations of queries and keys, biases of attention logits.

Sources: Vaswani et al. 2017, section 3.5; "What Happens in A Transformer Layer", second appendix; Su et al. 2021
(rotary); Press et al. 2022 (ALiBi); Raffel et al. 2020, section 2.1 (relative buckets).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer.nn.widen import widen


def sinusoidal(
    positions: Int[Array, "*batch T"],
    d_model: int,
    *,
    base: float | Float[Array, ""] = 10_000.0,
    interleaved: bool = True,
) -> Float[Array, "*batch T D"]:
    """Return r_n[2i] = sin(n / base^(2i/D)) and r_n[2i+1] = cos(n / base^(2i/D)) for positions n.

    Args:
      interleaved: False puts all sines before all cosines, as in tensor2tensor: the same numbers in another order.

    An odd width leaves out the last cosine.
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
    frequencies: Float[Array, "half"] | None = None,
) -> Float[Array, "*batch T N H"]:
    """Rotate each pair (x_a, x_b) of a head's entries at position n by the angle n · base^(−2i/H).

    The product q_m · k_n then depends on positions only through m − n. Pairs are (x_i, x_{i+H/2}); with interleaved,
    as in the original text, neighbours (x_2i, x_2i+1). The two forms differ by a permutation of the columns of W_Q and
    W_K.

    Args:
      frequencies: angle per position of each pair, in place of base^(−2i/H).

    Raises:
      ValueError: an odd head width.
    """
    width = x.shape[-1]
    if width % 2:
        raise ValueError(f"head width is {width}; expected an even number, since rotary positions rotate pairs")
    frequencies = rotary_frequencies(width, base) if frequencies is None else frequencies
    angles = jnp.expand_dims(positions[..., None] * jnp.expand_dims(frequencies, range(positions.ndim)), -2)
    angles = jnp.expand_dims(angles, range(x.ndim - angles.ndim))
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    wide = widen(x)
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
        pairs = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
        return pairs.reshape(x.shape).astype(x.dtype)
    first, second = jnp.split(wide, 2, axis=-1)
    rotated = [first * cosine - second * sine, first * sine + second * cosine]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def rotary_frequencies(width: int, base: float | Float[Array, ""]) -> Float[Array, "half"]:
    """Return base^(−2i/H), the angles per position by which rotary positions turn the pairs of a head of width H."""
    return jnp.power(base, -(np.arange(0, width, 2) / width))


def alibi_slopes(heads: int) -> Float[np.ndarray, "N"]:
    """Return the slopes m_h = 2^(−8h/N) for h = 1 … N, where N is a power of two.

    For another number of heads: the slopes of the next lower power of two, then every second one of the next higher.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-8 / (2 * below) * np.arange(1, 2 * below + 1, 2))
    return np.concatenate([slopes, between])[:heads].astype(np.float32)


def alibi(
    query_positions: Int[Array, "*batch T"], key_positions: Int[Array, "*batch S"], heads: int
) -> Float[Array, "*batch N T S"]:
    """Return the bias −m_h · |i − j| of the logits of head h."""
    distance = jnp.abs(relative_positions(query_positions, key_positions)).astype(jnp.float32)
    slopes = alibi_slopes(heads).reshape((heads, 1, 1))
    return -jnp.expand_dims(slopes, range(distance.ndim - 2)) * distance[..., None, :, :]


def relative_buckets(
    relative_positions: Int[Array, "*shape"], *, buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "*shape"]:
    """Return the bucket of each relative position (key − query): one per small distance, logarithmic for larger ones.

    With b buckets per direction, each distance below b/2 has a bucket of its own; a larger distance d has bucket
    b/2 + ⌊ln(d / (b/2)) / ln(max_distance / (b/2)) · b/2⌋, at most b − 1. If bidirectional, half of the buckets are for
    keys after the query; otherwise, all these keys have bucket 0.
    """
    count = buckets // 2 if bidirectional else buckets
    later = jnp.where(relative_positions > 0, count, 0) if bidirectional else 0
    distance = jnp.abs(relative_positions) if bidirectional else jnp.maximum(-relative_positions, 0)
    exact = count // 2
    firsts = jnp.asarray(_first_distances(exact, count - exact, max_distance), jnp.int32)
    far = exact + jnp.searchsorted(firsts, distance, side="right")
    return later + jnp.where(distance < exact, distance, far)


def _first_distances(exact: int, far: int, max_distance: int) -> list[int]:
    """Return the first distance of each logarithmic bucket k ≥ 1: the least d with (d / exact)^far ≥ (max / exact)^k.

    Integer arithmetic is exact; a logarithm could be rounded to either side of a boundary.
    """
    distances, distance = [], exact
    for k in range(1, far):
        while distance**far * exact**k < max_distance**k * exact**far:
            distance += 1
        distances.append(distance)
    return distances


def relative_positions(
    query_positions: Int[Array, "*batch T"], key_positions: Int[Array, "*batch S"]
) -> Int[Array, "*batch T S"]:
    """Return key position − query position."""
    return key_positions[..., None, :] - query_positions[..., :, None]


def token_positions(
    valid: Bool[Array, "*batch T"], earlier: Int[Array, "*batch"] | None = None
) -> Int[Array, "*batch T"]:
    """Return the position of each token: the number of tokens before it that are not padding.

    Padding has the position of the last token before it, or 0.

    Args:
      valid: False at padding.
      earlier: number of tokens of the sequence before these; None for none.
    """
    count = jnp.cumsum(valid, axis=-1) if earlier is None else earlier[..., None] + jnp.cumsum(valid, axis=-1)
    return jnp.maximum(count - 1, 0)


def _angles(
    positions: Int[Array, "*batch T"], exponents: Float[np.ndarray, "half"], base: float | Float[Array, ""]
) -> Float[Array, "*batch T half"]:
    """Return the angles n / base^exponent."""
    return positions[..., None] * jnp.expand_dims(jnp.power(base, -exponents), range(positions.ndim))


def frozen_logits(
    pattern: Float[Array, "N pattern pattern"], query: Int[Array, "*#batch T"], key: Int[Array, "*#batch S"]
) -> Float[Array, "*#batch N T S"]:
    """Logits of a fixed pattern at the positions of queries and keys, without gradients."""
    logits = pattern[:, query[..., :, None], key[..., None, :]]
    return jax.lax.stop_gradient(jnp.moveaxis(logits, 0, -3))
