"""Kimi delta attention: the delta rule on a state that decays at a rate per entry of the key.

    S_t = S' + β_t k_tᵀ (v_t − k_t S'), S' = diag(α_t) S_{t−1}, y_t = q_t S_t
    log α_t = −e^a softplus(x_t W_1 W_2 + b), β_t = σ(x_t W_β)

Family: token mixers
Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture", arXiv:2510.26692, and the
authors' code, flash-linear-attention.
Claim: in three of four layers, beside latent attention in the fourth, better than latent attention in all layers, at
48B weights, 3B of which are active.
Cost: the weights of attention, two maps of rank d_key for decay and gate, and the short convolutions; a state of
heads · d_key · d_value numbers; products over pairs of tokens within a chunk for each entry of the key.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, param
from flaxformer.catalog import DeltaNet
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import initial_steps, linear_recurrence


class KimiDeltaAttention(DeltaNet):
    """y_t = (norm(q_t S_t) ⊙ gain ⊙ σ(x_t G_1 G_2 + c)) W_O, with the state S_t of each head.

    S_t = S' + β_t k_tᵀ (v_t − k_t S') with S' = diag(α_t) S_{t−1}. q, k and v are silu(short convolution of x W); q and
    k are then scaled to length 1. Initially, the rates e^a are spaced evenly from 1 to 16 over the heads, and log
    softplus(b) from log 0.001 to log 0.1 over the entries of a key; the authors draw both at random.
    """

    class Weights(DeltaNet.Weights):
        """Weights of `DeltaNet`, those of the decay, and those of the gate."""

        decay_down: Float[Array, "d_model rank"] = param(fan_in="d_model")
        decay_up: Float[Array, "rank heads d_key"] = param(fan_in="rank")
        decay_bias: Float[Array, "heads d_key"] = param(init="zeros", decay=False)
        log_rate: Float[Array, "heads"] = param(init="zeros", decay=False)
        gate_down: Float[Array, "d_model rank"] = param(fan_in="d_model")
        gate_up: Float[Array, "rank heads d_value"] = param(fan_in="rank")
        gate_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return dict.fromkeys(("d_key", "d_value", "rank"), model["d_model"] // self.heads)

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value, after = self.heads_of(weights, x, state, context)
        strength = jax.nn.sigmoid(linear(x, weights.strength, wide=True))[..., None]
        rate = jnp.linspace(1, 16, self.heads) * jnp.exp(weights.log_rate)
        bias = initial_steps(key.shape[-1]) + weights.decay_bias
        decay = linear(linear(x, weights.decay_down), weights.decay_up, bias, wide=True)
        log_decay = -rate[:, None] * jax.nn.softplus(decay)
        y, after["memory"] = linear_recurrence(
            query, strength * key, value, log_decay, state["memory"],
            update=(-key * jnp.exp(log_decay), strength * key), valid=context.valid,
        )  # fmt: skip
        gate = linear(linear(x, weights.gate_down), weights.gate_up, weights.gate_bias, wide=True)
        y = rms_norm(y / key.shape[-1] ** 0.5, epsilon=1e-5) * weights.gain * jax.nn.sigmoid(gate)
        return linear(y.astype(x.dtype), weights.out, contract=2), after


VARIANTS: Mapping[str, Mapping[str, object]] = {"KDA": {"model.attention": KimiDeltaAttention}}
