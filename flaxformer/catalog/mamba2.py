"""Mamba-2: a state space with one decay per head and token, after a short convolution, with a gate.

    S_t = e^(Δ_t A) S_{t−1} + B_tᵀ (Δ_t x_t), y_t = C_t S_t + D x_t, Δ_t = softplus(u_t W_Δ + b_Δ)

Family: token mixers
Source: Dao & Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
Space Duality", arXiv:2405.21060.
Claim: competitive with Transformers in language modelling; its core is 2 to 8 times as fast as Mamba's.
Cost: about 6 d_model² weights; a state of 2 d_model · d_state numbers and three tokens.
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
from flaxformer.nn.linear_recurrence import initial_steps, linear_recurrence, short_convolution


class Mamba2(TokenMixer):
    """norm(y_t ⊙ silu(u_t W_z)) W_O, with y_t = C_t S_t + D x_t and S_t = e^(Δ_t A) S_{t−1} + B_tᵀ (Δ_t x_t) per head.

    x, B and C are silu(short convolution of u W); all heads share B and C. Over the heads, −A is initially spaced
    evenly from 1 to 16, and log Δ from log 0.001 to log 0.1, where the authors draw both at random.
    """

    class Weights(Parameters):
        """Matrices of u: z, x, B, C and Δ; kernels; A, D, the gain of the norm, and W_O."""

        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        input: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        write: Float[Array, "d_model d_state"] = param(fan_in="d_model")
        read: Float[Array, "d_model d_state"] = param(fan_in="d_model")
        step: Float[Array, "d_model heads"] = param(fan_in="d_model")
        input_kernel: Float[Array, "width heads d_value"] = param(std=0.29)
        write_kernel: Float[Array, "width d_state"] = param(std=0.29)
        read_kernel: Float[Array, "width d_state"] = param(std=0.29)
        input_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        write_bias: Float[Array, "d_state"] = param(init="zeros", decay=False)
        read_bias: Float[Array, "d_state"] = param(init="zeros", decay=False)
        step_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        log_rate: Float[Array, "heads"] = param(init="zeros", decay=False)
        skip: Float[Array, "heads"] = param(init="ones", decay=False)
        gain: Float[Array, "heads d_value"] = param(init="ones", decay=False)
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    expansion: int = static(2, at_least=1)
    d_state: int = static(128, at_least=1)
    width: int = static(4, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_value": self.expansion * model["d_model"] // self.heads}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        kernels = {"input": weights.input_kernel, "write": weights.write_kernel, "read": weights.read_kernel}
        shapes = {name: (self.width - 1, *kernel.shape[1:]) for name, kernel in kernels.items()}
        shapes["memory"] = (self.heads, self.d_state, weights.input.shape[-1])
        return {
            name: jnp.zeros((*batch, *shape), jnp.promote_types(dtype, jnp.float32)) for name, shape in shapes.items()
        }

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        maps, after = {}, {}
        for name in ("input", "write", "read"):
            y, kernel = linear(x, getattr(weights, name), wide=True), getattr(weights, f"{name}_kernel")
            y, after[name] = short_convolution(y, kernel, state[name], context.valid)
            maps[name] = jax.nn.silu(y + getattr(weights, f"{name}_bias"))
        inputs = maps["input"]
        first = initial_steps(self.heads)
        delta = jax.nn.softplus(linear(x, weights.step, first + weights.step_bias, wide=True))[..., None]
        rate = (jnp.linspace(1, 16, self.heads) * jnp.exp(weights.log_rate))[:, None]
        query, key = (
            jnp.broadcast_to(maps[name][..., None, :], (*delta.shape[:-1], self.d_state)) for name in ("read", "write")
        )
        y, after["memory"] = linear_recurrence(
            query, key, delta * inputs, -delta * rate, state["memory"], valid=context.valid
        )
        y = (y + weights.skip[:, None] * inputs) * jax.nn.silu(linear(x, weights.gate, wide=True))
        y = rms_norm(y.reshape(*x.shape[:-1], -1), epsilon=1e-5).reshape(y.shape) * weights.gain
        return linear(y.astype(x.dtype), weights.out, contract=2), after


VARIANTS: Mapping[str, Mapping[str, object]] = {"Mamba-2": {"model.attention": Mamba2}}
