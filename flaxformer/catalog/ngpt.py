"""nGPT: embeddings, residual streams and the rows of all matrices have length 1, and a branch is a step on the sphere.

    h ← N(h + |α| ⊙ (N(f(h)) − N(h))), N(x) = x / |x|; logits of attention √d_head (s ⊙ N(q)) · (s ⊙ N(k))
    gated network (s_u ⊙ x U) ⊙ silu(√D s_v ⊙ x V), logits of tokens s_z ⊙ (h Z); after a step, N of each row along D

Family: norms
Source: Loshchilov et al. 2024, "nGPT: Normalized Transformer with Representation Learning on the Hypersphere",
arXiv:2410.01131, and the authors' code, github.com/NVIDIA/ngpt. There, weight decay and warm-up are left out.
Claim: 4 to 20 times fewer steps to the same loss at 0.5B and 1B weights, by the length of the sequences.
Cost: 2 D + d_head N + 2 d_ff weights per layer for the scales, V for those of the logits, and no norms; a normalisation
of all matrices per step.
Verified: the equations, token by token, in float64; the lengths of the rows after a step.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import NO_NORM, Attention, Context, Gated, LanguageModel, Parameters, Residual, Tokens, leaf, param
from flaxformer.nn import Mask
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear

STEP = 0.05
"""Initial α."""


def unit(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Scale vectors to length 1; 0 stays 0."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * jax.lax.rsqrt(jnp.square(wide).sum(axis, keepdims=True) + 1e-16)).astype(x.dtype)


class NormalizedAttention(Attention):
    """Attention with the logits √d_head (s ⊙ N(q)) · (s ⊙ N(k)), where s = 1 + √D δ, and matrices of unit rows."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, and δ: of the size of which the authors store s, so that Adam's steps are theirs."""

        logit_scale: Float[Array, "heads d_head"] = param(init="zeros", decay=False)

    scale_exponent: float = leaf(-0.5)

    def logits(
        self,
        weights: Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        s = 1 + jnp.sqrt(weights.out.shape[-1]) * weights.logit_scale
        return super().logits(weights, unit(query) * s * s, unit(key), mask, bias, scale)

    def after_step(self, weights: Any) -> Any:
        rows = {name: unit(getattr(weights, name), 0) for name in ("query", "key", "value")}
        return weights.replace(**rows, out=unit(weights.out))


class NormalizedGated(Gated):
    """(s_u ⊙ x U) ⊙ σ(√D s_v ⊙ x V), then W_2, with matrices of unit rows; s = 1 + δ."""

    class Weights(Gated.Weights):
        """Weights of `Gated`, and δ of both scales."""

        up_scale: Float[Array, "d_ff"] = param(init="zeros", decay=False)
        gate_scale: Float[Array, "d_ff"] = param(init="zeros", decay=False)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        gains = ((1 + weights.up_scale) * jnp.sqrt(x.shape[-1]), (1 + weights.gate_scale) * jnp.sqrt(x.shape[-1]))
        maps = ((weights.up, weights.up_bias), (weights.gate, weights.gate_bias))
        up, gate = (linear(x, *of) * gain for of, gain in zip(maps, gains, strict=True))
        return linear((up * ACTIVATIONS[self.activation](gate)).astype(x.dtype), weights.down, weights.down_bias)

    def after_step(self, weights: Any) -> Any:
        return weights.replace(up=unit(weights.up, 0), gate=unit(weights.gate, 0), down=unit(weights.down))


class SphereStep(Residual):
    """N(N(h) + |α| ⊙ (N(f(h)) − N(h))), with α = 0.05 (1 + √D δ)."""

    class Weights(Parameters):
        """The vector δ."""

        step: Float[Array, "d_model"] = param(init="zeros", decay=False)

    def join(
        self, weights: Any, x: Float[Array, "*batch T D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T D"]:
        h, alpha = unit(x), jnp.abs(STEP * (1 + jnp.sqrt(x.shape[-1]) * weights.step))
        return unit(h + alpha * (unit(update) - h)).astype(x.dtype)


class NormalizedTokens(Tokens):
    """Embedding whose rows have length 1."""

    def after_step(self, weights: Any) -> Any:
        return weights if weights.tokens is None else weights.replace(tokens=unit(weights.tokens))


class NormalizedHead(LanguageModel):
    """Logits s ⊙ (h Z), with s = 1 + √D δ and vectors of length 1 for all tokens."""

    class Weights(LanguageModel.Weights):
        """Weights of `LanguageModel`, and δ."""

        logit_scale: Float[Array, "outputs"] = param(init="zeros", decay=False)

    def project(
        self, weights: Any, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        s = 1 + jnp.sqrt(features.shape[-1]) * weights.logit_scale
        return super().project(weights, features, table) * s

    def after_step(self, weights: Any) -> Any:
        return weights if weights.matrix is None else weights.replace(matrix=unit(weights.matrix, 0))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "nGPT": {
        "model.norm": NO_NORM,
        "model.inputs": NormalizedTokens,
        "model.residual": SphereStep,
        "model.attention": NormalizedAttention,
        "model.attention.scale_exponent": -0.5,
        "model.attention.bias": False,
        "model.attention.out_bias": False,
        "model.feed_forward": NormalizedGated,
        "model.feed_forward.activation": "silu",
        "model.feed_forward.bias": False,
        "model.head": NormalizedHead,
        "optimizer.weight_decay": None,
    }
}
