"""Gated linear attention: a state of one matrix per head, with a decay that depends on the token.

    S_t = diag(α_t) S_{t−1} + k_tᵀ v_t, y_t = q_t S_t, α_t = σ(x_t W_α + b_α)^(1/temperature)

Family: token mixers
Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training",
arXiv:2312.06635, sections 4 and 5.
Claim: competitive with Transformers of the LLaMA form and with RetNet and Mamba at up to 1.3B weights;
extrapolation from 2K to over 20K tokens.
Cost: a state of heads · d_key · d_value numbers.
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
from flaxformer.nn.linear_recurrence import linear_recurrence


class GatedLinearAttention(TokenMixer):
    """y_t = (norm(q_t S_t) ⊙ silu(x_t W_g)) W_O, with the state S_t = diag(α_t) S_{t−1} + k_tᵀ v_t of each head.

    The decay α_t = σ(x_t W_α + b_α)^(1/temperature) has one entry per row of S; without a temperature it is 1. All
    tokens of a chunk are computed together (`linear_recurrence`). Padding does not change the state.
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
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value = (linear(x, matrix, wide=True) for matrix in (weights.query, weights.key, weights.value))
        log_decay = None
        if self.temperature is not None:
            log_decay = jax.nn.log_sigmoid(linear(x, weights.decay, weights.decay_bias, wide=True)) / self.temperature
        y, state = linear_recurrence(query, key, value, log_decay, state, valid=context.valid)
        y = rms_norm(y) * jax.nn.silu(linear(x, weights.gate, wide=True))
        return linear(y.astype(x.dtype), weights.out, contract=2), state


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "gated linear": {"model.attention": GatedLinearAttention},
    "linear": {"model.attention": GatedLinearAttention, "model.attention.temperature": None},
}
