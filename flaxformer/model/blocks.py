"""A block is residual branches, each with norm slots: stream(skip · x + gain · post(branch(pre(x))))."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Float

from flaxformer.config import ModelConfig
from flaxformer.model.attention import Attention, CrossAttention, Scores, attention, keys_and_values
from flaxformer.model.cache import LayerCache
from flaxformer.model.call import Call
from flaxformer.model.feed_forward import FeedForward, feed_forward
from flaxformer.model.norm import Norm, normalise
from flaxformer.nn.dropout import dropout
from flaxformer.params import Parameters, param, stream, subtree
from flaxformer.pytree import Node


class Connection(Parameters):
    """What stands around one branch: its norm slots, empty (None) or filled, and the learned gain of its update."""

    pre: Norm | None = subtree(when="norm.pre")
    post: Norm | None = subtree(when="norm.post")
    stream: Norm | None = subtree(when="norm.stream")
    scalar: Float[Array, ""] | None = param(init="residual_gain", decay=False, when="residual.has_scalar")
    vector: Float[Array, "d_model"] | None = param(init="residual_gain", decay=False, when="residual.has_vector")


class Block(Parameters):
    """Self-attention, attention to a memory, feed-forward: each around its own residual connection."""

    attention_connection: Connection = subtree()
    attention: Attention = subtree()
    memory_connection: Connection | None = subtree(when="reads_memory")
    memory: CrossAttention | None = subtree(when="reads_memory")
    feed_forward_connection: Connection | None = subtree(when="has_feed_forward")
    feed_forward: FeedForward | None = subtree(when="has_feed_forward")


class Branch(Node):
    """What one residual branch saw and did; and the `Scores` of an attention."""

    input: Float[Array, "*batch T D"]
    update: Float[Array, "*batch T D"]
    stream: Float[Array, "*batch T D"]
    logits: Float[Array, "*batch N T S"] | None = None
    allowed: Bool[Array, "*#batch #N T S"] | None = None
    weights: Float[Array, "*batch N T S"] | None = None


class BlockIntermediates(Node):
    """The branches of one block; None for those that it does not have."""

    attention: Branch
    memory: Branch | None = None
    feed_forward: Branch | None = None


Update = Callable[[Array], tuple[Array, Scores]]
"""A branch: from the normalised stream to its update, and the scores of an attention where they are to be kept."""


def residual(
    connection: Connection,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    branch: Update,
    *,
    read: Float[Array, "*batch T D"],
    keep: bool,
    call: Call,
    key: Array | None,
) -> tuple[Branch, Connection]:
    """stream(skip · x + gain · post(branch(pre(read)))), with dropout on the update; `read` is x unless parallel.

    Returns what the branch did, and the connection after it (running statistics may have moved).
    """
    entering, pre = normalise(connection.pre, config, read, call)
    update, scores = branch(entering)
    update, post = normalise(connection.post, config, update, call)
    update = dropout(key, config.dropout, update)
    for gain in (connection.scalar, connection.vector):
        if gain is not None:
            row = gain.reshape((1,) * (update.ndim - gain.ndim) + gain.shape)
            update = (update * row).astype(update.dtype)
    skip = config.residual.skip(config.layers, config.reads_memory)
    joined = update if not keep else (x if skip is None else skip * x) + update
    joined, after = normalise(connection.stream, config, joined, call)
    done = Branch(entering, update, joined, scores.logits, scores.allowed, scores.weights)
    return done, connection.replace(pre=pre, post=post, stream=after)


def block(
    params: Block,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    call: Call,
    key: Array | None = None,
    cache: LayerCache | None = None,
) -> tuple[Float[Array, "*batch T D"], BlockIntermediates, Block, LayerCache | None]:
    """The residual branches in turn, or side by side when `parallel`; `key` is the block's dropout key.

    Returns the stream, what the branches did, the block after it (running statistics may have moved), and its cache.
    """

    def self_attention(y: Array) -> tuple[Array, Scores]:
        nonlocal cache
        read = keys_and_values(params.attention, config, y, call.query_positions)
        if cache is not None:
            cache = cache.extended(read, call.offset, call.valid)  # type: ignore[arg-type]
            read = cache.own  # type: ignore[assignment]
        places = (call.query_positions, call.key_positions)
        return attention(params.attention, config, y, read, call.mask, call.bias, places, call.weights)

    def attention_to_memory(y: Array) -> tuple[Array, Scores]:
        memory: Any = params.memory
        read: Any = keys_and_values(memory, config, call.memory) if cache is None else cache.memory  # type: ignore[arg-type]
        return attention(memory, config, y, read, call.memory_mask, keep=call.weights)

    def each_token_alone(y: Array) -> tuple[Array, Scores]:
        return feed_forward(params.feed_forward, config, y), Scores()  # type: ignore[arg-type]

    branches: dict[str, tuple[Update, bool]] = {
        "attention": (self_attention, config.attention_residual),
        "memory": (attention_to_memory, config.memory_residual),
        "feed_forward": (each_token_alone, config.feed_forward_residual),
    }
    entered, done, connections = x, {}, {}
    for name, (branch, keep) in branches.items():
        connection = getattr(params, f"{name}_connection")
        if connection is None:
            continue
        with jax.named_scope(name):
            done[name], connections[f"{name}_connection"] = residual(
                connection,
                config,
                x,
                branch,
                read=entered if config.parallel else x,
                keep=keep,
                call=call,
                key=None if key is None else stream(key, name),
            )
        x = done[name].stream
    return x, BlockIntermediates(**done), params.replace(**connections), cache
