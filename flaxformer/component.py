"""Components: the parts of a model that a config chooses, each one class with its numbers, weights and function.

>>> class Dense(FeedForward):
...     d_ff: int = static(256)
...     class Weights(Parameters):
...         up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
...         down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff")
...     def apply(self, weights, x, context):
...         return jax.nn.relu(x @ weights.up) @ weights.down

A component's `apply` returns its result, or its result and an `Aux` with what else the step needs of it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int

from flaxformer.nn.masks import Mask
from flaxformer.params import Parameters, ParametersT, path_name
from flaxformer.pytree import Node
from flaxformer.struct import Config


class Component(Config):
    """Base of every component: a config with weights of its own.

    The axes of its weights are sizes of the model (`d_model`, `layers`, `vocabulary`, …) or its own static integer
    fields by name; `sizes` adds those that follow from others.
    """

    is_abstract: ClassVar[bool] = True
    exempt_from: ClassVar[Mapping[str, str]] = {}
    """Laws (`flaxformer check`) that this component breaks on purpose, each with the reason."""
    mixes_batch: ClassVar[bool] = False
    """True if the sequences of a batch depend on each other in training, or the call changes weights (`Aux.weights`):
    the batch is then computed whole, never in micro-batches."""

    class Weights(Parameters):
        """No weights."""

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        """Values that this component hands from layer to layer, by name, as the first layer reads them.

        `x` is the stream before the first layer. In each layer, `Context.carried` has them as the layers before left
        them, and an `Aux(carried={...})` replaces those that it names, in the same shapes.
        """
        return {}

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        """The sizes of the axes that its weights name, given those of the model."""
        static = [field.name for field in dataclasses.fields(self) if not field.metadata["pytree_node"]]
        values = {name: getattr(self, name) for name in static}
        return {name: value for name, value in values.items() if type(value) is int}


def overrides(kind: type, name: str, other: str) -> bool:
    """True if a class has a method from further down in its line of classes than another one that belongs to it."""
    line = [vars(own) for own in kind.__mro__]
    return next(n for n, own in enumerate(line) if name in own) < next(n for n, own in enumerate(line) if other in own)


class Aux(Node):
    """Results of a call beside its output, by name; the names of nested parts are joined by "/".

    losses: scalars to be added to the training loss, each a mean over the tokens that were read.
    statistics: numbers for a study's `measure` and for diagnostics, which record them; those of a stack have an axis
        of the layers that give them.
    intermediates: activations, where `Context.return_intermediates` asks for them; `apply_with_intermediates` returns
        those of a branch and of its norms as `blocks[i].feed_forward.intermediates`.
    weights: weights that the call itself changed, such as running means, by their path.
    carried: values for the layers that follow, by the names that `Component.initial_carry` gives them.
    """

    losses: dict[str, Float[Array, "..."]] = flax.struct.field(default_factory=dict)
    statistics: dict[str, Array] = flax.struct.field(default_factory=dict)
    intermediates: dict[str, Any] = flax.struct.field(default_factory=dict)
    weights: dict[str, Any] = flax.struct.field(default_factory=dict)
    carried: dict[str, Array] = flax.struct.field(default_factory=dict)

    def within(self, name: str) -> "Aux":
        """The same under the name of the part that gave it."""
        found = self._mapped(lambda own: {f"{name}/{key}" if key else name: value for key, value in own.items()})
        return found.replace(carried=self.carried)

    def merge(self, other: "Aux") -> "Aux":
        """Both together."""
        return Aux(*(getattr(self, f.name) | getattr(other, f.name) for f in dataclasses.fields(self)))

    def _mapped(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> "Aux":
        return Aux(*(function(getattr(self, f.name)) for f in dataclasses.fields(self)))


def with_aux(result: Any) -> tuple[Any, Aux]:
    """A component's result and its `Aux`, empty where it gave none."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Aux):
        return result
    return result, Aux()


class Context(Node):
    """Inputs that the components of a stack share in one call."""

    query_positions: Int[Array, "*batch T"]
    key_positions: Int[Array, "*batch S"]
    given_positions: tuple[Array, Array] | None = None
    """The positions of queries and keys where they do not count from 0, for a window to measure between."""
    mask: Mask | None = None
    """Tokens that self-attention may read; None for all."""
    bias: Float[Array, "*batch N T S"] | None = None
    """Bias of the position scheme, added to the logits of self-attention."""
    scheme: Any = None
    """The position scheme, and its weights."""
    scheme_weights: Any = None
    source: Float[Array, "*batch S D"] | None = None
    """Input of cross-attention; None in self-attention, which reads its own input."""
    source_mask: Mask | None = None
    valid: Bool[Array, "*batch T"] | None = None
    """False at padding."""
    offset: Int[Array, ""] | None = None
    """Entries of the decoding state that are written already; None without one."""
    carried: dict[str, Array] = flax.struct.field(default_factory=dict)
    """Values handed on by components of earlier layers."""
    key: Array | None = None
    """A random key for the component's own draws in training; None in evaluation. The parts around a branch (its
    norms, its residual rule) have the same one: of two that draw, one folds a number in."""
    layer: Int[Array, ""] | int | None = None
    """The layer's index, from 0."""
    is_cross: bool = flax.struct.field(pytree_node=False, default=False)
    """True if this is the context of cross-attention."""
    training: bool = flax.struct.field(pytree_node=False, default=False)
    return_intermediates: bool = flax.struct.field(pytree_node=False, default=False)
    layers: int = flax.struct.field(pytree_node=False, default=0)
    """Depth of the stack."""
    reads_source: bool = flax.struct.field(pytree_node=False, default=False)
    """True if the stack has cross-attention."""

    def of(self, branch: str) -> "Context":
        """The context of one branch: only cross-attention has the source, which it reads without positions."""
        if branch == "cross_attention":
            return self.replace(mask=self.source_mask, bias=None, scheme=None, scheme_weights=None, is_cross=True)
        return self.replace(source=None, source_mask=None)


def changed_weights(params: ParametersT, changed: Mapping[str, Any]) -> ParametersT:
    """The weights with those at some paths replaced, as `Aux.weights` names them."""
    if not changed:
        return params
    leaves = {f"{path}/{path_name(own)}" if own else path: leaf
              for path, tree in changed.items()
              for own, leaf in jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(path_name(path), leaf), params)
