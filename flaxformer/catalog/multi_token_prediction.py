"""Multi-token prediction: a head that is trained to predict the next n tokens, and evaluated on the next one.

    L = Σ_{i < n} cross-entropy of token t + 1 + i from x_t + x_t W_i, with W_0 = 0 and one output matrix

Family: embeddings and heads
Source: Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction",
arXiv:2404.19737, sections 2 and 3.1 (there with a layer in place of W_i).
Claim: more problems of code are solved at 13B weights; the smallest models get worse.
Cost: n − 1 square matrices, and n − 1 further products with the output matrix in training.
Verified: sums of cross-entropies of shifted targets.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Aux,
    Context,
    LanguageModel,
    Norm,
    param,
    static,
)
from flaxformer.nn.linear import linear


class MultiToken(LanguageModel):
    """Logits of the next token; in training, of the next `horizon` tokens.

    The logits of the token i after the next are computed from x + x W_i with the same output matrix; in the paper, each
    has a Transformer layer in place of W_i.
    """

    class Weights(LanguageModel.Weights):
        """Matrices W_i, one per token after the next."""

        later: Float[Array, "later d_model d_model"] = param(fan_in="d_model", batch_axis="later")

    horizon: int = static(4, at_least=2)

    def sizes(self, model: Any) -> dict[str, int]:
        return {"later": self.horizon - 1}

    def apply(
        self, weights: Weights, x: Float[Array, "*batch T D"], table: Array | None, context: Context, norm: Norm
    ) -> Any:
        logits = super().apply
        output, aux = logits(weights, x, table, context, norm)
        if not context.training:
            return output, aux
        later = [logits(weights, x + linear(x, matrix), table, context, norm)[0] for matrix in weights.later]
        return output, aux.merge(Aux(intermediates={"later": later}))

    def training_loss(
        self, output: Array, aux: Aux, targets: Array, weights: Array, label_smoothing: float | Array | None = None
    ) -> tuple[Array, Array]:
        """Return the cross-entropy summed over all predicted tokens, and the number of next tokens."""
        total, count = self.loss(output, targets, weights, label_smoothing)
        scored = weights
        for distance, logits in enumerate(aux.intermediates["head/later"], start=1):
            shifted = jnp.roll(weights, -distance, axis=-1).at[..., -distance:].set(0)
            scored = scored * (shifted > 0)  # a token is scored only if all tokens before it are, so not after padding
            total += self.loss(logits, jnp.roll(targets, -distance, axis=-1), scored, label_smoothing)[0]
        return total, count


VARIANTS: Mapping[str, Mapping[str, object]] = {"4 tokens": {"model.head": MultiToken}}
