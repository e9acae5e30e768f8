"""Short convolution: a causal depthwise convolution over a few tokens, in place of attention.

    y_t = Σ_{i < width} w_i ⊙ x_{t−i}, with one kernel w per feature

Family: token mixers
Source: Fu et al. 2023, "Hungry Hungry Hippos", arXiv:2212.14052, section 3 (a shift before the recall); Arora
et al. 2024, "Simple linear attention language models balance the recall-throughput tradeoff" (in hybrid
models).
Claim: with it, a later layer finds what followed an earlier occurrence of the current token.
Cost: width · d_model weights; a state of width − 1 tokens.
Verified: the sum over earlier tokens in NumPy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Context,
    Parameters,
    TokenMixer,
    leaf,
    param,
    static,
)
from flaxformer.nn.linear_recurrence import short_convolution


class ShortConvolution(TokenMixer):
    """y_t = Σ_{i < width} w_i ⊙ x_{t−i}, with one kernel w per feature.

    Padding is skipped: x_{t−i} is the i-th earlier token that is not padding. The decoding state holds the last
    width − 1 such tokens, initially zeros.
    """

    class Weights(Parameters):
        """Kernels; the last row is for the token itself."""

        kernel: Float[Array, "width d_model"] = param(std="std")

    reads_mask: ClassVar[bool] = False
    width: int = static(4, at_least=2)
    std: float = leaf(0.5, at_least=0)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        return jnp.zeros((*batch, self.width - 1, weights.kernel.shape[-1]), dtype)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Array, context: Context
    ) -> tuple[Array, Array]:
        y, state = short_convolution(x, weights.kernel, state, context.valid)
        return y.astype(x.dtype), state


VARIANTS: Mapping[str, Mapping[str, object]] = {"short convolution": {"model.attention": ShortConvolution}}
