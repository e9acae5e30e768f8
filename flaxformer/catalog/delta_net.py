"""DeltaNet: linear attention that replaces the value stored for a key, instead of adding to it.

    S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), y_t = q_t S_t, β_t = σ(x_t W_β)

Family: token mixers
Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
arXiv:2406.06484.
Claim: lower perplexity and better zero-shot results than Mamba and GLA at 1.3B weights.
Cost: the weights of attention, d_model · heads for β, and the short convolutions; a state of d_model² / heads numbers.
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
from flaxformer.nn.linear_recurrence import linear_recurrence, normalize_length, short_convolution


class DeltaNet(TokenMixer):
    """y_t = (norm(q_t S_t) ⊙ gain) W_O, with the state S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) of each head.

    q, k and v are silu(short convolution of x W); q and k are then scaled to length 1. All tokens of a chunk are
    computed together (`linear_recurrence`).
    """

    class Weights(Parameters):
        """Matrices into the heads, kernels of their convolutions, the gain of the norm, and W_O."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        query_kernel: Float[Array, "width heads d_key"] = param(std=0.29)
        key_kernel: Float[Array, "width heads d_key"] = param(std=0.29)
        value_kernel: Float[Array, "width heads d_value"] = param(std=0.29)
        strength: Float[Array, "d_model heads"] = param(fan_in="d_model")
        gain: Float[Array, "d_value"] = param(init="ones", decay=False)
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    width: int = static(4, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads, "d_value": model["d_model"] // self.heads}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        d_key, d_value = weights.key.shape[-1], weights.value.shape[-1]
        shapes = {"query": (self.width - 1, self.heads, d_key), "key": (self.width - 1, self.heads, d_key)}
        shapes |= {"value": (self.width - 1, self.heads, d_value), "memory": (self.heads, d_key, d_value)}
        return {
            name: jnp.zeros((*batch, *shape), jnp.promote_types(dtype, jnp.float32)) for name, shape in shapes.items()
        }

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def heads_of(self, weights: Weights, x: Array, state: Any, context: Context) -> tuple[Array, Array, Array, Any]:
        """Return the queries, keys and values of tokens, and the state of the convolutions after them."""
        maps, after = {}, {}
        for name in ("query", "key", "value"):
            heads, kernel = linear(x, getattr(weights, name), wide=True), getattr(weights, f"{name}_kernel")
            heads, after[name] = short_convolution(heads, kernel, state[name], context.valid)
            maps[name] = jax.nn.silu(heads)
        query, key = (normalize_length(maps[name]) for name in ("query", "key"))
        return query, key, maps["value"], after

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value, after = self.heads_of(weights, x, state, context)
        strength = jax.nn.sigmoid(linear(x, weights.strength, wide=True))[..., None]
        y, after["memory"] = linear_recurrence(
            query,
            strength * key,
            value,
            None,
            state["memory"],
            update=(-key, strength * key),
            valid=context.valid,
        )
        y = rms_norm(y / key.shape[-1] ** 0.5, epsilon=1e-5) * weights.gain
        return linear(y.astype(x.dtype), weights.out, contract=2), after


VARIANTS: Mapping[str, Mapping[str, object]] = {"DeltaNet": {"model.attention": DeltaNet}}
