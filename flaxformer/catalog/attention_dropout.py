"""Attention dropout: attention weights are set to 0 at random in training.

    Y = dropout(A) V, where an entry of A is 0 with probability p and divided by 1 − p otherwise

Family: attention
Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv:1810.04805; p is `attention_probs_dropout_prob` of its configurations.
Claim: none of its own; part of BERT, GPT-2 and most models that train for several epochs.
Cost: no weights; N T S random numbers per layer for N heads, T queries and S keys; no fused kernel.
Verified: without a random key, plain attention; with one, each weight of a large matrix is 0 or A / (1 − p), at the
    rate p.
"""

from collections.abc import Mapping

from jaxtyping import Array, Float

from flaxformer import Attention, Context, leaf


class AttentionDropout(Attention):
    """Attention whose weights are dropped in training, each with probability `attention_rate`."""

    attention_rate: float = leaf(0.1, at_least=0, below=1)

    def transform_weights(
        self, weights: Attention.Weights, attention: Float[Array, "*batch N T S"], context: Context
    ) -> Float[Array, "*batch N T S"]:
        return context.dropout(self.attention_rate, attention)


VARIANTS: Mapping[str, Mapping[str, object]] = {"attention dropout": {"model.attention": AttentionDropout}}
