"""Engram: vectors of hashed groups of tokens, which the hidden state opens by a gate (conditional memory).

    e_t = all E_{n,j}[hash_{n,j}(token_{t−n+1}, …, token_t)], for the last n = 2 … `longest` tokens and j = 1 … `hashes`
    v_t = σ(N(x_t) · N(e_t W_K) / √D) e_t W_V, y_t = FFN(x_t) + v_t + silu(Σ_i w_i ⊙ N(v_{t − `longest` i}))

Family: embeddings and heads
Source: Cheng et al. 2026, "Conditional Memory via Scalable Lookup: A New Axis of Sparsity for Large Language Models",
arXiv:2601.07372; the abstract and the authors' demonstration (github.com/deepseek-ai/Engram) were read. There, tokens
of like spelling are one, the module stands before the attention of two layers, and the gate has a signed root.
Claim: at 27B weights, better than experts alone with as many weights and FLOPs, in knowledge, reasoning and code.
Cost: (`longest` − 1) · `hashes` · rows · width weights of tables, and 2 D (`longest` − 1) · `hashes` · width of maps.
Verified: a loop over tokens in float64, with padding between them, and its gradient.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Block, Context, Dense, param, static
from flaxformer.nn import rms_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import previous_tokens


def hashed(tokens: list[Int[Array, "*batch T"]], hashes: int, rows: int) -> Int[Array, "*batch T n"]:
    """Return rows of tables for the groups of the last 2, 3, … tokens: products with odd numbers, joined by xor.

    Args:
      tokens: the token itself, the one before it, and so on; −1 before the first.
    """
    results = []
    for number in range(hashes):
        mixed = jnp.zeros_like(tokens[0], jnp.uint32)
        for back, token in enumerate(tokens):
            factor = (0x9E3779B1 * (2 * (number * len(tokens) + back) + 1)) % 2**32
            mixed = mixed ^ (token.astype(jnp.uint32) + 1) * jnp.uint32(factor)
            if back:
                bits = (mixed ^ (mixed >> 16)) * jnp.uint32(0x45D9F3B)
                results.append((bits ^ (bits >> 16)) % rows)
    return jnp.stack(results, axis=-1).astype(jnp.int32)


class EngramNetwork(Dense):
    """Dense network, plus what the memory has for the last tokens.

    longest: largest number of tokens of a group, and the distance between tokens of the convolution.
    hashes: number of tables for groups of each size.
    rows, slot: number of vectors in a table, and their width; 646,400 and 64 in the demonstration, with 8 hashes.
    """

    class Weights(Dense.Weights):
        """Weights of `Dense`, the tables, W_K and W_V, gains of the norms, and the kernel, initially 0."""

        tables: Float[Array, "tables rows slot"] = param(std=1.0, decay=False, kind="embedding")
        memory_key: Float[Array, "d_memory_row d_model"] = param(fan_in="d_memory_row")
        memory_value: Float[Array, "d_memory_row d_model"] = param(fan_in="d_memory_row", init="branch")
        query_gain: Float[Array, "d_model"] = param(init="ones", decay=False)
        key_gain: Float[Array, "d_model"] = param(init="ones", decay=False)
        value_gain: Float[Array, "d_model"] = param(init="ones", decay=False)
        kernel: Float[Array, "width d_model"] = param(init="zeros", decay=False)

    reads_others: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    longest: int = static(3, at_least=2)
    hashes: int = static(4, at_least=1)
    rows: int = static(4_093, at_least=1)
    slot: int = static(32, at_least=1)
    width: int = static(4, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        tables = (self.longest - 1) * self.hashes
        return {"tables": tables, "d_memory_row": tables * self.slot}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[Array, Array]:
        tokens = jnp.full((*batch, self.longest - 1, 1), -1, jnp.int32)
        return tokens, jnp.zeros((*batch, self.longest * (self.width - 1), weights.kernel.shape[-1]), dtype)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: tuple[Array, Array], context: Context
    ) -> tuple[Float[Array, "*batch T D"], tuple[Array, Array]]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        ids = jnp.zeros(x.shape[:-1], jnp.int32) if context.tokens is None else context.tokens.astype(jnp.int32)
        ids = jnp.broadcast_to(ids, x.shape[:-1])[..., None]
        before, last = previous_tokens(ids, state[0], context.valid)
        group = hashed([token[..., 0] for token in reversed(before)], self.hashes, self.rows)
        rows = weights.tables[jnp.arange(group.shape[-1]), group]
        e = rows.reshape(*x.shape[:-1], -1).astype(x.dtype)
        query, key = rms_norm(x, weights.query_gain), rms_norm(linear(e, weights.memory_key), weights.key_gain)
        gate = jax.nn.sigmoid((query * key).sum(-1, keepdims=True) / jnp.sqrt(x.shape[-1]))
        v = (gate * linear(e, weights.memory_value)).astype(x.dtype)
        window, values = previous_tokens(rms_norm(v, weights.value_gain), state[1], context.valid)
        mixed = sum(w * y for w, y in zip(weights.kernel, window[:: self.longest], strict=True))
        y = super().apply(weights, x, context) + v + jax.nn.silu(mixed)
        return y.astype(x.dtype), (last, values)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "Engram": {"model.pattern": (Block(), Block(feed_forward=EngramNetwork))}
}
