"""Exclusive self-attention: the output of a head without its component along the token's own value (XSA).

    y_t ← y_t − (y_t · v_t) / |v_t|² · v_t

for the mixed values y_t of a head and the value v_t of the same token. In the learned form, the component is multiplied
by tanh(α) first, with an α per head that is 0 at the start.

Family: attention
Source: Zhai 2026, "Exclusive Self Attention", arXiv:2603.09078; the learned strength is that of modded-nanogpt (pull
    request 264, April 2026).
Claim: lower loss than self-attention at all sizes up to 2.7B weights, and more so for longer sequences. In
    modded-nanogpt, 8 H100: 3.2789 (standard deviation 0.0012, n = 11) in 1,410 steps, against 3.2799 (0.0005, n = 7) in
    1,440 steps without it.
Cost: no weights (the learned strength: one per head and layer); about 4 d_v operations per head and token.
Verified: a loop over queries and keys in float64, written from the equation; gradients by finite differences of it.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Context, param, static
from flaxformer.nn.linear import linear


class ExclusiveAttention(Attention):
    """Attention with y_t − tanh(α) (y_t · v_t) / |v_t|² · v_t in place of y_t; in cross-attention, with y_t.

    learned: learn the strength tanh(α) of each head; without it, the strength is 1.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, and the α of each head."""

        strength: Float[Array, "heads"] | None = param(init="zeros", decay=False, when="learned")

    learned: bool = static(False)

    def transform_heads(
        self, weights: Weights, heads: Float[Array, "*batch T N d_v"], x: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T N d_v"]:
        if context.is_cross:
            return heads
        wide = jnp.promote_types(heads.dtype, jnp.float32)
        value = linear(x, weights.value, weights.value_bias).astype(wide)
        value = jnp.repeat(value, self.heads // value.shape[-2], axis=-2)
        square = jnp.square(value).sum(-1, keepdims=True)
        share = (heads.astype(wide) * value).sum(-1, keepdims=True) / jnp.maximum(square, jnp.finfo(wide).tiny)
        if weights.strength is not None:
            share = jnp.tanh(weights.strength)[:, None] * share
        return (heads - share * value).astype(heads.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "exclusive": {"model.attention": ExclusiveAttention},
    "exclusive, learned strength": {"model.attention": ExclusiveAttention, "model.attention.learned": True},
}
