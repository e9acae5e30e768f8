"""Value embeddings: each layer mixes an embedding of the token into its values.

    v_t ← (1 − λ) v_t + λ U[token_t], with a table U and a λ per layer; λ = ½ at the start
    gated: v_t ← v_t + 3 σ(x_t G) U[token_t], in every second layer

Family: attention
Source: modded-nanogpt, record of 4 December 2024 ("Value Embeddings", by @KoszarskyB), with a table of each layer;
    later records and nanochat (its code of July 2026) give tables to some layers alone, and gate them.
Claim: validation loss 3.2777 (standard deviation 0.0040, n = 40) on FineWeb with 463M further weights, of which 9,216
    are active per token, for a 124M GPT-2.
Cost: V K d_v weights per layer for a vocabulary V and K key-value heads; a lookup per token, no matrix product.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from flaxformer import Attention, Block, Context, KeysValues, param
from flaxformer.nn.linear import linear

GATE_WIDTH = 12


class ValueEmbeddings(Attention):
    """Attention with the values (1 − λ) x W_V + λ U[token]; cross-attention has the values x W_V."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, U and λ."""

        table: Float[Array, "vocabulary key_value_heads d_value"] = param(std=1.0, decay=False, kind="embedding")
        share: Float[Array, ""] = param(value=0.5, decay=False)

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        plain = super().keys_and_values(weights, source, context)
        assert isinstance(plain, KeysValues)
        if context.is_cross or context.tokens is None:
            return plain
        mixed = (1 - weights.share) * plain.value + weights.share * weights.table[context.tokens]
        return plain.replace(value=mixed.astype(plain.value.dtype))


class GatedValueEmbeddings(Attention):
    """Attention with the values x W_V + 3 σ(x G) U[token], where G reads the first 12 entries of x (nanochat).

    The gate is one number per key-value head. In nanochat, U begins with the standard deviation of W_V.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, U and G."""

        table: Float[Array, "vocabulary key_value_heads d_value"] = param(std=0.05, decay=False, kind="embedding")
        gate: Float[Array, "gate_width key_value_heads"] = param(std=0.01, decay=False)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"gate_width": min(GATE_WIDTH, model["d_model"])}

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        plain = super().keys_and_values(weights, source, context)
        assert isinstance(plain, KeysValues)
        if context.is_cross or context.tokens is None:
            return plain
        gate = 3 * jax.nn.sigmoid(linear(source[..., : weights.gate.shape[0]], weights.gate, wide=True))
        added = plain.value + gate[..., None] * weights.table[context.tokens]
        return plain.replace(value=added.astype(plain.value.dtype))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "value embeddings": {"model.attention": ValueEmbeddings},
    "gated value embeddings": {"model.pattern": (Block(), Block(attention=GatedValueEmbeddings))},
}
