"""Block selection: a query attends to its own block of keys and to the past blocks whose mean key fits it best (MoBA).

    score of block i for query t: q_t · mean(k_s, s in block i), for the blocks before that of t
    t attends to its own block, causally, and to the `selected` − 1 blocks of the highest scores

Family: attention
Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs", arXiv:2502.13189; its code
    (`moba_naive.py`) counts the query's own block among the selected ones.
Claim: in pretraining, the loss falls with compute as that of full attention; faster attention to long sequences, and a
    later change from one to the other without a break.
Cost: no weights; here, the scores and full attention with a mask, N T S / block more products of width d_head per
    layer: for comparisons of the loss, not for speed.
Verified: a loop over queries and blocks in float64, written from the rule; gradients by finite differences of it.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, static
from flaxformer.nn import Mask


class BlockSelection(Attention):
    """Causal attention to the query's own block and to the `selected` − 1 past blocks with the best mean keys.

    The defaults are those of the example in the code of the source.

    block: number of tokens of a block; padding is not counted.
    selected: number of blocks that a query attends to, its own among them.
    """

    block: int = static(4096, at_least=1)
    selected: int = static(12, at_least=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.window is not None:
            yield f"window is {self.window}; expected None, since blocks are counted from the first token"

    def logits(
        self,
        weights: Attention.Weights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S K H"],
        mask: Mask | None,
        bias: Float[Array, "*batch N T S"] | None,
        scale: Float[Array, ""],
    ) -> Float[Array, "*batch N T S"]:
        logits = super().logits(weights, query, key, mask, bias, scale)
        length = key.shape[-3]
        if mask is None or self.selected * self.block >= length:
            return logits
        allowed = mask.matrix(query.shape[-3], length)
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        exists = allowed.any(-2)  # keys that a query may read: those that are written and not padding
        place = jnp.cumsum(exists, axis=-1) - 1
        block = jnp.where(exists, place // self.block, -1)
        count = -(-length // self.block)
        in_block = (block[..., None] == jnp.arange(count)).astype(logits.dtype)  # [*batch, S, count]
        means = jnp.einsum("...sb,...skh->...bkh", in_block, key.astype(logits.dtype)) / self.block
        means = jnp.repeat(means, query.shape[-2] // key.shape[-2], axis=-2)
        score = jnp.einsum("...tnh,...bnh->...ntb", query.astype(logits.dtype), means)
        last = jnp.where(allowed, block[..., None, :], -1).max(-1)[..., None, :, None]  # block of each query
        score = jnp.where(jnp.arange(count) < last, score, -jnp.inf)
        score = jnp.where(jnp.arange(count) == last, jnp.inf, score)
        best = jax.lax.top_k(score, self.selected)[1]
        chosen = jax.nn.one_hot(best, count, dtype=logits.dtype).sum(-2)  # [*batch, N, T, count]
        is_chosen = jnp.einsum("...ntb,...sb->...nts", chosen, in_block) > 0
        return jnp.where(is_chosen, logits, jnp.finfo(logits.dtype).min)


VARIANTS: Mapping[str, Mapping[str, object]] = {"block selection": {"model.attention": BlockSelection}}
