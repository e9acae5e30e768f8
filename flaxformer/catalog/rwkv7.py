"""RWKV-7: time mixing by a generalised delta rule, with a decay and a learning rate per entry.

    S_t = diag(w_t) S_{t−1} − (a_t ⊙ κ_t)ᵀ (κ_t S_{t−1}) + k_tᵀ v_t, o_t = r_t S_t
    log w_t = −e^(−½) σ(d_t), a_t = σ(…), κ_t = (k_t ⊙ ξ) / ‖k_t ⊙ ξ‖

Family: token mixers
Source: Peng et al. 2025, "RWKV-7 "Goose" with Expressive Dynamic State Evolution", arXiv:2503.14456, and
flash-linear-attention, layer RWKV7Attention.
Claim: a state of the art at 3B weights on multilingual tasks, with constant memory and time per token.
Cost: the weights of attention, and four maps of low rank; a state of d_model² / heads numbers and one token.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Aux, Context, Parameters, TokenMixer, param, static
from flaxformer.nn import layer_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import linear_recurrence, previous_tokens


class RWKV7(TokenMixer):
    """y_t = ((norm(r_t S_t) + (r_t · (ρ ⊙ k_t)) v_t) ⊙ g_t) W_O, with the state S_t of each head.

    r, d, k, v, a and g are maps of x_t + μ ⊙ (x_{t−1} − x_t), each with its own μ; those of d, a, g and ν have low
    rank. v is mixed with that of the first layer, v + ν ⊙ (v_1 − v), and k is k ⊙ (1 + (a − 1) ⊙ α).
    """

    exempt_from: ClassVar = {
        "weights": "the first layer mixes its values with themselves, so that ν has no effect in it"
    }

    class Weights(Parameters):
        """Shares μ in the order r, d, k, v, a, g; matrices; pairs of low rank; vectors of heads; and W_O."""

        share: Float[Array, "maps d_model"] = param(value=0.5, decay=False)
        receptance: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_key"] = param(fan_in="d_model", init="branch")
        decay_down: Float[Array, "d_model decay_rank"] = param(fan_in="d_model")
        decay_up: Float[Array, "decay_rank heads d_key"] = param(fan_in="decay_rank")
        decay_bias: Float[Array, "heads d_key"] = param(value=-3.0, decay=False)
        rate_down: Float[Array, "d_model rate_rank"] = param(fan_in="d_model")
        rate_up: Float[Array, "rate_rank heads d_key"] = param(fan_in="rate_rank")
        rate_bias: Float[Array, "heads d_key"] = param(init="zeros", decay=False)
        mix_down: Float[Array, "d_model mix_rank"] = param(fan_in="d_model")
        mix_up: Float[Array, "mix_rank heads d_key"] = param(fan_in="mix_rank")
        mix_bias: Float[Array, "heads d_key"] = param(value=0.73, decay=False)
        gate_down: Float[Array, "d_model gate_rank"] = param(fan_in="d_model")
        gate_up: Float[Array, "gate_rank heads d_key"] = param(fan_in="gate_rank")
        removal: Float[Array, "heads d_key"] = param(value=0.71, decay=False)
        rate_share: Float[Array, "heads d_key"] = param(value=1.02, decay=False)
        bonus: Float[Array, "heads d_key"] = param(value=-0.04, decay=False)
        gain: Float[Array, "heads d_key"] = param(init="ones", decay=False)
        bias: Float[Array, "heads d_key"] = param(init="zeros", decay=False)
        out: Float[Array, "heads d_key d_model"] = param(fan_in="heads d_key", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    decay_rank: int = static(64, at_least=1)
    rate_rank: int = static(64, at_least=1)
    mix_rank: int = static(32, at_least=1)
    gate_rank: int = static(128, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads, "maps": 6}

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        return {"first_value": jnp.zeros((*x.shape[:-1], self.heads, x.shape[-1] // self.heads), x.dtype)}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Array]:
        d_model, heads, d_key = weights.key.shape
        return jnp.zeros((*batch, 1, d_model), dtype), jnp.zeros(
            (*batch, heads, d_key, d_key), jnp.promote_types(dtype, jnp.float32)
        )

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context
    ) -> tuple[tuple[Array, Aux], Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        token, memory = state
        (before, _), token = previous_tokens(x, token, context.valid)
        xr, xd, xk, xv, xa, xg = ((x + mu * (before - x)).astype(x.dtype) for mu in weights.share)
        r, k, v = (
            linear(inputs, matrix, wide=True)
            for inputs, matrix in ((xr, weights.receptance), (xk, weights.key), (xv, weights.value))
        )
        decay = linear(jnp.tanh(linear(xd, weights.decay_down)), weights.decay_up, weights.decay_bias, wide=True)
        rate = jax.nn.sigmoid(linear(linear(xa, weights.rate_down), weights.rate_up, weights.rate_bias, wide=True))
        gate = linear(jax.nn.sigmoid(linear(xg, weights.gate_down)), weights.gate_up, wide=True)
        mix = jax.nn.sigmoid(linear(linear(xv, weights.mix_down), weights.mix_up, weights.mix_bias, wide=True))
        first = jnp.where(context.layer == 0, v, context.carried["first_value"])
        v = v + mix * (first - v)
        removed = k * weights.removal
        removed = removed * jax.lax.rsqrt(jnp.square(removed).sum(-1, keepdims=True) + 1e-12)
        k = k * (1 + (rate - 1) * weights.rate_share)
        y, memory = linear_recurrence(
            r,
            k,
            v,
            -jnp.exp(-0.5) * jax.nn.sigmoid(decay),
            memory,
            update=(-removed, rate * removed),
            valid=context.valid,
        )
        y = layer_norm(y, epsilon=1e-5 * y.shape[-1]) * weights.gain + weights.bias
        y = (y + (r * k * weights.bonus).sum(-1, keepdims=True) * v) * gate
        carried = {"first_value": first.astype(context.carried["first_value"].dtype)}
        return (linear(y.astype(x.dtype), weights.out, contract=2), Aux(carried=carried)), (token, memory)


VARIANTS: Mapping[str, Mapping[str, object]] = {"RWKV-7": {"model.attention": RWKV7}}
