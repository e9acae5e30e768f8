"""Gated delta rule: linear attention that replaces the value stored for a key, instead of adding to it.

    S_t = α_t S_{t−1} + k_tᵀ β_t (v_t − α_t k_t S_{t−1}), y_t = q_t S_t

Family: token mixers
Source: Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv:2412.06464, sections 3
and 3.3.
Claim: better language modelling, retrieval and length extrapolation than Mamba2 and DeltaNet at 1.3B weights.
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
from flaxformer.nn.linear_recurrence import linear_recurrence, normalize_length


class GatedDeltaRule(TokenMixer):
    """y_t = (norm(q_t S_t) ⊙ silu(x_t W_g)) W_O, with the state S_t = α_t S_{t−1} + k_tᵀ β_t (v_t − α_t k_t S_{t−1}).

    q and k are silu(x W), scaled to length 1; the strength β and the decay α are sigmoids with one number per head.
    With delta=False, the update is k_tᵀ β_t v_t. Padding does not change the state.

    All tokens of a chunk are computed together (`linear_recurrence`, as in section 3.3 of the paper). The paper's short
    convolution of q, k and v is a separate block here.
    """

    class Weights(Parameters):
        """Matrices into the heads, and W_O out of them."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        strength: Float[Array, "d_model heads"] = param(fan_in="d_model")
        decay: Float[Array, "d_model heads"] = param(fan_in="d_model")
        decay_bias: Float[Array, "heads"] = param(value="initial_decay", decay=False)
        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    d_key: int = static(16, at_least=1)
    d_value: int = static(32, at_least=1)
    delta: bool = static(True)
    initial_decay: float = leaf(4.0)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        return jnp.zeros((*batch, self.heads, self.d_key, self.d_value), jnp.promote_types(dtype, jnp.float32))

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Array, context: Context
    ) -> tuple[Array, Array]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key = (
            normalize_length(jax.nn.silu(linear(x, matrix, wide=True))) for matrix in (weights.query, weights.key)
        )
        value = linear(x, weights.value, wide=True)
        strength = jax.nn.sigmoid(linear(x, weights.strength, wide=True))[..., None]
        log_decay = jax.nn.log_sigmoid(linear(x, weights.decay, weights.decay_bias, wide=True))[..., None]
        update = (-key * jnp.exp(log_decay), strength * key) if self.delta else None
        y, state = linear_recurrence(query, strength * key, value, log_decay, state, update=update, valid=context.valid)
        y = rms_norm(y) * jax.nn.silu(linear(x, weights.gate, wide=True))
        return linear(y.astype(x.dtype), weights.out, contract=2), state


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "gated delta rule": {"model.attention": GatedDeltaRule},
    "gated linear writes": {"model.attention": GatedDeltaRule, "model.attention.delta": False},
}
