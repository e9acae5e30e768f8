"""MesaNet: the memory is the solution of a regularised least-squares problem over all earlier keys and values.

    R_t = γ_t R_{t−1} + β_t k_tᵀ k_t, S_t = γ_t S_{t−1} + β_t k_tᵀ v_t, y_t = q_t (R_t + diag(λ))⁻¹ S_t

Family: token mixers
Source: von Oswald et al. 2025, "MesaNet: Sequence Modeling by Locally Optimal Test-Time Training", arXiv:2506.05233,
and the layer of flash-linear-attention. There, the system is solved by up to 30 steps of conjugate gradients; here,
exactly.
Claim: lower perplexity and better results on tasks than former recurrent models at a billion weights, above all with
long contexts, with more FLOPs in inference.
Cost: the weights of attention, 2 D N for γ and β, and short convolutions; a state of two matrices per head, and a
system of size d_key per token and head.
Verified: the recurrence with the inverse matrix, token by token, in NumPy in float64, and its finite differences.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import normalize_length, short_convolution

LOWEST = 0.25
"""Lower bound of λ, which is 1 at first."""


class MesaNet(TokenMixer):
    """y_t = (norm(q_t (R_t + diag(λ))⁻¹ S_t) ⊙ gain) W_O, with the states R_t and S_t of each head.

    q and k are silu(short convolution of x W), scaled to length 1; γ = σ(x W_γ + b_γ), β = σ(x W_β + b_β), and
    λ = ¼ + softplus(l).
    """

    class Weights(Parameters):
        """Matrices into the heads, kernels, γ and β, l, the gain of the norm, and W_O."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_key"] = param(fan_in="d_model", init="branch")
        query_kernel: Float[Array, "width heads d_key"] = param(std=0.29)
        key_kernel: Float[Array, "width heads d_key"] = param(std=0.29)
        decay: Float[Array, "d_model heads"] = param(fan_in="d_model")
        decay_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        strength: Float[Array, "d_model heads"] = param(fan_in="d_model")
        strength_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        ridge: Float[Array, "heads d_key"] = param(value=math.log(math.expm1(1 - LOWEST)), decay=False)
        gain: Float[Array, "d_key"] = param(init="ones", decay=False)
        out: Float[Array, "heads d_key d_model"] = param(fan_in="heads d_key", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    width: int = static(4, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        d_key = weights.key.shape[-1]
        shapes = dict.fromkeys(("query", "key"), (self.width - 1, self.heads, d_key))
        shapes |= dict.fromkeys(("keys", "values"), (self.heads, d_key, d_key))
        return {
            name: jnp.zeros((*batch, *shape), jnp.promote_types(dtype, jnp.float32)) for name, shape in shapes.items()
        }

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        maps, after = {}, {}
        for name in ("query", "key"):
            heads, kernel = linear(x, getattr(weights, name), wide=True), getattr(weights, f"{name}_kernel")
            heads, after[name] = short_convolution(heads, kernel, state[name], valid)
            maps[name] = normalize_length(jax.nn.silu(heads))
        decay = jax.nn.sigmoid(linear(x, weights.decay, weights.decay_bias, wide=True))
        strength = jax.nn.sigmoid(linear(x, weights.strength, weights.strength_bias, wide=True))
        decay, strength = jnp.where(valid[..., None], decay, 1), jnp.where(valid[..., None], strength, 0)
        both = jnp.concatenate([maps["key"], linear(x, weights.value, wide=True)], axis=-1)

        def token(memory: Array, inputs: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
            decay, strength, key, both = inputs
            written = (strength[..., None] * key)[..., :, None] * both[..., None, :]
            memory = (decay[..., None, None] * memory + written).astype(memory.dtype)
            return memory, memory

        inputs = [jnp.moveaxis(y, x.ndim - 2, 0) for y in (decay, strength, maps["key"], both)]
        memory = jnp.concatenate([state["keys"], state["values"]], axis=-1)
        memory, memories = jax.lax.scan(token, memory, tuple(inputs))
        after["keys"], after["values"] = jnp.split(memory, 2, axis=-1)
        keys, values = jnp.split(jnp.moveaxis(memories, 0, x.ndim - 2), 2, axis=-1)  # [*batch, T, N, d, d]
        ridge = LOWEST + jax.nn.softplus(weights.ridge)
        system = keys + ridge[..., None] * jnp.eye(ridge.shape[-1])
        solve = functools.partial(jax.scipy.linalg.solve, assume_a="pos")
        solved = jnp.vectorize(solve, signature="(d,d),(d)->(d)")(system, maps["query"])
        y = (solved[..., None, :] @ values)[..., 0, :]
        y = rms_norm(y, epsilon=1e-5) * weights.gain
        return linear(y.astype(x.dtype), weights.out, contract=2), after


VARIANTS: Mapping[str, Mapping[str, object]] = {"MesaNet": {"model.attention": MesaNet}}
