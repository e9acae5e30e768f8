"""Synthesizers: attention weights that do not compare tokens, but depend on the token or on nothing.

    y = softmax(B) V, with B_t = relu(x_t W_1 + b_1) W_2 + b_2 (dense), B = R (random), or B = R_1 R_2ᵀ (factorised)

Family: token mixers
Source: Tay et al. 2020, "Synthesizer: Rethinking Self-Attention for Transformer Models", arXiv:2005.00743.
Claim: random alignment matrices perform competitively with attention by queries and keys.
Cost: per layer, heads · length² weights (random) or 2 · heads · length · rank (factorised), without queries and keys;
decoding reads the whole prefix at every step.
Verified: a loop over tokens in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn.linear import linear


class Synthesizer(TokenMixer):
    """y = softmax(B) V W_O over the keys that the mask allows; a subclass gives B for all positions of keys."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """Matrices of the values and out of the heads."""

        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    heads: int = static(4, at_least=1)
    length: int = static(512, at_least=1)

    @property
    def max_length(self) -> int:
        """Longest sequence."""
        return self.length

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_value": model["d_model"] // self.heads}

    def logits(
        self, weights: Any, x: Float[Array, "*batch T D"], positions: Array
    ) -> Float[Array, "*batch T heads length"]:
        """Return B of each query, for keys at all positions."""
        raise NotImplementedError

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        queries, keys = (jnp.broadcast_to(p, x.shape[:-1]) for p in (context.query_positions, context.key_positions))
        logits = self.logits(weights, x, queries)  # a key is at the index of its position
        logits = jnp.take_along_axis(logits, keys[..., None, None, :], axis=-1)
        allowed = jnp.ones((x.shape[-2], x.shape[-2]), bool)
        if context.mask is not None:
            allowed = context.mask.matrix(x.shape[-2], x.shape[-2])
            allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        shares = jax.nn.softmax(jnp.where(allowed[..., :, None, :], logits, -1e30))  # [*batch, T, heads, T]
        y = jnp.einsum("...tns,...snv->...tnv", shares, linear(x, weights.value, wide=True))
        return linear(y.astype(x.dtype), weights.out, contract=2)


class DenseSynthesizer(Synthesizer):
    """B_t = relu(x_t W_1 + b_1) W_2 + b_2 in each head."""

    class Weights(Synthesizer.Weights):
        """W_1, b_1, W_2 and b_2."""

        first: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")
        first_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        second: Float[Array, "heads d_value length"] = param(fan_in="d_value", batch_axis="heads")
        second_bias: Float[Array, "heads length"] = param(init="zeros", decay=False)

    def logits(
        self, weights: Any, x: Float[Array, "*batch T D"], positions: Array
    ) -> Float[Array, "*batch T heads length"]:
        hidden = jax.nn.relu(linear(x, weights.first, weights.first_bias, wide=True))
        return jnp.einsum("...nv,nvl->...nl", hidden, weights.second) + weights.second_bias


class RandomSynthesizer(Synthesizer):
    """B = R, learned, or drawn once and fixed."""

    learned: bool = static(True)

    class Weights(Synthesizer.Weights):
        """R, with a row per position of the query."""

        table: Float[Array, "length heads length"] = param(std=1.0, decay=False, trained="learned")

    def logits(
        self, weights: Any, x: Float[Array, "*batch T D"], positions: Array
    ) -> Float[Array, "*batch T heads length"]:
        return weights.table[positions]


class FactorisedRandomSynthesizer(Synthesizer):
    """B = R_1 R_2ᵀ of a low rank."""

    rank: int = static(8, at_least=1)

    class Weights(Synthesizer.Weights):
        """R_1 of queries and R_2 of keys."""

        rows: Float[Array, "length heads rank"] = param(std=1.0, decay=False)
        columns: Float[Array, "length heads rank"] = param(std=1.0, decay=False)

    def logits(
        self, weights: Any, x: Float[Array, "*batch T D"], positions: Array
    ) -> Float[Array, "*batch T heads length"]:
        return jnp.einsum("...nr,lnr->...nl", weights.rows[positions], weights.columns)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "dense synthesizer": {"model.attention": DenseSynthesizer},
    "random synthesizer": {"model.attention": RandomSynthesizer},
    "fixed random synthesizer": {"model.attention": RandomSynthesizer, "model.attention.learned": False},
    "factorised random synthesizer": {"model.attention": FactorisedRandomSynthesizer},
}
