"""Canon layers: x + a causal convolution of x over four tokens, at several places of a block.

    canon(x)_t = x_t + Σ_{i < 4} w_i ⊙ x_{t−i}; A: before attention, B: on queries, keys and values, C: before the
    feed-forward network, D: within it

Family: token mixers
Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
arXiv:2512.17351.
Claim: twice the reasoning depth in synthetic tasks; without positions, models match those with rotary positions.
Cost: 4 weights per feature and place; a state of three tokens per place. B is computed as maps of the last four tokens
here: four times the multiplications of the maps into the heads.
Verified: attention and the dense network of convolved inputs, written in NumPy in float64, and finite differences.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Context, Dense, param, static
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import previous_tokens, short_convolution


def canon(
    x: Float[Array, "*batch T D"], kernel: Float[Array, "width D"], state: Array, context: Context
) -> tuple[Float[Array, "*batch T D"], Array]:
    """Return x plus its convolution, and the last width − 1 tokens; 0 at padding."""
    x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
    y, state = short_convolution(x, kernel, state, context.valid)
    return x + y.astype(x.dtype), state


class CanonAttention(Attention):
    """Attention that reads canon(x): place A. Cross-attention reads x."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the kernel."""

        kernel: Float[Array, "width d_model"] = param(std=0.29)

    width: int = static(4, at_least=2)

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Any]:
        tokens = jnp.zeros((*batch, self.width - 1, weights.kernel.shape[-1]), dtype)
        return tokens, super().init_state(weights, batch, capacity, dtype)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Any:
        if not context.is_cross:
            start = jnp.zeros((*x.shape[:-2], self.width - 1, x.shape[-1]), x.dtype)
            x, _ = canon(x, weights.kernel, start, context)
        return super().apply(weights, x, context)

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Any, Any]:
        x, tokens = canon(x, weights.kernel, state[0], context)
        y, cache = super().step(weights, x, state[1], context)
        return y, (tokens, cache)


class CanonHeads(CanonAttention):
    """`CanonAttention` with canon(…) of queries, keys and values, before positions: places A and B.

    canon(x W + b)_t = Σ_i (x_{t−i} W + b) ⊙ (w_i + 1[i = 0]) over the tokens that exist is a linear map of the last
    four tokens, each with a 1 if it exists.
    """

    class Weights(CanonAttention.Weights):
        """Weights of `CanonAttention`, and the kernels of place B."""

        query_kernel: Float[Array, "width heads d_head"] = param(std=0.29)
        key_kernel: Float[Array, "width key_value_heads d_head"] = param(std=0.29)
        value_kernel: Float[Array, "width key_value_heads d_value"] = param(std=0.29)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.share_query_key or self.frozen_pattern is not None or self.scale_width == "model":
            yield "share_query_key, frozen_pattern or scale_width is given; expected matrices of queries and keys"

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Any]:
        tokens, cache = super().init_state(weights, batch, capacity, dtype)
        return tokens, (jnp.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), dtype), cache)

    def last_tokens(
        self, weights: Any, x: Float[Array, "*batch T D"], state: Array, context: Context
    ) -> tuple[Any, ...]:
        """Return the last tokens of each token, the attention and the weights that read them, and the next state."""
        ones = jnp.ones_like(x[..., :1])
        tokens, last = previous_tokens(jnp.concatenate([x, ones], axis=-1), state, context.valid)
        maps: dict[str, Any] = {"query_bias": None, "key_bias": None, "value_bias": None}
        for name in ("query", "key", "value"):
            matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
            bias = jnp.zeros_like(matrix[0]) if bias is None else bias.astype(matrix.dtype)
            kernel = getattr(weights, f"{name}_kernel").at[-1].add(1)
            rows = kernel[:, None] * jnp.concatenate([matrix, bias[None]])  # [width, D + 1, heads, d]
            maps[name] = rows.reshape(-1, *matrix.shape[1:]).astype(matrix.dtype)
        inner = self.replace(d_head=weights.query.shape[-1])
        return jnp.concatenate(tokens, axis=-1), inner, weights.replace(**maps), last

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Any:
        if context.is_cross:
            return super().apply(weights, x, context)
        tokens, (before, _) = self.init_state(weights, x.shape[:-2], 0, x.dtype)
        x, _ = canon(x, weights.kernel, tokens, context)
        wide, inner, maps, _ = self.last_tokens(weights, x, before, context)
        return Attention.apply(inner, maps, wide, context)

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Any, Any]:
        tokens, (before, cache) = state
        x, tokens = canon(x, weights.kernel, tokens, context)
        wide, inner, maps, before = self.last_tokens(weights, x, before, context)
        y, cache = Attention.step(inner, maps, wide, cache, context)
        return y, (tokens, (before, cache))


class CanonDense(Dense):
    """Dense network of canon(x), place C, whose hidden layer is canon(…) before the activation, place D."""

    reads_others: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False

    class Weights(Dense.Weights):
        """Weights of `Dense`, and the kernels."""

        kernel: Float[Array, "width d_model"] = param(std=0.29)
        hidden_kernel: Float[Array, "width d_ff"] = param(std=0.29)

    width: int = static(4, at_least=2)

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Array]:
        kernels = (weights.kernel, weights.hidden_kernel)
        tokens, hidden = (jnp.zeros((*batch, self.width - 1, kernel.shape[-1]), dtype) for kernel in kernels)
        return tokens, hidden

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Any, x: Float[Array, "*batch T D"], state: tuple[Array, Array], context: Context
    ) -> tuple[Array, tuple[Array, Array]]:
        x, tokens = canon(x, weights.kernel, state[0], context)
        hidden, last = canon(linear(x, weights.up, weights.up_bias), weights.hidden_kernel, state[1], context)
        return linear(ACTIVATIONS[self.activation](hidden), weights.down, weights.down_bias), (tokens, last)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "Canon-A": {"model.attention": CanonAttention},
    "Canon-ACD": {"model.attention": CanonAttention, "model.feed_forward": CanonDense},
    "Canon-ABCD": {"model.attention": CanonHeads, "model.feed_forward": CanonDense},
}
