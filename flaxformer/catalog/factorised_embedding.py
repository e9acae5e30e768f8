"""Factorised embedding: a table of low width, and a matrix from it to the width of the model.

    x = E[token] W, with E [V, rank] and W [rank, D]

Family: embeddings and heads
Source: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
arXiv:1909.11942, section 3.1.
Claim: a rank of 128, which all its models have, is enough where layers share weights.
Cost: V · rank + rank · D weights in place of V · D.
Verified: a product with one-hot vectors in float64.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
from jaxtyping import Array, Float, Int

from flaxformer import Inputs, Parameters, param, static
from flaxformer.nn.linear import linear, lookup


class FactorisedEmbedding(Inputs):
    """x = E[token] W."""

    class Weights(Parameters):
        """E is `rows`, and W is `up`."""

        rows: Float[Array, "vocabulary rank"] = param(std=1.0, decay=False)
        up: Float[Array, "rank d_embedding"] = param(fan_in="rank")

    reads: ClassVar[str] = "tokens"
    rank: int = static(128, at_least=1)

    def apply(
        self,
        weights: Weights,
        inputs: Int[Array, "*batch T"],
        token_types: jax.Array | None,
        table: jax.Array | None,
        sizes: Mapping[str, int],
    ) -> Float[Array, "*batch T d_embedding"]:
        return linear(lookup(weights.rows, inputs), weights.up)


VARIANTS: Mapping[str, Mapping[str, object]] = {"rank 128": {"model.inputs": FactorisedEmbedding}}
