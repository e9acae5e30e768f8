"""DeepSeek sparse attention: a small indexer chooses the keys of each query, and learns from the attention (DSA).

    I[t, s] = Σ_j w_tj · ReLU(q_tj · k_s)      q, k, w: linear maps of the tokens, with few narrow index heads j
    t attends to the `selected` keys of the highest I[t, s]
    loss: KL(p_t ‖ softmax over the selected s of I[t, s])      p: attention weights, averaged over the heads

Gradients of the loss reach the indexer alone, and those of the model's loss all other weights.

Family: attention
Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention",
section 1, equations 1 and 2, and the losses of section 2.1. There, it continues the training of a model with latent
attention, first with all keys; the index queries and keys are rotated in part, and in fp8.
Claim: from DeepSeek-V3.1, no substantial loss of quality, and a lower cost of long contexts.
Cost: D (J (d + 1) + d) weights per layer for J index heads of width d, and d numbers per token in the cache; here, all
    index scores and attention weights, without a fused kernel: for comparisons of the loss, not for speed.
Verified: a loop over queries and keys in float64, written from the equations; gradients by finite differences of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import Attention, Aux, Context, KeysValues, leaf, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Explicit


class DeepSeekSparseAttention(Attention):
    """Causal attention to the keys that an indexer chooses; of equal scores, the earlier key is chosen.

    A key of the cache has a share of the token's index key at its end: 1 / K of it for each of K key heads.

    selected: number of keys that a query attends to.
    index_heads: J.
    index_width: d, a multiple of K.
    loss_weight: factor of the indexer's loss.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, and those of the indexer."""

        index_query: Float[Array, "d_model index_heads index_width"] = param(fan_in="d_model")
        index_key: Float[Array, "d_source index_width"] = param(fan_in="d_source")
        index_weight: Float[Array, "d_model index_heads"] = param(fan_in="d_model")

    exempt_from: ClassVar = {
        "gradients": "the indexer's loss trains the indexer alone, and the choice of keys is not continuous",
        "devices": "the indexer's loss is a mean over the queries of each part of a batch",
    }
    selected: int = static(2048, at_least=1)
    index_heads: int = static(64, at_least=1)
    index_width: int = static(128, at_least=1)
    loss_weight: float = leaf(1.0, at_least=0)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"index_heads": self.index_heads, "index_width": self.index_width}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.index_width % (self.key_value_heads or self.heads):
            yield f"index_width is {self.index_width}; expected a multiple of the number of key heads"
        if self.window is not None:
            yield f"window is {self.window}; expected None, since keys are chosen among all"
        if self.frozen_pattern is not None:
            yield "frozen_pattern is given; expected None, since keys are chosen for queries"

    def cache_widths(self, weights: Weights) -> tuple[int, int]:
        d_key, d_value = super().cache_widths(weights)
        return d_key + self.index_width // weights.value.shape[-2], d_value

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        plain = super().keys_and_values(weights, source, context)
        assert isinstance(plain, KeysValues)
        assert plain.key is not None
        index_key = linear(jax.lax.stop_gradient(source), weights.index_key).reshape(*plain.key.shape[:-1], -1)
        return plain.replace(key=jnp.concatenate([plain.key, index_key.astype(plain.key.dtype)], axis=-1))

    def read(
        self, weights: Weights, x: Float[Array, "*batch T D"], read: Any, context: Context
    ) -> tuple[Float[Array, "*batch T D"], Aux]:
        read = read if isinstance(read, KeysValues) else read.unpack(x.shape[:-2])
        width = read.key.shape[-1] - self.index_width // read.key.shape[-2]
        index_key = read.key[..., width:].reshape(*read.key.shape[:-2], -1)
        scores = self.index_scores(weights, jax.lax.stop_gradient(x), index_key)
        allowed = jnp.ones(scores.shape, bool)
        if context.mask is not None:
            matrix = context.mask.matrix(*scores.shape[-2:])
            allowed = jnp.broadcast_to(matrix[..., 0, :, :] if matrix.ndim > 2 else matrix, scores.shape)
        chosen = self.choose(jnp.where(allowed, scores, -jnp.inf)) & allowed
        inner = context.replace(mask=Explicit(chosen[..., None, :, :]), return_intermediates=True)
        y, aux = super().read(weights, x, read.replace(key=read.key[..., :width]), inner)
        attention = jax.lax.stop_gradient(aux.intermediates["weights"]).mean(-3)
        loss = self.divergence(attention, scores, chosen, context.valid)
        intermediates = aux.intermediates if context.return_intermediates else {}
        return y, aux.replace(losses={"index": self.loss_weight * loss}, intermediates=intermediates)

    def index_scores(
        self, weights: Weights, x: Float[Array, "*batch T D"], index_key: Float[Array, "*batch S d"]
    ) -> Float[Array, "*batch T S"]:
        """Return I."""
        query, factor = linear(x, weights.index_query), linear(x, weights.index_weight, wide=True)
        products = jax.nn.relu(jnp.einsum("...tjd,...sd->...tjs", query, index_key))
        return jnp.einsum("...tj,...tjs->...ts", factor, products.astype(factor.dtype))

    def choose(self, scores: Float[Array, "*batch T S"]) -> Bool[Array, "*batch T S"]:
        """Return the `selected` keys of the highest scores."""
        count = min(self.selected, scores.shape[-1])
        best = jax.lax.top_k(scores, count)[1]
        return jnp.put_along_axis(jnp.zeros(scores.shape, bool), best, True, axis=-1, inplace=False)

    def divergence(
        self,
        attention: Float[Array, "*batch T S"],
        scores: Float[Array, "*batch T S"],
        chosen: Bool[Array, "*batch T S"],
        valid: Bool[Array, "*batch T"] | None,
    ) -> Float[Array, ""]:
        """Return the mean over the queries of KL(attention ‖ softmax of the scores), over the chosen keys."""
        predicted = jax.nn.log_softmax(jnp.where(chosen, scores, jnp.finfo(scores.dtype).min))
        divergence = (jax.scipy.special.xlogy(attention, attention) - attention * predicted).sum(-1)
        counted = chosen.any(-1) if valid is None else chosen.any(-1) & valid
        return jnp.where(counted, divergence, 0).sum() / jnp.maximum(counted.sum(), 1)


VARIANTS: Mapping[str, Mapping[str, object]] = {"DeepSeek sparse": {"model.attention": DeepSeekSparseAttention}}
