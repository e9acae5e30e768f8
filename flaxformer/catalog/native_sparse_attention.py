"""Native sparse attention: compressed blocks, a few selected blocks and a window, each with a gate (NSA).

    y_t = Σ_b g_t^b softmax over the keys of branch b; compressed: the mean keys and values of the blocks that end at
    t or before; selected: the first block, the last two, and those with the highest compressed attention of the head's
    group; window: the last `local` keys; g_t = σ(x_t W_g) per head and branch

Family: attention
Source: Yuan et al. 2025, "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention",
arXiv:2502.11089, in the form of flash-linear-attention: blocks of compression and selection are the same, compression
is a mean in place of a learned map, and the three branches share keys and values.
Claim: at 27B weights, the quality of full attention or better, with several times the speed at 64k tokens.
Cost: 3 D N weights per layer for N heads; here, all logits and three maps of weights, without a fused kernel: for
comparisons of the loss, not for speed.
Verified: a loop over queries, blocks and keys in float64, written from the rule; gradients by finite differences of it.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import Attention, Context, param, static
from flaxformer.nn.attention import masked_softmax
from flaxformer.nn.linear import linear

BRANCHES = 3


class NativeSparseAttention(Attention):
    """Causal attention by three maps of weights per head, whose results are summed with gates of the token.

    The attention weights have the three maps of a head in a row: compressed, selected, window.

    block: number of tokens of a block; padding is not counted.
    selected: number of selected blocks, with the first one and the last two.
    local: number of keys in the window.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, and W_g."""

        gate: Float[Array, "d_model heads branches"] = param(fan_in="d_model")

    block: int = static(64, at_least=1)
    selected: int = static(16, at_least=1)
    local: int = static(512, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"branches": BRANCHES}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.window is not None:
            yield f"window is {self.window}; expected None, since local is the window of one of three branches"

    def normalize(
        self, weights: Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*#batch #N T S"]
    ) -> Float[Array, "*batch maps T S"]:
        """Return the weights of the three branches of each head, one after another."""
        mask = jnp.broadcast_to(mask, logits.shape)
        exists = mask.any(-2, keepdims=True)  # [*batch, N, 1, S]
        place = jnp.cumsum(exists, axis=-1) - 1
        here = jnp.where(mask, place, -1).max(-1, keepdims=True)  # place of each query's own token
        blocks = jnp.arange(-(-logits.shape[-1] // self.block))
        in_block = jnp.where(exists, place // self.block, -1)[..., 0, :, None] == blocks  # [*batch, N, S, blocks]
        share = in_block.astype(logits.dtype) / self.block
        is_past = (blocks + 1) * self.block - 1 <= here
        compressed = masked_softmax(jnp.where(exists, logits, 0) @ share, is_past)  # [*batch, N, T, blocks]
        last = here // self.block
        is_fixed = (blocks == 0) | (blocks == last) | (blocks == last - 1)
        groups = (*logits.shape[:-3], self.key_value_heads or self.heads, -1, *compressed.shape[-2:])
        score = jnp.repeat(compressed.reshape(groups).mean(-3), logits.shape[-3] // groups[-4], axis=-3)
        score = jnp.where(is_fixed, 2.0, jnp.where(is_past, score, -1.0))
        best, index = jax.lax.top_k(score, min(self.selected, len(blocks)))
        chosen = (jax.nn.one_hot(index, len(blocks)) * (best >= 0)[..., None]).sum(-2)
        is_selected = chosen @ jnp.swapaxes(in_block.astype(chosen.dtype), -1, -2) > 0
        maps = [
            compressed @ jnp.swapaxes(share, -1, -2),
            masked_softmax(logits, mask & is_selected),
            masked_softmax(logits, mask & (here - place < self.local)),
        ]
        stacked = jnp.stack(maps, axis=-3)  # [*batch, N, 3, T, S]
        return stacked.reshape(*logits.shape[:-3], -1, *logits.shape[-2:])

    def transform_heads(
        self,
        weights: Weights,
        heads: Float[Array, "*batch T maps d_v"],
        x: Float[Array, "*batch T D"],
        context: Context,
    ) -> Float[Array, "*batch T N d_v"]:
        gate = jax.nn.sigmoid(linear(x, weights.gate, wide=True))[..., None]
        return (heads.reshape(*gate.shape[:-1], -1) * gate).sum(-2).astype(heads.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"native sparse attention": {"model.attention": NativeSparseAttention}}
