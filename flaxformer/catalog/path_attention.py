"""PaTH attention: positions are products of Householder-like maps that depend on the tokens between query and key.

    logit(t, s) = q_tᵀ H_t H_{t−1} … H_{s+1} k_s · scale,  H_r = I − β_r w_r w_rᵀ,  β_r = 2 σ(x_r W_β + b),
    w_r = silu(short convolution of x W_1 W_2), scaled to length 1

Family: positions
Source: Yang et al. 2025, "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
arXiv:2505.16381, and the authors' layer in flash-linear-attention.
Claim: better than rotary positions and other recent schemes in tasks of state tracking and in language models of
moderate size.
Cost: rank (D + K d_head) + 3 K d_head + D K weights per layer for K key-value heads, and d_head + 1 numbers per token
and head in the cache; here, a triangular system over all pairs of keys, S³ operations per head.
Verified: a loop over queries, keys and the products of matrices between them in float64; gradients by finite
differences of it.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Context, KeysValues, NoPositions, param, static
from flaxformer.nn import Mask
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import normalize_length, short_convolution
from flaxformer.nn.triangular import solve_unit_lower


class PathAttention(Attention):
    """Causal attention with the logits q_tᵀ (Π_{s < r ≤ t} H_r) k_s · scale.

    With U[r, s] = β_r w_rᵀ H_{r−1} … H_{s+1} k_s, the logit is q_tᵀ k_s − Σ_{r ≤ t} q_tᵀ w_r U[r, s], and U solves
    (I + L) U = strictly lower part of β w kᵀ, where L is that of β w wᵀ. A key of the cache has x W_1 W_2 and the
    logit of β at its end.

    rank: number of columns of W_1.
    width: number of tokens of the convolution.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, W_1, W_2, the kernel, W_β and b."""

        reflect_down: Float[Array, "d_source rank"] = param(fan_in="d_source")
        reflect_up: Float[Array, "rank key_value_heads d_head"] = param(fan_in="rank")
        reflect_kernel: Float[Array, "width key_value_heads d_head"] = param(std=0.33)
        strength: Float[Array, "d_source key_value_heads"] = param(fan_in="d_source")
        strength_bias: Float[Array, "key_value_heads"] = param(init="zeros", decay=False)

    rank: int = static(32, at_least=1)
    width: int = static(3, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("window", "logit_cap", "frozen_pattern"):
            if getattr(self, name) is not None:
                yield f"{name} is {getattr(self, name)}; expected None, since each logit depends on all keys before it"

    def cache_widths(self, weights: Weights) -> tuple[int, int]:
        d_key, d_value = super().cache_widths(weights)
        return 2 * d_key + 1, d_value

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        plain = super().keys_and_values(weights, source, context)
        assert isinstance(plain, KeysValues)
        assert plain.key is not None
        direction = linear(linear(source, weights.reflect_down), weights.reflect_up)
        strength = linear(source, weights.strength, weights.strength_bias)[..., None]
        parts = (x.astype(plain.key.dtype) for x in (plain.key, direction, strength))
        return plain.replace(key=jnp.concatenate([*parts], axis=-1))

    def logits(
        self,
        weights: Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        length, d_head = key.shape[-3], query.shape[-1]
        wide = key.astype(jnp.promote_types(key.dtype, jnp.float32))
        key, direction, strength = jnp.split(wide, [d_head, 2 * d_head], axis=-1)
        allowed = jnp.ones((1, length), bool) if mask is None else mask.matrix(query.shape[-3], length)
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        exists = jnp.broadcast_to(allowed.any(-2), key.shape[:-2])  # written, and not padding
        state = jnp.zeros((*key.shape[:-3], self.width - 1, *key.shape[-2:]), key.dtype)
        w = normalize_length(jax.nn.silu(short_convolution(direction, weights.reflect_kernel, state, exists)[0]))
        beta = jnp.where(exists[..., None, None], 2 * jax.nn.sigmoid(strength), 0)
        rows = jnp.moveaxis(beta * w, -2, -3)  # [*batch, K, S, H]
        below = [jnp.tril(rows @ jnp.moveaxis(x, -3, -1), -1) for x in (w, key)]
        u = solve_unit_lower(below[0], below[1])
        u = jnp.repeat(u, query.shape[-2] // key.shape[-2], axis=-3)
        plain, along = (super(PathAttention, self).logits(weights, query, x, mask, None, scale) for x in (key, w))
        result = plain - jnp.where(allowed[..., None, :, :], along, 0) @ u
        return result if bias is None else result + bias


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "PaTH": {"model.attention": PathAttention, "model.positions": NoPositions},
}
