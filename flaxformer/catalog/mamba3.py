"""Mamba-3: a state space whose input is a weighted mean of two tokens, and whose state turns by angles of the tokens.

    S_t = α_t S_{t−1} + (1 − λ_t) Δ_t α_t B_{t−1}ᵀ x_{t−1} + λ_t Δ_t B_tᵀ x_t, y_t = C_t S_t + D x_t, α_t = e^(Δ_t A_t)
    B and C are normalised, with a bias per head, and turned by the angles Σ_{s ≤ t} Δ_s π tanh(u_s W_θ)

Family: token mixers
Source: Lahoti et al. 2026, "Mamba-3: Improved Sequence Modeling using State Space Principles", arXiv:2603.15569; its
abstract and two implementations after the authors' module were read (flash-linear-attention; a port to JAX). The form
with one input and one output (SISO), where half of the entries of B and C turn.
Claim: 0.6 points more accuracy on average than gated DeltaNet at 1.5B weights; the perplexity of Mamba-2 with half of
its state; parity is learned.
Cost: about 6 d_model² weights; a state of 2 d_model · d_state numbers, and B, x and angles of one token.
Verified: the recurrence, token by token, with complex numbers, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import initial_steps, linear_recurrence, previous_tokens

LEAST_RATE = 1e-4


def turn(x: Float[Array, "*batch d_state"], angle: Float[Array, "*batch pairs"]) -> Float[Array, "*batch d_state"]:
    """Rotate the first pairs of neighbouring entries."""
    width = 2 * angle.shape[-1]
    first, second = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.stack([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return jnp.concatenate([turned.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


class Mamba3(TokenMixer):
    """(y_t ⊙ silu(u_t W_z)) W_O, with the state of each head; all heads share B and C but for their biases.

    Δ = softplus(u W_Δ + b_Δ), A = −softplus(u W_A), λ = σ(u W_λ). Over the heads, log Δ is initially spaced evenly from
    log 0.001 to log 0.1, where the authors draw it at random.
    """

    class Weights(Parameters):
        """Matrices of u: z, x, B, C, Δ, A, λ and θ; gains and biases of B and C, b_Δ, D, and W_O."""

        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        input: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        write: Float[Array, "d_model d_state"] = param(fan_in="d_model")
        read: Float[Array, "d_model d_state"] = param(fan_in="d_model")
        step: Float[Array, "d_model heads"] = param(fan_in="d_model")
        rate: Float[Array, "d_model heads"] = param(fan_in="d_model")
        blend: Float[Array, "d_model heads"] = param(fan_in="d_model")
        angle: Float[Array, "d_model pairs"] = param(fan_in="d_model")
        write_gain: Float[Array, "d_state"] = param(init="ones", decay=False)
        read_gain: Float[Array, "d_state"] = param(init="ones", decay=False)
        write_bias: Float[Array, "heads d_state"] = param(init="ones", decay=False)
        read_bias: Float[Array, "heads d_state"] = param(init="ones", decay=False)
        step_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        skip: Float[Array, "heads"] = param(init="ones", decay=False)
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    expansion: int = static(2, at_least=1)
    d_state: int = static(128, at_least=4)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_value": self.expansion * model["d_model"] // self.heads, "pairs": self.d_state // 4}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        d_value, pairs = weights.input.shape[-1], weights.angle.shape[-1]
        memory = (self.heads, self.d_state, d_value)
        shapes = {"memory": memory, "earlier": memory, "angle": (self.heads, pairs)}
        shapes |= {"last": (1, self.heads * (self.d_state + d_value))}
        return {
            name: jnp.zeros((*batch, *shape), jnp.promote_types(dtype, jnp.float32)) for name, shape in shapes.items()
        }

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        first = initial_steps(self.heads)
        delta = jax.nn.softplus(linear(x, weights.step, first + weights.step_bias, wide=True))[..., None]
        rate = jnp.maximum(jax.nn.softplus(linear(x, weights.rate, wide=True)), LEAST_RATE)[..., None]
        blend = jax.nn.sigmoid(linear(x, weights.blend, wide=True))[..., None]
        angle = jnp.where(
            valid[..., None, None], delta * jnp.pi * jnp.tanh(linear(x, weights.angle, wide=True))[..., None, :], 0
        )
        angle = state["angle"][..., None, :, :] + jnp.cumsum(angle, axis=-3)
        value = linear(x, weights.input, wide=True)
        key, query = (
            turn(rms_norm(linear(x, matrix, wide=True), gain, None, epsilon=1e-5)[..., None, :] + bias, angle)
            for matrix, gain, bias in (
                (weights.write, weights.write_gain, weights.write_bias),
                (weights.read, weights.read_gain, weights.read_bias),
            )
        )
        both = jnp.concatenate([key, value], axis=-1)
        (before, _), last = previous_tokens(both.reshape(*x.shape[:-1], -1), state["last"], valid)
        key_before, value_before = jnp.split(before.reshape(both.shape), [self.d_state], axis=-1)
        decay = -delta * rate
        now, memory = linear_recurrence(query, key, blend * delta * value, decay, state["memory"], valid=valid)
        written = (1 - blend) * delta * jnp.exp(decay) * value_before
        then, earlier = linear_recurrence(query, key_before, written, decay, state["earlier"], valid=valid)
        y = now + then + weights.skip[:, None] * value
        y = y * jax.nn.silu(linear(x, weights.gate, wide=True))
        after = {"memory": memory, "earlier": earlier, "angle": angle[..., -1, :, :].astype(state["angle"].dtype)}
        return linear(y.astype(x.dtype), weights.out, contract=2), after | {"last": last}


VARIANTS: Mapping[str, Mapping[str, object]] = {"Mamba-3": {"model.attention": Mamba3}}
