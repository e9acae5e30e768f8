"""Lightweight and dynamic convolutions: causal kernels normalised by a softmax, shared by the features of a head.

    y_t = Σ_{i < width} softmax(w)_i ⊙ x_{t−i}, with w learned per head (lightweight), or w = x_t W per token (dynamic)

Family: token mixers
Source: Wu et al. 2019, "Pay Less Attention with Lightweight and Dynamic Convolutions", arXiv:1901.10430.
Claim: dynamic convolutions reach 29.7 BLEU on WMT'14 English-German, better than self-attention.
Cost: 3 d_model² weights, and width · heads for kernels (times d_model if dynamic); a state of width − 1 tokens.
Verified: the sum over earlier tokens in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import previous_tokens


class LightweightConvolution(TokenMixer):
    """y = conv(GLU(x W_1 + b_1)) W_2 + b_2, where each head of features has one kernel softmax(w).

    Tokens before the first are 0. The published decoders widen the kernel with depth: 3, 7, 15, and then 31.
    """

    class Weights(Parameters):
        """W_1 is `input` and `gate`, W_2 is `out`; the last row of a kernel is for the token itself."""

        input: Float[Array, "d_model heads d_channel"] = param(fan_in="d_model", init="branch")
        gate: Float[Array, "d_model heads d_channel"] = param(fan_in="d_model")
        input_bias: Float[Array, "heads d_channel"] = param(init="zeros", decay=False)
        gate_bias: Float[Array, "heads d_channel"] = param(init="zeros", decay=False)
        kernel: Float[Array, "width heads"] = param(std=0.5)
        out: Float[Array, "heads d_channel d_model"] = param(fan_in="heads d_channel", init="branch")
        out_bias: Float[Array, "d_model"] = param(init="zeros", decay=False)

    reads_mask: ClassVar[bool] = False
    heads: int = static(4, at_least=1)
    width: int = static(31, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_channel": model["d_model"] // self.heads}

    def kernels(
        self, weights: Any, x: Float[Array, "*batch T heads d_channel"]
    ) -> Float[Array, "*batch T width heads"]:
        """Return the kernel w of each token before the softmax."""
        return jnp.broadcast_to(weights.kernel, (*x.shape[:-2], *weights.kernel.shape))

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        features = weights.input.shape[1] * weights.input.shape[2]
        return jnp.zeros((*batch, self.width - 1, features), jnp.promote_types(dtype, jnp.float32))

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Array, context: Context) -> tuple[Array, Array]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        gate = jax.nn.sigmoid(linear(x, weights.gate, weights.gate_bias, wide=True))
        heads = linear(x, weights.input, weights.input_bias, wide=True) * gate
        tokens, state = previous_tokens(heads.reshape(*x.shape[:-1], -1), state, context.valid)
        kernel = jax.nn.softmax(self.kernels(weights, heads), axis=-2)
        y = sum(kernel[..., i, :, None] * token.reshape(heads.shape) for i, token in enumerate(tokens))
        return linear(jnp.asarray(y, x.dtype), weights.out, weights.out_bias, contract=2), state


class DynamicConvolution(LightweightConvolution):
    """y = conv(GLU(x W_1 + b_1)) W_2 + b_2, where the kernel of a head is softmax(w) with w = GLU(…)_t W."""

    class Weights(LightweightConvolution.Weights):
        """W, which gives the kernels of a token, in place of fixed kernels."""

        kernel: Float[Array, "heads d_channel width heads"] = param(fan_in="heads d_channel")

    def kernels(
        self, weights: Any, x: Float[Array, "*batch T heads d_channel"]
    ) -> Float[Array, "*batch T width heads"]:
        return linear(x, weights.kernel, contract=2, wide=True)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "lightweight convolution": {"model.attention": LightweightConvolution},
    "dynamic convolution": {"model.attention": DynamicConvolution},
}
