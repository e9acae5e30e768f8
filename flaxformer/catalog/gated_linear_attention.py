"""Gated linear attention: a state of one matrix per head, with a decay that depends on the token.

    S_t = diag(α_t) S_{t−1} + k_tᵀ v_t, y_t = q_t S_t, α_t = σ(x_t W_α + b_α)^(1/temperature)

Family: token mixers
Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training",
arXiv:2312.06635, sections 4 and 5.
Claim: competitive with Transformers of the LLaMA form and with RetNet and Mamba at up to 1.3B weights;
extrapolation from 2K to over 20K tokens.
Cost: a state of heads · d_key · d_value numbers; an associative scan over the states of all tokens.
Verified: the recurrence, token by token, in NumPy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Context,
    Parameters,
    TokenMixer,
    leaf,
    param,
    static,
)
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear


class GatedLinearAttention(TokenMixer):
    """y_t = (norm(q_t S_t) ⊙ silu(x_t W_g)) W_O, with the state S_t = diag(α_t) S_{t−1} + k_tᵀ v_t of each head.

    The decay α_t = σ(x_t W_α + b_α)^(1/temperature) has one entry per row of S; without a temperature it is 1. The
    states of all tokens are computed in parallel, by an associative scan, and stored for the backward pass. Padding
    does not change the state.
    """

    class Weights(Parameters):
        """Matrices into the heads, and W_O out of them."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        decay: Float[Array, "d_model heads d_key"] | None = param(fan_in="d_model", when="gated")
        decay_bias: Float[Array, "heads d_key"] | None = param(init="zeros", decay=False, when="gated")
        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(4, at_least=1)
    d_key: int = static(8, at_least=1)
    d_value: int = static(16, at_least=1)
    temperature: float | None = leaf(16.0, above=0)

    @property
    def gated(self) -> bool:
        """True if the state decays."""
        return self.temperature is not None

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        return jnp.zeros((*batch, self.heads, self.d_key, self.d_value), jnp.promote_types(dtype, jnp.float32))

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Array, context: Context
    ) -> tuple[Array, Array]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)  # k = 0 at padding, so that the state does not change
        query, key, value = (linear(x, matrix, wide=True) for matrix in (weights.query, weights.key, weights.value))
        decay = jnp.ones_like(key)
        if self.temperature is not None:
            decay = jax.nn.sigmoid(linear(x, weights.decay, weights.decay_bias, wide=True)) ** (1 / self.temperature)
            decay = jnp.where(valid[..., None, None], decay, 1)

        def compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
            return first[0] * second[0], second[0] * first[1] + second[1]

        written = key[..., :, None] * value[..., None, :]  # [*batch, T, heads, d_key, d_value]
        total, states = jax.lax.associative_scan(compose, (decay[..., None], written), axis=x.ndim - 2)
        states = states + total * state[..., None, :, :, :]
        y = rms_norm(jnp.einsum("...k,...kv->...v", query, states))
        y = (y * jax.nn.silu(linear(x, weights.gate, wide=True))).astype(x.dtype)
        return linear(y, weights.out, contract=2), states[..., -1, :, :, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "gated linear": {"model.attention": GatedLinearAttention},
    "linear": {"model.attention": GatedLinearAttention, "model.attention.temperature": None},
}
