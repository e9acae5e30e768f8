"""Normalisation of each token's vector, with statistics in float32 or wider.

Sources: Ba et al. 2016; Zhang & Sennrich 2019; "What Happens in A Transformer Layer", first appendix (which
omits the square in σ² and the ε).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def layer_norm(
    x: Float[Array, "*batch D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    epsilon: float | Float[Array, ""] = 1e-5,
) -> Float[Array, "*batch D"]:
    """y = (x − μ) / √(σ² + ε) · gain + bias, with μ and σ² the mean and (biased) variance over D."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    return _affine(normal, gain, bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*batch D"],
    gain: Float[Array, "D"] | None = None,
    bias: Float[Array, "D"] | None = None,
    *,
    epsilon: float | Float[Array, ""] = 1e-6,
) -> Float[Array, "*batch D"]:
    """y = x / √(mean(x²) + ε) · gain + bias, with the mean over D."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    normal = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)
    return _affine(normal, gain, bias).astype(x.dtype)


def _affine(x: Float[Array, "*batch D"], gain: Array | None, bias: Array | None) -> Float[Array, "*batch D"]:
    row = (1,) * (x.ndim - 1) + (-1,)
    x = x if gain is None else x * gain.reshape(row)
    return x if bias is None else x + bias.reshape(row)
