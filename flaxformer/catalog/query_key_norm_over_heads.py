"""Query-key norm over all heads: queries and keys are normalised over the width of all heads together.

    q ← q / √(mean over heads and entries of q² + ε) ⊙ g, and the same for keys, before rotary positions

In the more common form (`Attention(query_key_norm=RMSNorm())`), the mean is over the entries of one head.

Family: attention
Source: OLMo Team 2024, "2 OLMo 2 Furious", arXiv:2501.00656, and its code: in OLMo-core, the norm has size heads ×
    d_head unless `use_head_qk_norm` is set.
Claim: one of several changes for the stability of training, at 7B and 13B weights.
Cost: (N + K) d_head weights per layer for N heads and K key-value heads; no matrix product.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Norm, Parameters, leaf, param


class RMSNormOverHeads(Norm):
    """x / √(mean(x²) + ε) ⊙ gain, with the mean over all heads of a token; for `query_key_norm` of an attention."""

    class Weights(Parameters):
        """Gain of each head."""

        gain: Float[Array, "heads d_norm"] = param(init="ones", decay=False)

    epsilon: float = leaf(1e-6, above=0)

    def apply(
        self, weights: Weights, x: Float[Array, "*batch T N H"], context: Context
    ) -> Float[Array, "*batch T N H"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        square = jnp.square(wide).mean((-2, -1), keepdims=True)
        gain = weights.gain.reshape((1,) * (x.ndim - 2) + weights.gain.shape)
        return (wide * jax.lax.rsqrt(square + self.epsilon) * gain).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "norm over all heads": {"model.attention.query_key_norm": RMSNormOverHeads}
}
