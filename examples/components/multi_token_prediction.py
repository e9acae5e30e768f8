"""Multi-token prediction: a head that is trained to predict the next n tokens, and evaluated on the next one.

Claim: in a model this small, training on the next four tokens raises the validation loss of the next one.
Source: Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction", sections 2 and 3.1
(the gain grows with size; the smallest models get worse).
Command: flaxformer run examples/components/multi_token_prediction.py
Cost: 10 runs in 2 compiled programs, about a minute on 2 CPU cores.
Expected: the claim supported.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    Attention,
    Aux,
    Axis,
    Claim,
    Context,
    Dense,
    LanguageModel,
    ModelConfig,
    Norm,
    Run,
    StandardLibrary,
    Study,
    Training,
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
            scored = scored * shifted  # a token is scored only if all tokens before it are, so not after padding
            total += self.loss(logits, jnp.roll(targets, -distance, axis=-1), scored, label_smoothing)[0]
        return total, count


study = Study(
    name="multi_token_prediction",
    question="Does training on the next four tokens help a small model to predict the next one?",
    baseline=Run(
        model=ModelConfig(layers=3, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=256)),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.head", {"next token": LanguageModel(), "4 tokens": MultiToken(horizon=4)})],
    claims=[
        Claim(
            "trained on four tokens, the loss of the next token is higher",
            higher={"head": "4 tokens"},
            than={"head": "next token"},
        ),
    ],
    caveats=["The gains that the paper finds in large models, better code and faster decoding, are not tested."],
)
