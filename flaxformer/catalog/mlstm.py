"""mLSTM: a matrix memory with exponential input gates, of the xLSTM.

    C_t = f_t C_{t−1} + i_t k_tᵀ v_t, n_t = f_t n_{t−1} + i_t k_t, h_t = o_t ⊙ q_t C_t / max(|q_t n_tᵀ|, 1)
    i_t = exp(x_t w_i + b_i), f_t = σ(x_t w_f + b_f), o_t = σ(x_t W_o + b_o)

Family: token mixers
Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", arXiv:2405.04517, section 2.3.
Claim: xLSTM performs favourably against Transformers and state space models, in quality and in scaling.
Cost: the weights of attention and d_model² for the output gate; a state of d_model² / heads numbers.
Verified: the recurrence without stabilisation, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn import layer_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import linear_recurrence


class MLSTM(TokenMixer):
    """y_t = (norm(q_t C_t / max(|q_t n_tᵀ|, 1)) ⊙ σ(x_t W_o + b_o)) W, with the state (C, n, m) of each head.

    The state is C and n times e^(−m), with m_t = max(log f_t + m_{t−1}, log i_t), so that no exponential overflows; n
    is a further column of C. The norm is a layer norm per head. The paper's block around it, with a wider input, a
    convolution and a gate in place of a feed-forward network, is left out.
    """

    class Weights(Parameters):
        """Matrices and biases of q, k, v and the three gates, the gain of the norm, and the matrix out of the heads."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        input_gate: Float[Array, "d_model heads"] = param(std=0.0)
        forget_gate: Float[Array, "d_model heads"] = param(std=0.0)
        output_gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        query_bias: Float[Array, "heads d_key"] = param(init="zeros", decay=False)
        key_bias: Float[Array, "heads d_key"] = param(init="zeros", decay=False)
        value_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        input_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        forget_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        output_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        gain: Float[Array, "heads d_value"] = param(init="ones", decay=False)
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(4, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return dict.fromkeys(("d_key", "d_value"), model["d_model"] // self.heads)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Array]:
        wide, (_, heads, d_value) = jnp.promote_types(dtype, jnp.float32), weights.value.shape
        return jnp.zeros((*batch, heads, weights.key.shape[-1], d_value + 1), wide), jnp.zeros((*batch, heads), wide)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value = (
            linear(x, getattr(weights, name), getattr(weights, f"{name}_bias"), wide=True)
            for name in ("query", "key", "value")
        )
        log_i = linear(x, weights.input_gate, weights.input_bias, wide=True)
        forget_bias = jnp.linspace(3, 6, self.heads) + weights.forget_bias
        log_f = jax.nn.log_sigmoid(linear(x, weights.forget_gate, forget_bias, wide=True))
        if context.valid is not None:
            log_f = jnp.where(context.valid[..., None], log_f, 0)
            log_i = jnp.where(context.valid[..., None], log_i, -jnp.inf)
        memory, largest = state
        total = jnp.cumsum(log_f, axis=-2)
        m = jnp.maximum(jax.lax.cummax(log_i - total, axis=x.ndim - 2), largest[..., None, :]) + total
        before = jnp.concatenate([largest[..., None, :].astype(m.dtype), m[..., :-1, :]], axis=-2)
        key = key / key.shape[-1] ** 0.5 * jnp.exp(log_i - m)[..., None]
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
        log_decay = (log_f + before - m)[..., None]
        y, memory = linear_recurrence(query, key, value, log_decay, memory, valid=context.valid)
        y = y[..., :-1] / jnp.maximum(jnp.abs(y[..., -1:]), jnp.exp(-m)[..., None])
        gate = jax.nn.sigmoid(linear(x, weights.output_gate, weights.output_bias, wide=True))
        y = layer_norm(y) * weights.gain * gate
        return linear(y.astype(x.dtype), weights.out, contract=2), (memory, m[..., -1, :].astype(largest.dtype))


VARIANTS: Mapping[str, Mapping[str, object]] = {"mLSTM": {"model.attention": MLSTM}}
