"""Adaptive input and softmax: rare tokens have narrow vectors, and are predicted through their band of the vocabulary.

    x = E_i[token] P_i for a token of band i, with E_i [V_i, D / 4^i];
    log P(token) = log softmax(x H)[band i] + log softmax(x Q_i G_i)[token], and log softmax(x H)[token] for i = 0

Family: embeddings and heads
Source: Grave et al. 2017, "Efficient softmax approximation for GPUs", arXiv:1609.04309; for inputs, Baevski & Auli
2019, "Adaptive Input Representations for Neural Language Modeling", arXiv:1809.10853, whose bands have 20,000, 40,000
and 200,000 words.
Claim: an accuracy close to the full softmax's at a large gain in efficiency; with both, 18.7 perplexity on
WikiText-103, then the state of the art.
Cost: of the rarest band, a sixteenth of the weights; here, all bands are computed for all tokens.
Verified: a loop over tokens and bands in float64; probabilities that sum to 1.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Head, Inputs, Parameters, param, static
from flaxformer.nn.linear import linear, lookup


def bands(model: Mapping[str, int], frequent: float, medium: float) -> dict[str, int]:
    """Return the sizes of the three bands of a vocabulary sorted by frequency, and their widths."""
    first, second = (max(1, round(share * model["vocabulary"])) for share in (frequent, medium))
    widths = {"narrow": max(1, model["d_model"] // 4), "narrower": max(1, model["d_model"] // 16)}
    return {"first": first, "second": second, "third": max(1, model["vocabulary"] - first - second)} | widths


class AdaptiveInput(Inputs):
    """x = E_i[token] P_i, with the tokens of lower numbers in the bands of more frequent ones.

    frequent, medium: shares of the vocabulary in the first two bands.
    """

    reads: ClassVar[str] = "tokens"
    frequent: float = static(20 / 260, above=0, below=1)
    medium: float = static(40 / 260, above=0, below=1)

    class Weights(Parameters):
        """E_i and P_i."""

        first_rows: Float[Array, "first d_model"] = param(std=1.0, decay=False)
        second_rows: Float[Array, "second narrow"] = param(std=1.0, decay=False)
        third_rows: Float[Array, "third narrower"] = param(std=1.0, decay=False)
        first_map: Float[Array, "d_model d_embedding"] = param(fan_in="d_model")
        second_map: Float[Array, "narrow d_embedding"] = param(fan_in="narrow")
        third_map: Float[Array, "narrower d_embedding"] = param(fan_in="narrower")

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return bands(model, self.frequent, self.medium)

    def apply(
        self, weights: Any, inputs: Int[Array, "*batch T"], token_types: Any, table: Any, sizes: Mapping[str, int]
    ) -> Float[Array, "*batch T d_embedding"]:
        y, start = jnp.zeros((), weights.first_map.dtype), 0
        for name in ("first", "second", "third"):
            rows, matrix = getattr(weights, f"{name}_rows"), getattr(weights, f"{name}_map")
            place = inputs - start
            inside = (place >= 0) & (place < len(rows))
            vectors = linear(lookup(rows, jnp.clip(place, 0, len(rows) - 1)), matrix)
            y, start = y + jnp.where(inside[..., None], vectors, 0), start + len(rows)
        return y


class AdaptiveSoftmax(Head):
    """The outputs are log P, which are logits whose softmax is P; the bands are those of `AdaptiveInput`."""

    predicts: ClassVar[str | None] = "tokens"
    frequent: float = static(20 / 260, above=0, below=1)
    medium: float = static(40 / 260, above=0, below=1)

    class Weights(Parameters):
        """H of the first band's tokens and of the other two bands, Q_i and G_i."""

        first: Float[Array, "d_model entries"] = param(fan_in="d_model", init="output")
        second_map: Float[Array, "d_model narrow"] = param(fan_in="d_model")
        third_map: Float[Array, "d_model narrower"] = param(fan_in="d_model")
        second: Float[Array, "narrow second"] = param(fan_in="narrow", init="output")
        third: Float[Array, "narrower third"] = param(fan_in="narrower", init="output")

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        sizes = bands(model, self.frequent, self.medium)
        return sizes | {"entries": sizes["first"] + 2}

    def outputs(self, vocabulary: int) -> int:
        return vocabulary

    def project(self, weights: Any, features: Float[Array, "*batch D"], table: Any) -> Float[Array, "*batch outputs"]:
        first = jax.nn.log_softmax(linear(features, weights.first, wide=True))
        parts = [first[..., :-2]]
        for band, name in ((-2, "second"), (-1, "third")):
            narrow = linear(features, getattr(weights, f"{name}_map"))
            within = jax.nn.log_softmax(linear(narrow, getattr(weights, name), wide=True))
            parts.append(first[..., band, None] + within)
        return jnp.concatenate(parts, axis=-1)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "adaptive softmax": {"model.head": AdaptiveSoftmax()},
    "adaptive input and softmax": {"model.inputs": AdaptiveInput(), "model.head": AdaptiveSoftmax()},
}
