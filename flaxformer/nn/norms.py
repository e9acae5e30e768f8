"""Normalisation of token vectors; statistics are computed in float32 or wider.

Sources: Ba et al. 2016; Ioffe & Szegedy 2015; Zhang & Sennrich 2019; "What Happens in A Transformer Layer", first
appendix (which omits the square in σ² and the ε).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.formulations import norms as fast
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.widen import widen


def layer_norm(
    x: Float[Array, "*batch D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    epsilon: float | Float[Array, ""] = 1e-5,
) -> Float[Array, "*batch D"]:
    """Return y = (x − μ) / √(σ² + ε) · gain + bias, with the mean μ and the biased variance σ² over D."""
    return _affine(standardise(x, epsilon, True), gain, bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*batch D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    epsilon: float | Float[Array, ""] = 1e-6,
) -> Float[Array, "*batch D"]:
    """Return y = x / √(mean(x²) + ε) · gain + bias, with the mean over D."""
    return _affine(standardise(x, epsilon, False), gain, bias).astype(x.dtype)


def sequence_norm(
    x: Float[Array, "*batch T D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    epsilon: float | Float[Array, ""] = 1e-5,
) -> Float[Array, "*batch T D"]:
    """Return `layer_norm` with μ and σ² over T and D: a counter-example, since it reads later tokens.

    Tokens where `valid` is False are left out of the statistics.
    """
    mean, variance = moments(x, (-2, -1), valid)
    return _affine((widen(x) - mean) * jax.lax.rsqrt(variance + epsilon), gain, bias).astype(x.dtype)


def batch_norm(
    x: Float[Array, "*batch D"],
    mean: Float[Array, "D"],
    variance: Float[Array, "D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    epsilon: float | Float[Array, ""] = 1e-5,
) -> Float[Array, "*batch D"]:
    """Return y = (x − μ) / √(σ² + ε) · gain + bias for a given mean μ and variance σ², of the batch or running."""
    row = (1,) * (x.ndim - 1) + (-1,)
    normal = (widen(x) - mean.reshape(row)) * jax.lax.rsqrt(variance.reshape(row) + epsilon)
    return _affine(normal, gain, bias).astype(x.dtype)


def batch_statistics(
    x: Float[Array, "*batch D"], valid: Bool[Array, "*batch"] | None = None
) -> tuple[Float[Array, "D"], Float[Array, "D"], Float[Array, ""]]:
    """Return mean and biased variance per feature over all valid tokens of the batch, and the number of tokens.

    Raises:
      ValueError: fewer than two tokens.
    """
    tokens = math.prod(x.shape[:-1])
    if tokens < 2:
        raise ValueError(f"BatchNorm trains on {tokens} token; expected at least 2, since it needs a variance")
    mean, variance = moments(x, tuple(range(x.ndim - 1)), valid)
    count = jnp.asarray(tokens, mean.dtype) if valid is None else valid.sum().astype(mean.dtype)
    return mean.reshape(-1), variance.reshape(-1), count


def running_statistics(
    old: tuple[Float[Array, "D"], Float[Array, "D"]],
    batch: tuple[Float[Array, "D"], Float[Array, "D"], Float[Array, ""]],
    momentum: float | Float[Array, ""],
) -> tuple[Float[Array, "D"], Float[Array, "D"]]:
    """Return (1 − momentum) · old + momentum · batch for mean and variance, the latter unbiased, n/(n − 1) · σ².

    Args:
      old: running mean and variance.
      batch: mean, biased variance σ² and number of tokens n of `batch_statistics`.
    """
    mean, variance, count = batch
    unbiased = variance * count / jnp.maximum(count - 1, 1)
    return (1 - momentum) * old[0] + momentum * mean, (1 - momentum) * old[1] + momentum * unbiased


def moments(
    x: Float[Array, "*batch D"], axes: tuple[int, ...], valid: Bool[Array, "..."] | None = None
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return mean and biased variance of the valid tokens over some axes, which keep size 1."""
    wide = widen(x)
    where = None if valid is None else jnp.broadcast_to(valid[..., None], x.shape)
    # Invalid tokens may be NaN, and 0 · NaN would put NaN into the gradient.
    wide = wide if where is None else jnp.where(where, wide, 0)
    count: int | Array = math.prod(x.shape[axis] for axis in axes)
    if where is not None:
        count = jnp.maximum(where.sum(axes, keepdims=True), 1)
    mean = wide.sum(axes, keepdims=True) / count
    centred = wide - mean if where is None else jnp.where(where, wide - mean, 0)
    return mean, jnp.square(centred).sum(axes, keepdims=True) / count


@with_formulations("norm", fast.FORMULATIONS)
def standardise(x: Float[Array, "*batch D"], epsilon: float | Array, centre: bool) -> Float[Array, "*batch D"]:
    """Return (x − μ) / √(mean((x − μ)²) + ε), with the mean μ over D, or 0 unless `centre`, in float32 or wider."""
    x = widen(x)
    centred = x - x.mean(-1, keepdims=True) if centre else x
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)


def _affine(x: Float[Array, "*batch D"], gain: Array | None, bias: Array | None) -> Float[Array, "*batch D"]:
    """Return x · gain + bias, without what is None."""
    row = (1,) * (x.ndim - 1) + (-1,)
    x = x if gain is None else x * gain.reshape(row)
    return x if bias is None else x + bias.reshape(row)
