"""Components: the exchangeable parts of a model, each one class with its numbers, weights and function.

>>> class Dense(FeedForward):
...     d_ff: int = static(256)
...     class Weights(Parameters):
...         up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
...         down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff")
...     def apply(self, weights, x, context):
...         return jax.nn.relu(x @ weights.up) @ weights.down

`apply` returns the result, or a pair of the result and an `Aux` with further outputs for the training step.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer.core.params import Parameters, ParametersT, path_name
from flaxformer.core.points import Edits
from flaxformer.core.pytree import Node
from flaxformer.core.struct import Config
from flaxformer.nn.dropout import dropout, part_key
from flaxformer.nn.masks import Explicit, Mask
from flaxformer.nn.subsets import length_of_sequence, take_pairs, take_tokens

ResultT = TypeVar("ResultT")
OwnWeights: TypeAlias = Any
"""Weights of a component: an instance of its class `Weights`."""


class Component(Config):
    """Base of every component: a config with weights of its own.

    The axes of its weights have sizes of the model (`d_model`, `layers`, `vocabulary`, …) or of the component's static
    integer fields, by name; `sizes` computes further ones.
    """

    is_abstract: ClassVar[bool] = True
    exempt_from: ClassVar[Mapping[str, str]] = {}
    """Laws (`flaxformer check`) that the component breaks on purpose, with the reason for each."""
    mixes_batch: ClassVar[bool] = False
    """True if the sequences of a batch depend on each other in training, or if the call changes weights
    (`Aux.weights`). Such a model is never trained in micro-batches."""

    class Weights(Parameters):
        """No weights."""

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        """Return the initial values that the component passes from layer to layer, by name.

        Each layer reads the current values in `Context.carried`, and replaces those named in its
        `Aux(carried={...})`; shapes must not change.

        Args:
          x: the residual stream before the first layer.
        """
        return {}

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of further axes of the weights, given those of the model.

        The static integer fields, and what the method of a base class returns, are axes anyway.
        """
        return {}

    def axis_sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of all axes that the component defines.

        They are its static integer fields and what `sizes` of each of its classes returns, a subclass last.
        """
        static = [field.name for field in dataclasses.fields(self) if not field.metadata["pytree_node"]]
        values = {name: getattr(self, name) for name in static}
        sizes = {name: value for name, value in values.items() if type(value) is int}
        for kind in reversed(type(self).__mro__):
            if method := vars(kind).get("sizes"):
                sizes |= method(self, model)
        return sizes

    def after_step(self, weights: OwnWeights) -> OwnWeights:
        """Return the weights of the component after a step of the optimizer, such as their projection on a sphere.

        It is applied to the initial weights of a training too. Weights that are not trained do not change.
        """
        return weights

    @property
    def has_after_step(self) -> bool:
        """True if the component changes its weights after a step."""
        return type(self).after_step is not Component.after_step

    def active_sizes(self) -> dict[str, int]:
        """Return how many entries one token uses, for axes of the weights of which it does not use all.

        Such as {"experts": 2} for a router that selects two experts. It decides the number of active parameters, and
        nothing else.
        """
        return {}


def is_more_derived(kind: type, name: str, other: str) -> bool:
    """True if a class takes the method `name` from a more derived class than the method `other`."""
    depths = [next(n for n, base in enumerate(kind.__mro__) if method in vars(base)) for method in (name, other)]
    return depths[0] < depths[1]


class Aux(Node):
    """Outputs of a component beside its result, by name; names of nested parts are joined by "/".

    losses: scalars that are added to the training loss; each is a mean over the input tokens.
    statistics: numbers that a study's `measure` and the diagnostics record; from a stack, with a leading axis of the
        layers that give them.
    intermediates: activations, if `Context.return_intermediates`; `apply_with_intermediates` returns those of a branch
        and its norms as `blocks[i].feed_forward.intermediates`. `Context.edit` records one without an `Aux`, and lets a
        call edit it.
    weights: new values of weights that the forward pass changes, such as running means, by path.
    carried: values for later layers, by the names of `Component.initial_carry`.
    """

    losses: dict[str, Float[Array, "..."]] = flax.struct.field(default_factory=dict)
    statistics: dict[str, Array] = flax.struct.field(default_factory=dict)
    intermediates: dict[str, PyTree] = flax.struct.field(default_factory=dict)
    weights: dict[str, PyTree] = flax.struct.field(default_factory=dict)
    carried: dict[str, Array] = flax.struct.field(default_factory=dict)

    def within(self, name: str) -> "Aux":
        """Return a copy with `name` before every name; those of `carried`, which all parts share, are unchanged."""

        def add_prefix(values: Mapping[str, PyTree]) -> dict[str, PyTree]:
            return {f"{name}/{key}" if key else name: value for key, value in values.items()}

        return Aux(
            losses=add_prefix(self.losses),
            statistics=add_prefix(self.statistics),
            intermediates=add_prefix(self.intermediates),
            weights=add_prefix(self.weights),
            carried=self.carried,
        )

    def merge(self, other: "Aux") -> "Aux":
        """Return the union of both; where a name is in both, the value of `other`."""
        return Aux(*(getattr(self, f.name) | getattr(other, f.name) for f in dataclasses.fields(self)))


def with_aux(result: ResultT | tuple[ResultT, Aux]) -> tuple[ResultT, Aux]:
    """Return what a component returned as a pair of result and `Aux`; the `Aux` is empty if it returned none."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Aux):
        return cast(tuple[ResultT, Aux], result)
    return cast(ResultT, result), Aux()


