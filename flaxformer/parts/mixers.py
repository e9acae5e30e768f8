"""Token mixers: components by which a token reads other tokens, such as attention."""

from typing import ClassVar

from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from flaxformer.component import Component, ComponentResult, Context, OwnWeights, is_more_derived


class TokenMixer(Component):
    """Base of the token mixers.

    A mixer has no decoding state if it defines no `step`, if it overrides `apply` without overriding `step`, or if its
    `init_state` returns None. Decoding then recomputes the whole prefix for every token.
    """

    is_abstract: ClassVar[bool] = True
    max_length: ClassVar[int | None] = None
    """Longest sequence that the mixer can read; None for no limit."""
    reads_mask: ClassVar[bool] = True
    """True if `context.mask` decides what a token reads. If False, the mixer must be causal by itself; a model that
    needs another mask (bidirectional, a prefix, packed documents) rejects it."""

    @property
    def has_state(self) -> bool:
        """True if the mixer has a decoding state; without one, each new token costs a pass over the whole prefix."""
        kind = type(self)
        return kind.init_state is not TokenMixer.init_state and not is_more_derived(kind, "apply", "step")

    def apply(self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context) -> ComponentResult:
        """Return the update of each token, or the update and an `Aux`.

        A token reads the tokens that `context.mask` allows; with `reads_mask = False`, itself and earlier tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")

    def init_state(self, weights: OwnWeights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> PyTree:
        """Return the decoding state before the first token, for up to `capacity` tokens; None for no state."""
        return None

    def step(
        self, weights: OwnWeights, x: Float[Array, "*batch T D"], state: PyTree, context: Context
    ) -> tuple[ComponentResult, PyTree]:
        """Return `apply` for tokens that follow those of a state, and the state with these tokens added."""
        raise NotImplementedError(f"{type(self).__name__} does not define `step`")
