"""Token mixers: what lets a token read others; attention is one."""

from typing import Any, ClassVar

from jaxtyping import Array, Float

from flaxformer.component import Component, Context, overrides


class TokenMixer(Component):
    """Base of what mixes the tokens of a sequence.

    A mixer without a decoding state is decoded by recomputing the prefix: one that defines no `step`, or that overrides
    `apply` of a class and not its `step`, or whose `init_state` gives None.
    """

    is_abstract: ClassVar[bool] = True
    max_length: ClassVar[int | None] = None
    """The longest sequence, where there is one."""
    reads_mask: ClassVar[bool] = True
    """True if `context.mask` decides what a token reads. A mixer with False must be causal by itself; models that need
    another mask (bidirectional, a prefix, packed documents) refuse it."""

    @property
    def has_state(self) -> bool:
        """True if it has a decoding state of its own; without one, each new token costs a pass over all before it."""
        own = type(self)
        return own.init_state is not TokenMixer.init_state and not overrides(own, "apply", "step")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Any:
        """The update of each token, or the update and an `Aux`.

        A token reads what `context.mask` allows, or, with `reads_mask = False`, itself and the tokens before it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> Any:
        """The decoding state before the first token, for up to `capacity` tokens; None where there is none."""
        return None

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Any, Any]:
        """`apply` to tokens that follow those of a state: their update, and the state with them."""
        raise NotImplementedError(f"{type(self).__name__} does not define `step`")
