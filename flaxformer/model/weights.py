"""Weights of a model: their tree, shapes, initial values, and layout of layers."""

from collections.abc import Iterator

from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.config.initial import initial_problems
from flaxformer.config.problems import unused_cross_attention
from flaxformer.core.params import Parameters, fold_in_name, stack, subtree, table
from flaxformer.core.weight_specs import declarations, declare, initialise
from flaxformer.model.blocks import BlockParams
from flaxformer.model.layout import Layout, Periods, convert_layout
from flaxformer.system.errors import UserError


class Transformer(Parameters):
    """Weights of a model. `blocks` is a tuple with one tree per block, or one tree with a leading axis of layers."""

    embedding: Parameters = subtree(component="embedding")
    positions: Parameters = subtree(component="positions")
    embedding_norm: Parameters | None = subtree(component="embedding_norm")
    encoder: "Transformer | None" = subtree(when="encoder", config="encoder")
    blocks: tuple[BlockParams, ...] = subtree(repeat="block_configs")
    final_norm: Parameters | None = subtree(component="final_norm")
    head: Parameters = subtree(component="head")


def specs(config: ModelConfig) -> Transformer:
    """Return the `Spec` of every weight of a model: shape, axes, initializer, decay.

    Raises:
      UserError: the config has a cross-attention that reads nothing, or initial values of no weight.
    """
    _check_used(config)
    tree = declare(Transformer, config)
    for problem in _initial_problems(config, tree):
        raise UserError(problem)
    return tree


def _initial_problems(config: ModelConfig, tree: Transformer) -> Iterator[str]:
    yield from initial_problems(config.initial, table(tree.replace(encoder=None)))
    if config.encoder is not None and tree.encoder is not None:
        yield from (f"encoder.{problem}" for problem in _initial_problems(config.encoder, tree.encoder))


def init(key: Array, config: ModelConfig, layout: Layout = "unrolled") -> Transformer:
    """Draw the initial weights; each depends only on the key and its path, not on the layout or other weights.

    Raises:
      UserError: as `specs`.
    """
    specs(config)
    return with_layout(_draw(fold_in_name(key, "parameters"), config), layout)


def _check_used(config: ModelConfig) -> None:
    if (message := unused_cross_attention(config)) is not None:
        raise UserError(message)


def _draw(key: Array, config: ModelConfig) -> Transformer:
    params = initialise(key, declarations(Transformer, config).replace(encoder=None), config.initial_value)
    if config.encoder is None:
        return params
    return params.replace(encoder=_draw(fold_in_name(key, "encoder"), config.encoder))


def with_layout(params: Transformer, layout: Layout) -> Transformer:
    """Return the weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    encoder = None if params.encoder is None else with_layout(params.encoder, layout)
    return params.replace(blocks=convert_layout(params.blocks, layout), encoder=encoder)


def stack_as(tree: Transformer, like: Transformer) -> Transformer:
    """Return a tree over unrolled layers with its arrays stacked as in another: the inverse of `with_layout`."""
    inner, inner_like, layers = tree.encoder, like.encoder, like.blocks
    encoder = None if inner is None or inner_like is None else stack_as(inner, inner_like)
    if isinstance(layers, tuple) or not tree.blocks:
        return tree.replace(blocks=tree.blocks or layers, encoder=encoder)
    if isinstance(layers, Periods):
        period = len(layers.blocks)
        return tree.replace(
            blocks=Periods(blocks=tuple(stack(tree.blocks[place::period]) for place in range(period))), encoder=encoder
        )
    return tree.replace(blocks=stack(tree.blocks), encoder=encoder)


def stack_like(tree: Transformer, params: Transformer) -> Transformer:
    """Return a tree over unrolled layers in the layout of `params`; layers stacked there have equal values."""
    tree_encoder, other = tree.encoder, params.encoder
    encoder = None if tree_encoder is None or other is None else stack_like(tree_encoder, other)
    stacked, layers = params.blocks, tree.blocks
    if isinstance(stacked, Periods):
        return tree.replace(blocks=Periods(blocks=layers[: len(stacked.blocks)]), encoder=encoder)
    return tree.replace(blocks=layers if isinstance(stacked, tuple) else layers[0], encoder=encoder)
