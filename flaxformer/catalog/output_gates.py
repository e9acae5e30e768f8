"""Output gates: the heads of attention times a sigmoid gate of the layer's input, before the output matrix.

    Y ← Y ⊙ σ(X W_θ)

with one gate per head (head-wise) or per entry of a head (element-wise).

Family: attention
Source: Qiu et al. 2025, "Gated Attention for Large Language Models: Non-linearity, Sparsity, and Attention-Sink-Free",
    arXiv:2505.06708 (the gate after the dot-product attention).
Claim: of 30 variants in mixtures of experts of 15B and dense models of 1.7B weights, trained on up to 3.5T tokens, a
    sigmoid gate of the heads after the dot-product attention is the simple change that always helps; training is more
    stable, with larger learning rates, and there is less of an attention sink.
Cost: head-wise, D N weights per layer for N heads; element-wise, D N d_v, as many as W_O.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from flaxformer import Attention, Context, param
from flaxformer.nn.linear import linear


class HeadGates(Attention):
    """Attention whose heads are multiplied by σ(x W_θ + b), one gate per head."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, W_θ and b."""

        gate: Float[Array, "d_model heads"] = param(fan_in="d_model")
        gate_bias: Float[Array, "heads"] | None = param(init="zeros", decay=False, when="bias")

    def transform_heads(
        self, weights: Weights, heads: Float[Array, "*batch T N d_v"], x: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T N d_v"]:
        gate = jax.nn.sigmoid(linear(x, weights.gate, weights.gate_bias, wide=True))
        return (heads * gate[..., None]).astype(heads.dtype)


class ElementGates(Attention):
    """Attention whose heads are multiplied by σ(x W_θ + b), one gate per entry of a head."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, W_θ and b."""

        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        gate_bias: Float[Array, "heads d_value"] | None = param(init="zeros", decay=False, when="bias")

    def transform_heads(
        self, weights: Weights, heads: Float[Array, "*batch T N d_v"], x: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T N d_v"]:
        gate = jax.nn.sigmoid(linear(x, weights.gate, weights.gate_bias, wide=True))
        return (heads * gate).astype(heads.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "gate per head": {"model.attention": HeadGates},
    "gate per element": {"model.attention": ElementGates},
}
