"""Decoding state of a whole model, as a pytree."""

import functools

import flax.struct
import jax
from jaxtyping import Array, Bool, Int, PyTree

from flaxformer.components.cache import InputHistory, Memory, PackedKV, pad_axis, write
from flaxformer.core.pytree import Node
from flaxformer.nn.positions import token_positions
from flaxformer.system.errors import UserError


class BlockState(Node):
    """Decoding state of one block: the states of its branches, and the constant keys and values of cross-attention."""

    attention: PyTree = None
    cross_attention: PackedKV | Memory | None = None
    feed_forward: PyTree = None


def is_block_state(node: PyTree) -> bool:
    """True for the state of one block."""
    return isinstance(node, BlockState)


class States(Node):
    """States of all layers in the layout of their weights, and those that layers share."""

    layers: PyTree[BlockState]
    shared: dict[str, PyTree]

    @property
    def has_history(self) -> bool:
        """True if a branch has no decoding state, so that all tokens are computed again."""
        blocks = jax.tree.leaves(self.layers, is_leaf=is_block_state)
        return any(
            isinstance(branch, InputHistory) for state in blocks for branch in (state.attention, state.feed_forward)
        )


class Cache(Node):
    """Decoding state of a model between two calls. Tokens are appended in order, including padding.

    layers: one `BlockState` per layer, or stacked ones with a leading axis, as in the layout of the weights.
    used: number of tokens so far, including padding.
    count: number of tokens so far per sequence, without padding.
    valid, positions: of each token; None if no mixer reads earlier tokens again, so that the cache has no limit.
    """

    layers: PyTree[BlockState]
    used: Int[Array, ""]
    count: Int[Array, "*batch"]
    valid: Bool[Array, "*batch capacity"] | None
    positions: Int[Array, "*batch capacity"] | None
    memory_valid: Bool[Array, "*batch S"] | None = None
    tokens: Int[Array, "*batch capacity"] | None = None
    """Token ids, if a component without a decoding state computes all tokens again; 0 at padding."""
    shared: dict[str, PyTree] = flax.struct.field(default_factory=dict)
    """States that layers share, by name (`Branch.shared_state`)."""
    prefix: Int[Array, "*batch"] | None = None
    """Number of tokens at the start that all tokens attend to, with mask_pattern "prefix"."""

    @property
    def capacity(self) -> int | None:
        """Number of tokens that the cache can hold; None for no limit."""
        return None if self.valid is None else self.valid.shape[-1]

    @property
    def states(self) -> States:
        """States of the layers, and those that they share."""
        return States(self.layers, self.shared)

    def pad_to(self, capacity: int, empty: States) -> "Cache":
        """Return the cache with a larger capacity.

        Args:
          empty: the states before the first token, with this capacity.

        Raises:
          UserError: the method `pad_to` of a state gives other shapes than these.
        """
        pad = functools.partial(_pad_state, capacity)

        def pad_block(state: BlockState, empty: BlockState) -> BlockState:
            cross_attention = state.cross_attention
            padded = jax.tree.map(pad, state.replace(cross_attention=None), empty, is_leaf=has_pad_to)
            return padded.replace(cross_attention=cross_attention)

        return self.replace(
            layers=jax.tree.map(pad_block, self.layers, empty.layers, is_leaf=is_block_state),
            shared=jax.tree.map(pad, self.shared, empty.shared, is_leaf=has_pad_to),
            valid=None if self.valid is None else pad_axis(self.valid, capacity, -1),
            positions=None if self.positions is None else pad_axis(self.positions, capacity, -1),
            tokens=None if self.tokens is None else pad_axis(self.tokens, capacity, -1),
        )

    def advance(self, valid: Bool[Array, "*batch T"]) -> tuple["Cache", Int[Array, "*batch T"]]:
        """Append T tokens; return the cache without their keys and values, and their positions.

        Raises:
          ValueError: more tokens than the capacity, if `used` is not traced.
        """
        length = valid.shape[-1]
        positions = token_positions(valid, self.count)
        after = self.replace(used=self.used + length, count=self.count + valid.sum(-1, dtype=self.count.dtype))
        if self.valid is None or self.positions is None:
            return after, positions
        capacity = self.valid.shape[-1]
        if not isinstance(self.used, jax.core.Tracer) and int(self.used) + length > capacity:
            raise ValueError(f"{int(self.used)} of {capacity} positions are used; {length} more tokens do not fit")
        return after.replace(
            valid=write(self.valid, valid, self.used, axis=-1),
            positions=write(self.positions, positions, self.used, axis=-1),
        ), positions


def has_pad_to(state: PyTree) -> bool:
    """True if a state, or a part of one, has a method that enlarges it."""
    return hasattr(state, "pad_to")


def grows(small: PyTree, large: PyTree) -> bool:
    """True if states have an entry per token.

    Args:
      small, large: shapes of the states for a capacity and for a larger one.
    """
    shapes = [[leaf.shape for leaf in jax.tree.leaves(states)] for states in (small, large)]
    return shapes[0] != shapes[1] or any(map(has_pad_to, jax.tree.leaves(small, is_leaf=has_pad_to)))


def _pad_state(capacity: int, state: PyTree, empty: PyTree) -> PyTree:
    """Return a state with room for `capacity` tokens: by its `pad_to`, or its entries before those of `empty`."""
    if not has_pad_to(state):
        return jax.tree.map(_write_into, state, empty)
    padded = state.pad_to(capacity)
    shapes = [[list(leaf.shape) for leaf in jax.tree.leaves(states)] for states in (padded, empty)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{type(state).__name__}.pad_to({capacity}) gives arrays of shapes {shapes[0]}; expected {shapes[1]}, as "
            "init_state gives for that capacity"
        )
    return padded


def _write_into(old: Array, empty: Array) -> Array:
    """Return `empty` with its first entries replaced by those of `old`."""
    return old if old.shape == empty.shape else jax.lax.dynamic_update_slice(empty, old, (0,) * old.ndim)
