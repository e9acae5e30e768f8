"""Bases of the branches of a block: what a branch that reads other tokens declares for masks and for decoding."""

from collections.abc import Mapping
from typing import ClassVar

from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import Component, ComponentResult, Context, OwnWeights, is_more_derived


class Branch(Component):
    """Base of token mixers and feed-forward networks.

    A branch that reads other tokens has no decoding state if it defines no `step`, if it overrides `apply` without
    overriding `step`, or if its `init_state` returns None. Decoding then recomputes the whole prefix for every token.
    """

    is_abstract: ClassVar[bool] = True
    reads_others: ClassVar[bool] = False
    """True if the result for a token may depend on other tokens."""
    max_length: ClassVar[int | None] = None
    """Longest sequence that the branch can read; None for no limit."""
    reads_mask: ClassVar[bool] = True
    """True if `context.mask` decides what a token reads. If False, a branch that reads other tokens must be causal by
    itself; a model that needs another mask (bidirectional, a prefix, packed documents) rejects it."""

    @property
    def has_state(self) -> bool:
        """True if there is a decoding state; without one, each new token costs a pass over the whole prefix."""
        kind = type(self)
        return kind.init_state is not Branch.init_state and not is_more_derived(kind, "apply", "step")

    def apply(self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context) -> ComponentResult:
        """Return the update of each token, or the update and an `Aux`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")

    def init_state(self, weights: OwnWeights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> PyTree:
        """Return the decoding state before the first token, for up to `capacity` tokens; None for no state."""
        return None

    def step(
        self, weights: OwnWeights, x: Float[Array, "*batch T D"], state: PyTree, context: Context
    ) -> tuple[ComponentResult, PyTree]:
        """Return `apply` for tokens that follow those of a state, and the state with these tokens added."""
        raise NotImplementedError(f"{type(self).__name__} does not define `step`")

    def shared_state(
        self, sizes: Mapping[str, int], batch: tuple[int, ...], capacity: int, dtype: DTypeLike
    ) -> dict[str, PyTree]:
        """Return the first values of a state that layers share, by name, for up to `capacity` tokens.

        They are passed from layer to layer as the values of `initial_carry` are, and a cache keeps them between calls:
        one copy for all layers. In a forward pass without a cache, `capacity` is the number of tokens.

        Args:
          sizes: sizes of the model, by axis.
        """
        return {}


class TokenMixer(Branch):
    """Base of the token mixers.

    A token reads the tokens that `context.mask` allows; with `reads_mask = False`, itself and earlier tokens.
    """

    is_abstract: ClassVar[bool] = True
    reads_others: ClassVar[bool] = True
