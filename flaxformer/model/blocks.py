"""A block is residual branches; a branch has three norm slots: stream(x + post(branch(pre(x))))."""

from collections.abc import Callable

import flax.struct
import jax
from jaxtyping import Array, Float

from flaxformer.config import ModelConfig
from flaxformer.model.layers import Attention, FeedForward, Norms, attention, dropout, feed_forward, normalise
from flaxformer.nn.masks import Mask
from flaxformer.params import Parameters, stream, subtree


class Block(Parameters):
    """Self-attention, then feed-forward, each around its own residual connection."""

    attention_norms: Norms = subtree()
    attention: Attention = subtree()
    feed_forward_norms: Norms = subtree()
    feed_forward: FeedForward = subtree()


class Branch(flax.struct.PyTreeNode):
    """What one residual branch saw and did, [..., T, D] each."""

    input: Array
    update: Array
    stream: Array


class BlockIntermediates(flax.struct.PyTreeNode):
    """Both branches of one block."""

    attention: Branch
    feed_forward: Branch


def residual(
    norms: Norms,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    branch: Callable[[Array], Array],
    key: Array | None,
) -> Branch:
    """stream(x + post(branch(pre(x)))), with dropout on the update; pre- and post-norm are slots filled or empty."""
    entering = normalise(norms.pre, config, x)
    update = dropout(key, config.dropout, normalise(norms.post, config, branch(entering)))
    return Branch(input=entering, update=update, stream=normalise(norms.stream, config, x + update))


def block(
    params: Block, config: ModelConfig, x: Float[Array, "*batch T D"], mask: Mask | None, key: Array | None
) -> tuple[Float[Array, "*batch T D"], BlockIntermediates]:
    """Two residual branches; `key` is the block's own dropout key, None in evaluation."""
    keys = [None if key is None else stream(key, name) for name in ("attention", "feed_forward")]
    with jax.named_scope("attention"):
        first = residual(
            params.attention_norms, config, x, lambda y: attention(params.attention, config, y, y, mask), keys[0]
        )
    with jax.named_scope("feed_forward"):
        second = residual(
            params.feed_forward_norms,
            config,
            first.stream,
            lambda y: feed_forward(params.feed_forward, config, y),
            keys[1],
        )
    return second.stream, BlockIntermediates(attention=first, feed_forward=second)
