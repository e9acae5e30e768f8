"""Head scales: each head of attention times a learned number, before the output matrix.

    Y = Concat(γ_1 head_1, …, γ_N head_N) W_O, with γ = 1 at the start

Family: attention
Source: Shleifer, Weston and Ott 2021, "NormFormer: Improved Transformer Pretraining with Extra Normalization",
    arXiv:2110.09456 (HeadScale attention, one of its three changes).
Claim: the three changes together improve the perplexity and downstream tasks of causal and masked models of 125M to
    2.7B weights; at 1.3B, equal perplexity is reached 24 % faster.
Cost: one weight per head and layer; no matrix product.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

from jaxtyping import Array, Float

from flaxformer import Attention, Context, param


class HeadScales(Attention):
    """Attention whose head n is multiplied by a learned γ_n."""

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the γ of each head."""

        head_scale: Float[Array, "heads"] = param(init="ones", decay=False)

    def transform_heads(
        self, weights: Weights, heads: Float[Array, "*batch T N d_v"], x: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T N d_v"]:
        return (heads * weights.head_scale[:, None]).astype(heads.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"head scales": {"model.attention": HeadScales}}
