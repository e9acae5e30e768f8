"""The decoder-only language model: `init(key, config)` and `apply(params, config, tokens)`, both pure."""

from typing import Any, Literal

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.blocks import Block, BlockIntermediates, block
from flaxformer.model.layers import Embedding, Head, Norm, dropout, embed, logits, normalise
from flaxformer.nn.masks import Mask, Padding
from flaxformer.params import Parameters, declare, initialise, stack, stream, subtree, unstack

Layout = Literal["auto", "unrolled", "scanned"]
DEEPEST_UNROLLED = 12
"""Unrolled layers run 1.6 times as fast on a CPU; scanned ones compile in a time that does not grow with depth."""


class Transformer(Parameters):
    """All weights. `blocks` is a tuple of per-layer trees, or one tree with a leading `layers` axis."""

    embedding: Embedding = subtree()
    blocks: tuple[Block, ...] = subtree(repeat="layers")
    final_norm: Norm | None = subtree(when="norm.final")
    head: Head = subtree()


class Intermediates(flax.struct.PyTreeNode):
    """What each stage produced: the residual stream after embedding, every block's branches, the head's input."""

    embedded: Float[Array, "*batch T D"]
    blocks: tuple[BlockIntermediates, ...]
    final: Float[Array, "*batch T D"]


def specs(config: ModelConfig) -> Transformer:
    """Every weight's declaration under a config: shapes, axes, initialisers, decay."""
    return declare(Transformer, config)


def init(key: Array, config: ModelConfig, layout: Layout = "unrolled") -> Transformer:
    """Draw the weights. The numbers depend on key and path alone, never on the layout or on other weights."""
    params = initialise(stream(key, "parameters"), specs(config), config.initial_std)
    return with_layout(params, layout)


def with_layout(params: Transformer, layout: Layout) -> Transformer:
    """The same weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    layers = unstack(params.blocks) if isinstance(params.blocks, Block) else params.blocks
    scanned = layout == "scanned" or (layout == "auto" and len(layers) > DEEPEST_UNROLLED)
    return params.replace(blocks=stack(layers) if scanned and layers else layers)


def apply(
    params: Transformer,
    config: ModelConfig,
    tokens: Int[Array, "*batch T"],
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    dropout_key: Array | None = None,
) -> Float[Array, "*batch T V"]:
    """Next-token logits at every position.

    Args:
      params, config: weights as `init` made them, in either layout, and the config they were made with.
      tokens: ids in [0, vocabulary); ids outside are the caller's to refuse, since indexing clamps them.
      valid: False at padding, which no token attends to; None means no padding.
      dropout_key: gives training behaviour; None evaluates.
    """
    return apply_with_intermediates(params, config, tokens, valid=valid, dropout_key=dropout_key)[0]


def apply_with_intermediates(
    params: Transformer,
    config: ModelConfig,
    tokens: Int[Array, "*batch T"],
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    dropout_key: Array | None = None,
) -> tuple[Float[Array, "*batch T V"], Intermediates]:
    """`apply`, and what every stage produced; under `jit` an intermediate that is not used costs nothing."""
    mask = config.mask() if valid is None else Padding(valid) & config.mask()
    keys = [None if dropout_key is None else stream(dropout_key, name) for name in ("embedding", "blocks")]
    with jax.named_scope("embedding"):
        x = embedded = dropout(keys[0], config.dropout, embed(params.embedding, config, tokens))
    x, blocks = _layers(params.blocks, config, x, mask, keys[1])
    with jax.named_scope("head"):
        final = normalise(params.final_norm, config, x)
        return logits(params.head, params.embedding, final), Intermediates(embedded, blocks, final)


def _layers(
    layers: tuple[Block, ...] | Block, config: ModelConfig, x: Array, mask: Mask | None, key: Array | None
) -> tuple[Array, tuple[BlockIntermediates, ...]]:
    """Every block in turn: the one place that knows whether layers are unrolled or scanned."""

    def body(x: Array, layer: tuple[Block, Any]) -> tuple[Array, BlockIntermediates]:
        params, index = layer
        return block(params, config, x, mask, None if key is None else jax.random.fold_in(key, index))

    if isinstance(layers, tuple):
        kept = []
        for index, params in enumerate(layers):
            with jax.named_scope(f"block_{index}"):
                x, intermediates = body(x, (params, index))
            kept.append(intermediates)
        return x, tuple(kept)
    depth = len(jax.tree.leaves(layers)[0])
    x, stacked = jax.lax.scan(body, x, (layers, jax.numpy.arange(depth)))
    return x, unstack(stacked)
