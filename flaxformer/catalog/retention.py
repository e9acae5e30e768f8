"""Retention: linear attention with a fixed decay per head, and rotated queries and keys.

    S_n = γ S_{n−1} + K_nᵀ V_n, Retention(X_n) = Q_n S_n, γ = 1 − 2^(−5 − head)
    MSR(X) = (swish(X W_G) ⊙ GroupNorm(heads)) W_O

Family: token mixers
Source: Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models", arXiv:2307.08621,
and the authors' code, torchscale.
Claim: parallel training, decoding with a constant state, and quality comparable with a Transformer's.
Cost: 2 d_model² weights beside attention (values and gate are twice as wide); a state of 2 d_model² / heads numbers.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import linear_recurrence


class Retention(TokenMixer):
    """y_n = (norm(Q_n S_n) ⊙ swish(x_n W_G)) W_O, with the state S_n = γ S_{n−1} + K_nᵀ V_n of each head.

    The entries of Q and K are rotated in pairs by the angles n θ, with θ from 1 to 1/10,000; K is divided by √d_key.
    The norm is an RMS norm per head. Use it without another position scheme.
    """

    class Weights(Parameters):
        """Matrices into the heads, and W_O out of them."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(4, at_least=1)
    expansion: int = static(2, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads, "d_value": self.expansion * model["d_model"] // self.heads}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        wide = jnp.promote_types(dtype, jnp.float32)
        return jnp.zeros((*batch, *weights.key.shape[1:], weights.value.shape[-1]), wide)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value = (linear(x, matrix, wide=True) for matrix in (weights.query, weights.key, weights.value))
        query, key = (rotate_pairs(heads, context.query_positions) for heads in (query, key / key.shape[-1] ** 0.5))
        log_decay = jnp.log1p(-jnp.exp2(-5 - jnp.arange(self.heads, dtype=key.dtype)))
        log_decay = jnp.broadcast_to(log_decay[:, None], (*key.shape[:-1], 1))
        y, state = linear_recurrence(query, key, value, log_decay, state, valid=context.valid)
        y = rms_norm(y) * jax.nn.silu(linear(x, weights.gate, wide=True))
        return linear(y.astype(x.dtype), weights.out, contract=2), state


def rotate_pairs(x: Float[Array, "*batch T N d"], positions: Array) -> Float[Array, "*batch T N d"]:
    """Rotate entries 2i and 2i + 1 by position · 10,000^(−i / (d/2 − 1)); the even entries come first in the result."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None] * 10_000 ** -jnp.linspace(0, 1, half, dtype=x.dtype)
    even, odd, cos, sin = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2], jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin, x[..., 2 * half :]], axis=-1)


VARIANTS: Mapping[str, Mapping[str, object]] = {"retention": {"model.attention": Retention}}
