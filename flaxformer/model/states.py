"""Decoding states of a model before the first token."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Int, PyTree

from flaxformer.components.branch import Branch
from flaxformer.components.cache import InputHistory
from flaxformer.components.component import Component
from flaxformer.config import ModelConfig
from flaxformer.model.blocks import BlockParams
from flaxformer.model.cache import BlockState, States
from flaxformer.model.layers import map_layers, shared_states
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError


def empty_states(params: Transformer, config: ModelConfig, batch: tuple[int, ...], capacity: int) -> States:
    """Return the states for `capacity` tokens per sequence, without the states of cross-attention.

    Raises:
      ValueError: a branch without a decoding state passes values to later layers.
    """
    outer = jax.tree.leaves(params.embedding)

    def dtype_of(block: BlockParams, name: str) -> DTypeLike:
        return jnp.result_type(jnp.bfloat16, *jax.tree.leaves(getattr(block, name))[:1], *outer)

    def empty_state(
        block_config: ModelConfig, block: BlockParams, numbers: tuple[int, ...], layer: int | Int[Array, ""]
    ) -> BlockState:
        readers = {
            name: branch
            for name, branch in block_config.branches()
            if branch.reads_others and name != "cross_attention"
        }
        return BlockState(
            **{
                name: _state(branch, getattr(block, name), batch, capacity, dtype_of(block, name), config.d_model)
                for name, branch in readers.items()
            }
        )

    shared = shared_states(config, batch, capacity, jnp.result_type(jnp.bfloat16, *outer))
    return States(map_layers(empty_state, params.blocks, config), shared)


def _state(
    branch: Branch, weights: PyTree, batch: tuple[int, ...], capacity: int, dtype: DTypeLike, d_model: int
) -> PyTree:
    """Return the state of a branch; without one of its own, the history of its inputs."""
    state = branch.init_state(weights, batch, capacity, dtype) if branch.has_state else None
    kind = type(branch)
    passes = kind.initial_carry is not Component.initial_carry or kind.shared_state is not Branch.shared_state
    if state is None and passes:
        raise ValueError(
            f"{kind.__name__} carries values across layers and has no decoding state; expected init_state, step"
        )
    return InputHistory(jnp.zeros((*batch, capacity, d_model), dtype)) if state is None else state


def check_decodable(config: ModelConfig, capacity: int) -> None:
    """Check that a model is causal and can read as many tokens as its cache holds."""
    if not config.is_causal:
        why = (
            'mask_pattern is "bidirectional"'
            if config.mask_pattern == "bidirectional"
            else 'norm_kind.over is "sequence"'
        )
        raise UserError(f"{why}, so that a token depends on later ones; expected a causal model for decoding")
    if config.max_length is not None and capacity > config.max_length:
        raise UserError(
            f"the cache has a capacity of {capacity}; expected at most the model's max_length {config.max_length}"
        )
