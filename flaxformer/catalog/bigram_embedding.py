"""Bigram hash embedding: a vector of the pair of a token and its predecessor, from a table with hashed rows.

    y = FFN(x) + λ E[(a · token ⊕ b · predecessor) mod rows], with odd a and b; the predecessor of the first token is −1

Family: embeddings and heads
Source: Jordan et al. 2024, "Modded-NanoGPT", github.com/KellerJordan/modded-nanogpt, `train_gpt.py` of 2026 (there, one
table for all layers).
Claim: part of a record of the time to a validation loss of 3.28 on FineWeb.
Cost: rows · D weights per layer; no matrix product.
Verified: a loop over tokens in NumPy, with padding between them.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from flaxformer import Context, Dense, param, static

FACTORS = (36313, 27191)


class BigramEmbedding(Dense):
    """Dense network, plus λ times the vector of the hashed pair of tokens; λ is learned, and E initially 0."""

    class Weights(Dense.Weights):
        """λ is `scale`, and E is `pairs`."""

        pairs: Float[Array, "rows d_model"] = param(init="zeros", decay=False)
        scale: Float[Array, ""] = param(value=0.05, decay=False)

    reads_others: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    rows: int = static(1024, at_least=1)

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> Array:
        return jnp.full(batch, -1, jnp.int32)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Int[Array, "*batch"], context: Context
    ) -> tuple[Float[Array, "*batch T D"], Int[Array, "*batch"]]:
        tokens = jnp.zeros(x.shape[:-1], jnp.int32) if context.tokens is None else context.tokens.astype(jnp.int32)
        valid = jnp.ones(tokens.shape, bool) if context.valid is None else context.valid
        tokens = jnp.concatenate([state[..., None], jnp.broadcast_to(tokens, x.shape[:-1])], axis=-1)
        real = jnp.concatenate([jnp.ones_like(valid[..., :1]), valid], axis=-1)
        places = jax.lax.cummax(jnp.where(real, jnp.arange(tokens.shape[-1]), 0), axis=real.ndim - 1)
        latest = jnp.take_along_axis(tokens, places, axis=-1)  # the last real token up to each place
        here, before = (z.astype(jnp.uint32) for z in (tokens[..., 1:], latest[..., :-1]))
        row = (here * FACTORS[0] ^ before * FACTORS[1]) % self.rows
        pair = weights.scale * weights.pairs[row]
        return super().apply(weights, x, context) + pair.astype(x.dtype), latest[..., -1]


VARIANTS: Mapping[str, Mapping[str, object]] = {"bigram embedding": {"model.feed_forward": BigramEmbedding}}
