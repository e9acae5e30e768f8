"""Clipped experts: a mixture of gated networks whose two factors are bounded, with biases, and gates over the selected.

    y = Σ_e g_e ((h_e σ(α h_e) ⊙ (u_e + 1)) D_e + d_e),  h_e = min(x G_e + b_e, c),  u_e = clip(x U_e + a_e, −c, c),
    g = softmax of the logits of the selected experts, and 0 for the others

Family: feed-forward
Source: OpenAI 2025, gpt-oss model card, arXiv:2508.10925, section 2, and its released code.
Claim: none beside the models themselves; the bound c = 7 keeps activations in the range of 4-bit weights.
Cost: `experts` networks of weights, of which a token uses `active`; all experts compute all tokens here.
Verified: a loop over tokens and experts in NumPy; the logits of GptOssForCausalLM in transformers.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, leaf, param
from flaxformer.catalog import RoutedExperts
from flaxformer.nn.linear import linear


class ClippedExperts(RoutedExperts):
    """y = Σ_e g_e ((h_e σ(α h_e) ⊙ (u_e + 1)) D_e + d_e), with h_e ≤ c and |u_e| ≤ c.

    alpha, limit: α and c.
    """

    class Weights(RoutedExperts.Weights):
        """Router, and the matrices and biases of each expert; U is `up` and D is `down`."""

        gate: Float[Array, "experts d_model d_ff"] = param(fan_in="d_model", batch_axis="experts", init="branch")
        router_bias: Float[Array, "experts"] = param(init="zeros", decay=False)
        gate_bias: Float[Array, "experts d_ff"] = param(init="zeros", decay=False)
        up_bias: Float[Array, "experts d_ff"] = param(init="zeros", decay=False)
        down_bias: Float[Array, "experts d_model"] = param(init="zeros", decay=False)

    alpha: float = leaf(1.702)
    limit: float = leaf(7.0, above=0)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        if context.valid is not None:
            x = jnp.where(context.valid[..., None], x, 0)
        logits, chosen = jax.lax.top_k(linear(x, weights.router, weights.router_bias, wide=True), self.active)
        gates = jnp.einsum("...a,...ae->...e", jax.nn.softmax(logits), jax.nn.one_hot(chosen, self.experts))
        row = (1,) * (x.ndim - 1) + weights.up_bias.shape
        h = jnp.einsum("...d,edf->...ef", x, weights.gate) + weights.gate_bias.reshape(row)
        u = jnp.einsum("...d,edf->...ef", x, weights.up) + weights.up_bias.reshape(row)
        h, u = jnp.minimum(h, self.limit), jnp.clip(u, -self.limit, self.limit)
        hidden = (gates[..., None] * h * jax.nn.sigmoid(self.alpha * h) * (u + 1)).astype(x.dtype)
        y = jnp.einsum("...ef,efd->...d", hidden, weights.down) + linear(gates, weights.down_bias)
        return y.astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"clipped experts": {"model.feed_forward": ClippedExperts}}
