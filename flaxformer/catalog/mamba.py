"""Mamba: a state space per feature, whose step, input and output depend on the token.

    h_t = e^(Δ_t A) ⊙ h_{t−1} + Δ_t B_t x_t, y_t = C_t · h_t + D x_t, Δ_t = softplus(x_t W_1 W_2 + b)

Family: token mixers
Source: Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv:2312.00752.
Claim: at 3B weights, better than Transformers of the same size and equal to those of twice the size.
Cost: about 6 d_model² weights, in place of attention and feed-forward; a state of 2 d_model · d_state numbers.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import initial_steps, linear_recurrence, short_convolution


class Mamba(TokenMixer):
    """(y_t ⊙ silu(u_t W_z)) W_O, with y_t = C_t · h_t + D x_t and h_t = e^(Δ_t A) ⊙ h_{t−1} + Δ_t B_t x_t per feature.

    x is silu(short convolution of u W_x), and Δ, B and C are linear maps of x. −A is initially 1, …, d_state, and log
    Δ is spaced evenly from log 0.001 to log 0.1 over the features, where the authors draw it at random.
    """

    class Weights(Parameters):
        """Matrices of u: z and x; the kernel; matrices of x: B, C and Δ; A, D and W_O."""

        gate: Float[Array, "d_model d_inner"] = param(fan_in="d_model")
        input: Float[Array, "d_model d_inner"] = param(fan_in="d_model", init="branch")
        kernel: Float[Array, "width d_inner"] = param(std=0.29)
        kernel_bias: Float[Array, "d_inner"] = param(init="zeros", decay=False)
        write: Float[Array, "d_inner d_state"] = param(fan_in="d_inner")
        read: Float[Array, "d_inner d_state"] = param(fan_in="d_inner")
        step_down: Float[Array, "d_inner rank"] = param(fan_in="d_inner")
        step_up: Float[Array, "rank d_inner"] = param(fan_in="rank")
        step_bias: Float[Array, "d_inner"] = param(init="zeros", decay=False)
        log_rate: Float[Array, "d_inner d_state"] = param(init="zeros", decay=False)
        skip: Float[Array, "d_inner"] = param(init="ones", decay=False)
        out: Float[Array, "d_inner d_model"] = param(fan_in="d_inner", init="branch")

    reads_mask: ClassVar[bool] = False
    expansion: int = static(2, at_least=1)
    d_state: int = static(16, at_least=1)
    width: int = static(4, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_inner": self.expansion * model["d_model"], "rank": -(-model["d_model"] // 16)}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        wide, d_inner = jnp.promote_types(dtype, jnp.float32), weights.kernel.shape[-1]
        shapes = {"input": (self.width - 1, d_inner), "memory": (d_inner, self.d_state, 1)}
        return {name: jnp.zeros((*batch, *shape), wide) for name, shape in shapes.items()}

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        gate = jax.nn.silu(linear(x, weights.gate, wide=True))
        u, last = short_convolution(linear(x, weights.input, wide=True), weights.kernel, state["input"], context.valid)
        u = jax.nn.silu(u + weights.kernel_bias)
        narrow, d_inner = u.astype(x.dtype), u.shape[-1]
        first = initial_steps(d_inner)
        step = linear(linear(narrow, weights.step_down), weights.step_up, first + weights.step_bias, wide=True)
        delta = jax.nn.softplus(step)[..., None]  # [*batch, T, d_inner, 1]: one head per feature
        rate = jnp.arange(1, self.d_state + 1) * jnp.exp(weights.log_rate)
        query, key = (
            jnp.broadcast_to(linear(narrow, matrix, wide=True)[..., None, :], (*u.shape, self.d_state))
            for matrix in (weights.read, weights.write)
        )
        y, memory = linear_recurrence(
            query, key, delta * u[..., None], -delta * rate, state["memory"], valid=context.valid, chunk=8
        )
        y = (y[..., 0] + weights.skip * u) * gate
        return linear(y.astype(x.dtype), weights.out), {"input": last, "memory": memory}


VARIANTS: Mapping[str, Mapping[str, object]] = {"Mamba": {"model.attention": Mamba}}
