"""Mixture of softmaxes: the next token's distribution is a weighted mean of several softmaxes.

    P = Σ_k π_k softmax(h_k G), with π = softmax(x W_π) and h_k = tanh(x W_k + b_k)

Family: embeddings and heads
Source: Yang et al. 2018, "Breaking the Softmax Bottleneck: A High-Rank RNN Language Model", arXiv:1711.03953.
Claim: lower perplexity of recurrent language models on Penn Treebank and WikiText-2, then the state of the art.
Cost: K square matrices, and K times the products with the output matrix.
Verified: a loop over softmaxes in float64.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import LanguageModel, param, static
from flaxformer.nn.linear import linear


class MixtureOfSoftmaxes(LanguageModel):
    """The outputs are log P, which are logits whose softmax is P."""

    class Weights(LanguageModel.Weights):
        """W_π is `prior`, and W_k are in `latent`."""

        prior: Float[Array, "d_model softmaxes"] = param(fan_in="d_model", role="output")
        latent: Float[Array, "d_model softmaxes d_latent"] = param(fan_in="d_model")
        latent_bias: Float[Array, "softmaxes d_latent"] = param(init="zeros", decay=False)

    softmaxes: int = static(4, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_latent": model["d_model"]}

    def project(
        self, weights: Weights, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        prior = jax.nn.log_softmax(linear(features, weights.prior, wide=True))
        latent = jnp.tanh(linear(features, weights.latent, weights.latent_bias, wide=True)).astype(features.dtype)
        logits = super().project(weights, latent, table)
        wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        mixed = jax.nn.logsumexp(prior[..., None] + jax.nn.log_softmax(wide), axis=-2)
        return mixed.astype(logits.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"4 softmaxes": {"model.head": MixtureOfSoftmaxes}}
