"""Multi-head latent attention: keys and values are linear maps of one small vector, which the cache holds (MLA).

    c_t = norm(x_t W_DKV),  k_t = [c_t W_UK ; k^R_t],  v_t = c_t W_UV,  k^R_t = rotate(x_t W_KR) for all heads
    q_t = [c'_t W_UQ ; rotate(c'_t W_QR)],  c'_t = norm(x_t W_DQ)
    y_t = softmax(q_t Kᵀ / √(d_h + d_R)) V

The cache holds c_t and k^R_t alone. In decoding, W_UK is multiplied into the queries and W_UV into the output, so that
keys and values are not computed again: attention is then multi-query attention to [c ; k^R] with values c.

Family: attention
Source: DeepSeek-AI 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
    arXiv:2405.04434; the norms of the latent vectors and the form for decoding as in the code of DeepSeek-V3.
Claim: better than multi-head attention, with a cache of (d_c + d_R) numbers per token and layer: that of grouped-query
    attention with 2.25 groups for d_c = 4 d_h and d_R = d_h / 2.
Cost: D (d_c + d_R) + d_c N (d_h + d_v) + N d_v D weights per layer for keys, values and output, and D d'_c + d'_c N
    (d_h + d_R) for queries.
Verified: a loop over queries and keys in float64, written from the equations; gradients by finite differences of it;
    the numbers of weights and of entries of the cache.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Rotary, TokenMixer, param, static
from flaxformer.nn import dot_product_attention, rms_norm
from flaxformer.nn.linear import linear


class LatentAttention(TokenMixer):
    """Attention with keys and values from a latent vector c of each token; positions rotate k^R and q^R alone.

    heads: number of heads, N.
    d_head: width of the part of a query or key without positions, and of a value, d_h; None for d_model / heads.
    d_latent: width of c, d_c; None for 4 d_h.
    d_query_latent: width of the latent vector of the queries, d'_c; None for 12 d_h.
    d_rotary: width of the part of a query or key with positions, d_R; None for d_h / 2, rounded to
        an even number.
    """

    class Weights(Parameters):
        """Matrices into the latent vectors (`down`), out of them (`up`), and to the output, and gains of the norms."""

        query_down: Float[Array, "d_model d_query_latent"] = param(fan_in="d_model")
        query_gain: Float[Array, "d_query_latent"] = param(init="ones", decay=False)
        query_up: Float[Array, "d_query_latent heads d_head"] = param(fan_in="d_query_latent")
        query_rotary: Float[Array, "d_query_latent heads d_rotary"] = param(fan_in="d_query_latent")
        down: Float[Array, "d_model d_latent"] = param(fan_in="d_model")
        gain: Float[Array, "d_latent"] = param(init="ones", decay=False)
        key_up: Float[Array, "d_latent heads d_head"] = param(fan_in="d_latent")
        key_rotary: Float[Array, "d_model d_rotary"] = param(fan_in="d_model")
        value_up: Float[Array, "d_latent heads d_head"] = param(fan_in="d_latent", init="branch")
        out: Float[Array, "heads d_head d_model"] = param(fan_in="heads d_head", init="branch")

    heads: int = static(4, at_least=1)
    d_head: int | None = static(None, at_least=1)
    d_latent: int | None = static(None, at_least=1)
    d_query_latent: int | None = static(None, at_least=1)
    d_rotary: int | None = static(None, at_least=2)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        d_head = self.d_head or model["d_model"] // self.heads
        return {
            "d_head": d_head,
            "d_latent": self.d_latent or 4 * d_head,
            "d_query_latent": self.d_query_latent or 12 * d_head,
            "d_rotary": self.d_rotary or 2 * max(1, d_head // 4),
        }

    def latents(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T d"]:
        """Return [c ; k^R] of each token."""
        key = linear(x, weights.key_rotary)[..., None, :]
        key = key if context.scheme is None else context.scheme.rotate_key(key, context.query_positions)
        c = rms_norm(linear(x, weights.down), weights.gain, None, epsilon=1e-6)
        return jnp.concatenate([c, key[..., 0, :]], axis=-1)

    def queries(
        self, weights: Weights, x: Float[Array, "*batch T D"], context: Context
    ) -> tuple[Float[Array, "*batch T N H"], Float[Array, "*batch T N d"]]:
        """Return the parts of the queries without positions and with them."""
        c = rms_norm(linear(x, weights.query_down), weights.query_gain, None, epsilon=1e-6)
        rotary = linear(c, weights.query_rotary)
        rotary = rotary if context.scheme is None else context.scheme.rotate(rotary, context.query_positions)
        return linear(c, weights.query_up), rotary

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        latents, width = self.latents(weights, x, context), weights.gain.shape[0]
        key, value = (linear(latents[..., :width], matrix) for matrix in (weights.key_up, weights.value_up))
        shared = jnp.broadcast_to(latents[..., None, width:], (*key.shape[:-1], latents.shape[-1] - width))
        query = jnp.concatenate(self.queries(weights, x, context), axis=-1)
        mixed = dot_product_attention(
            query, jnp.concatenate([key, shared], axis=-1), value, mask=context.mask, bias=context.bias
        )
        return linear(mixed, weights.out, contract=2)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: jax.typing.DTypeLike) -> Array:
        return jnp.zeros((*batch, capacity, weights.gain.shape[0] + weights.key_rotary.shape[-1]), dtype)

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Float[Array, "*batch S d"], context: Context
    ) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch S d"]]:
        assert context.offset is not None, "a decoding state has an offset"
        latents, width = self.latents(weights, x, context), weights.gain.shape[0]
        if context.valid is not None:
            latents = jnp.where(context.valid[..., None], latents, 0)
        state = jax.lax.dynamic_update_slice_in_dim(state, latents.astype(state.dtype), context.offset, axis=-2)
        plain, rotary = self.queries(weights, x, context)
        absorbed = jnp.einsum("...tnh,cnh->...tnc", plain, weights.key_up).astype(plain.dtype)
        mixed = dot_product_attention(
            jnp.concatenate([absorbed, rotary], axis=-1),
            state[..., None, :],
            state[..., None, :width],
            mask=context.mask,
            bias=context.bias,
            scale=(plain.shape[-1] + rotary.shape[-1]) ** -0.5,
        )
        heads = jnp.einsum("...tnc,cnh->...tnh", mixed, weights.value_up).astype(x.dtype)
        return linear(heads, weights.out, contract=2), state


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "latent attention": {"model.attention": LatentAttention, "model.positions": Rotary},
}