ComponentResult = Array | tuple[Array, Aux]
"""Return value of a component: an array, or a pair of an array and further outputs."""


class PositionScheme(Protocol):
    """Position scheme, as far as an attention uses it; `components.positions.Positions` documents the methods."""

    @property
    def reads_query(self) -> bool:
        """True if the scheme has a `query_bias`."""

    def rotate(self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]) -> Array:
        """Return queries with their positions in them."""

    def rotate_key(self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]) -> Array:
        """Return keys with their positions in them."""

    def query_bias(
        self, weights: OwnWeights, query: Array, key: Array, query_positions: Array, key_positions: Array, mask: Array
    ) -> Float[Array, "*batch N T S"] | None:
        """Return what is added to the logits."""


class Context(Node):
    """Inputs of one forward pass that the components of a stack share."""

    query_positions: Int[Array, "*batch T"]
    key_positions: Int[Array, "*batch S"]
    given_positions: tuple[Array, Array] | None = None
    """Positions of queries and keys, for a window to measure distances; None if both count from 0."""
    mask: Mask | None = None
    """Tokens that self-attention may read; None for all."""
    bias: Float[Array, "*batch N T S"] | None = None
    """Bias of the position scheme, added to the logits of self-attention."""
    scheme: PositionScheme | None = None
    scheme_weights: Parameters | None = None
    source: Float[Array, "*batch S D"] | None = None
    """Input of cross-attention; None in self-attention."""
    source_mask: Mask | None = None
    valid: Bool[Array, "*batch T"] | None = None
    """False at padding."""
    tokens: Int[Array, "*batch T"] | None = None
    """Token ids of the stack, 0 at padding; None if its inputs are not tokens."""
    offset: Int[Array, ""] | None = None
    """Number of tokens in the decoding state; None without one."""
    carried: dict[str, Array] = flax.struct.field(default_factory=dict)
    """Values that components of earlier layers pass on."""
    key: Array | None = None
    """Random key of the component in training; None in evaluation. Parts of a batch have different keys. The norms and
    the residual rule of a branch get the same key: if two of them draw random numbers, one must fold in a number."""
    batch_key: Array | None = None
    """`key` of the whole batch, where this is a part of it (see `dropout`)."""
    layer_key: Array | None = None
    """Random key that the branches of a layer share, in training, for a draw of all of them."""
    rows: Int[Array, " B"] | None = None
    """Index of each example in the batch, in a micro-batch or on one of several devices; None for a whole batch."""
    layer: Int[Array, ""] | int | None = None
    """Index of the layer, from 0."""
    branch: int = flax.struct.field(pytree_node=False, default=0)
    """Index of the branch in its block, from 0."""
    is_cross: bool = flax.struct.field(pytree_node=False, default=False)
    """True in cross-attention."""
    training: bool = flax.struct.field(pytree_node=False, default=False)
    return_intermediates: bool = flax.struct.field(pytree_node=False, default=False)
    layers: int = flax.struct.field(pytree_node=False, default=0)
    """Number of layers."""
    reads_source: bool = flax.struct.field(pytree_node=False, default=False)
    """True if the stack has cross-attention."""
    edits: Edits | None = flax.struct.field(pytree_node=False, default=None)
    """Edits of the call; None without any."""
    record: dict[str, Array] | None = flax.struct.field(pytree_node=False, default=None)
    """Activations that `edit` has named in this branch, if intermediates are asked for."""

    def edit(self, name: str, x: ResultT) -> ResultT:
        """Name an activation of a branch: return it after the edits of the call, and record it as an intermediate.

        Its path is that of the branch and the name: `x = context.edit("hidden", x)` in a feed-forward network is the
        point "blocks/3/feed_forward/hidden". Call it outside of functions that JAX traces within the branch, such as
        the body of a `lax.scan`.

        Args:
          x: an array.
        """
        if self.edits is not None:
            x = self.edits.apply(name, x, self.layer)
        if self.record is not None:
            self.record[name] = cast(Array, x)
        return x

    def take(self, index: Int[Array, "*batch n"]) -> "Context":
        """Return the context with which a component is applied to some of the tokens, without a decoding state.

        Points of edits are left out; carried values stay those of all tokens.

        Args:
          index: places of the tokens in the sequence, in increasing order.
        """
        length = length_of_sequence(self.query_positions, self.key_positions)
        tokens, pairs = (functools.partial(take, index=index, length=length) for take in (take_tokens, take_pairs))
        positions = tokens(self.query_positions)
        return self.replace(
            query_positions=positions,
            key_positions=positions,
            given_positions=(positions, positions),
            mask=None if self.mask is None else Explicit(pairs(self.mask.matrix(length, length))),
            bias=None if self.bias is None else pairs(self.bias),
            valid=None if self.valid is None else tokens(self.valid),
            tokens=None if self.tokens is None else tokens(self.tokens),
            edits=None,
            record=None,
        )

    def of_source(self) -> "Context":
        """Return the context of activations of the source, which is whole in every call of a decoding."""
        return self if self.edits is None else self.replace(edits=self.edits.after(None))

    def is_edited(self, *names: str) -> bool:
        """True if the call edits one of these points, so that they must be computed."""
        return self.edits is not None and any(map(self.edits.reach, names))

    def with_key(self, key: Array | None) -> "Context":
        """Return the context of a component with this random key, which is that of the whole batch."""
        component_key = None if key is None else part_key(key, self.rows)
        return self.replace(key=component_key, batch_key=key)

    def dropout(self, rate: float | Array | None, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Return x with dropout in training; the mask of an example does not depend on the division of the batch.

        Two calls in one component give the same mask for equal shapes.

        Args:
          x: an array whose first axis is the batch.
        """
        return dropout(self.batch_key, rate, x, self.rows)

    def for_branch(self, branch: str) -> "Context":
        """Return the context of one branch: only cross-attention reads the source, and it ignores positions."""
        edits = None if self.edits is None else dataclasses.replace(self.edits, branch=branch)
        context = self.replace(edits=edits)
        if branch == "cross_attention":
            return context.replace(mask=self.source_mask, bias=None, scheme=None, scheme_weights=None, is_cross=True)
        return context.replace(source=None, source_mask=None)


def replace_weights(params: ParametersT, changes: Mapping[str, PyTree]) -> ParametersT:
    """Return the weights with the values at the paths of `Aux.weights` replaced."""
    if not changes:
        return params
    leaves = {f"{path}/{path_name(inner)}" if inner else path: leaf
              for path, tree in changes.items()
              for inner, leaf in jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(path_name(path), leaf), params)
