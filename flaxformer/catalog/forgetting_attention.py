"""Forgetting attention: softmax attention whose logits fall by a learned amount at each token in between (FoX).

    f_t = σ(x_t W_f + b_f)
    A[t, s] ∝ exp(q_t · k_s / √d + Σ_{s < r ≤ t} log f_r)

with a forget gate f per head and token. The log f of a token is a further entry of its key in the cache.

Family: attention
Source: Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", ICLR 2025, arXiv:2503.02130.
Claim: better than a Transformer in language modelling with long contexts, length extrapolation and tasks with short
    contexts, on par in tasks with long ones; no positional embedding is needed.
Cost: D N + N weights per layer for N heads, and N numbers per token in the cache; no fused kernel.
Verified: a loop over queries, keys and the gates between them in float64, written from the equation; gradients by
    finite differences of it.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Context, KeysValues, NoPositions, param
from flaxformer.nn import Mask
from flaxformer.nn.linear import linear


class ForgettingAttention(Attention):
    """Attention with Σ_{s < r ≤ t} log f_r added to the logit of key s and query t; for causal attention.

    Without a causal mask, the gates are summed up to the last key that a query may read. A key of the cache has width
    d_head + N / K: the log f of the N / K query heads that read it stand at its end.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, W_f and b_f."""

        forget: Float[Array, "d_source heads"] = param(fan_in="d_source")
        forget_bias: Float[Array, "heads"] = param(init="zeros", decay=False)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.frozen_pattern is not None:
            yield "frozen_pattern is given; expected None, since the gates act on logits of queries and keys"

    def cache_widths(self, weights: Weights) -> tuple[int, int]:
        d_key, d_value = super().cache_widths(weights)
        return d_key + weights.forget.shape[-1] // weights.value.shape[-2], d_value

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        plain = super().keys_and_values(weights, source, context)
        assert isinstance(plain, KeysValues)
        assert plain.key is not None
        log_f = jax.nn.log_sigmoid(linear(source, weights.forget, weights.forget_bias, wide=True))
        log_f = log_f.reshape(*plain.key.shape[:-1], -1).astype(plain.key.dtype)
        return plain.replace(key=jnp.concatenate([plain.key, log_f], axis=-1))

    def logits(
        self,
        weights: Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        key, log_f = jnp.split(key, [query.shape[-1]], axis=-1)
        logits = super().logits(weights, query, key, mask, bias, scale)
        log_f = log_f.astype(logits.dtype).reshape(*log_f.shape[:-2], -1)  # [*batch, S, N], 0 at padding
        total = jnp.moveaxis(jnp.cumsum(log_f, axis=-2), -1, -2)[..., None, :]  # Σ_{r ≤ s} log f_r
        allowed = jnp.ones((), bool) if mask is None else mask.matrix(*logits.shape[-2:])
        here = jnp.where(allowed, total, jnp.inf).min(-1, keepdims=True)  # the sum up to the query: it only falls
        return logits + jnp.where(allowed, here - total, 0)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "forgetting": {"model.attention": ForgettingAttention, "model.positions": NoPositions},
}
