"""A block of a Transformer: its residual branches, with their norms and residual rule."""

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from flaxformer.components.attention import Attention
from flaxformer.components.branch import Branch
from flaxformer.components.cache import InputHistory, Memory, write
from flaxformer.components.component import Aux, ComponentResult, Context, with_aux
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, fold_in_name, subtree
from flaxformer.core.pytree import Node
from flaxformer.model.cache import BlockState
from flaxformer.model.context import with_attention_positions
from flaxformer.model.norm import normalise
from flaxformer.nn.dropout import dropout, part_key

BranchResult = tuple[Float[Array, "*batch T D"], dict[str, Array], Aux, BlockState | None]
"""Update of a branch, the activations that it names, its `Aux`, and the decoding state."""


class ResidualParams(Parameters):
    """Weights around a branch: its norms, None at places without one, and the residual rule."""

    pre: Parameters | None = subtree(component="pre_norm")
    post_branch: Parameters | None = subtree(component="post_branch_norm")
    post_residual: Parameters | None = subtree(component="post_residual_norm")
    residual: Parameters = subtree(component="residual")


class BlockParams(Parameters):
    """Weights of a block: each branch, and its connection to the residual stream."""

    attention_connection: ResidualParams = subtree(config="attention_side")
    attention: Parameters = subtree(component="attention")
    positions: Parameters | None = subtree(component="attention_positions")
    cross_attention_connection: ResidualParams | None = subtree(when="reads_memory")
    cross_attention: Attention.Weights | None = subtree(component="cross", sizes={"d_source": "d_memory"})
    feed_forward_connection: ResidualParams | None = subtree(when="feed_forward")
    feed_forward: Parameters | None = subtree(component="feed_forward")


class BranchActivations(Node):
    """Intermediates of a residual branch.

    input: what the branch reads, after the norm before it.
    update: change of the residual stream: `output` with the gain of the residual rule.
    stream: the residual stream after the branch.
    intermediates: those that the branch names with `Context.edit`, and those of its `Aux`. Names from a norm begin with
        its place: "pre/…", "post_branch/…", "post_residual/…".
    output: result of the branch, after the norm behind it and dropout.
    points: the intermediates that a call can edit, in the order of computation.
    """

    input: Float[Array, "*batch T D"]
    update: Float[Array, "*batch T D"]
    stream: Float[Array, "*batch T D"]
    intermediates: dict[str, PyTree] = flax.struct.field(default_factory=dict)
    output: Float[Array, "*batch T D"] | None = None
    points: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    def at_points(self) -> dict[str, PyTree]:
        """Return the activation at each point of the branch, by its name."""
        intermediates = {name: self.intermediates[name] for name in self.points}
        return {"input": self.input} | intermediates | {"output": self.output, "stream": self.stream}

    @property
    def logits(self) -> Float[Array, "*batch N T S"] | None:
        """Logits of an attention, after scale, cap and bias; None for another branch."""
        return self.intermediates.get("logits")

    @property
    def allowed(self) -> Bool[Array, "*#batch #N T S"] | None:
        """True where a query may attend to a key; None without a mask."""
        return self.intermediates.get("allowed")

    @property
    def weights(self) -> Float[Array, "*batch N T S"] | None:
        """Weights of an attention; None for another branch."""
        return self.intermediates.get("weights")


class BlockIntermediates(Node):
    """Intermediates of the branches of a block; None for a branch that it does not have."""

    attention: BranchActivations
    cross_attention: BranchActivations | None = None
    feed_forward: BranchActivations | None = None


class BlockCall(NamedTuple):
    """Decoding state and rematerialisation of the branches of a block.

    Args:
      state: decoding state; the tokens follow those in it.
      prefix_context: context of all tokens so far, for a mixer without a decoding state.
      wrap: function of a branch's function and its name, such as `model.remat.rematerialise_branch`.
    """

    state: BlockState | None = None
    prefix_context: Context | None = None
    wrap: Callable[..., Callable[..., BranchResult]] = lambda function, name: function

    def with_positions(self, params: BlockParams, config: ModelConfig) -> "BlockCall":
        """Return the call with the position scheme of the block's attention in the context of all tokens."""
        if self.prefix_context is None:
            return self
        return self._replace(prefix_context=with_attention_positions(self.prefix_context, config, params.positions))


def block(
    params: BlockParams,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    context: Context,
    call: BlockCall = BlockCall(),  # noqa: B008 (immutable)
) -> tuple[Float[Array, "*batch T D"], BlockIntermediates, Aux, BlockState | None]:
    """Compute x ← post_residual(join(x, post_branch(branch(pre(x))))) for each branch; parallel ones read the same x.

    The result of a component is converted to the dtype of its input, so that the stream keeps its dtype.

    Args:
      x: the residual stream; an array, or the pytree of the residual rule.
      context: with the layer's random key of dropout and of the components as `batch_key`; None evaluates.

    Returns:
      The stream, the intermediates, the `Aux` of the components, and the state with the tokens added.

    Raises:
      ValueError: a component returns no array, an array of another shape, or a loss that is not a scalar.
    """
    block_input, aux, intermediates = x, Aux(), {}
    context, call = with_attention_positions(context, config, params.positions), call.with_positions(params, config)
    for place, (name, component) in enumerate(config.branches()):
        branch = _ResidualBranch(name, component, params, config, context.replace(branch=place))
        with jax.named_scope(name):
            branch_input = branch.edit("input", branch.norm("pre", branch.read(block_input if config.parallel else x)))
            update, recorded, branch_aux, state = branch.compute(branch_input, call)
            output = branch.edit("output", branch.dropout(branch.norm("post_branch", update)))
            joined, change = branch.join(x, output), branch.change(x, output)
            x = branch.edit("stream", branch.norm("post_residual", joined))
        values = branch_aux.merge(branch.aux).intermediates | recorded
        intermediates[name] = BranchActivations(branch_input, change, x, values, output, tuple(recorded))
        aux = aux.merge(branch_aux.within(name)).merge(branch.aux.within(f"{name}_connection"))
        call, context = call._replace(state=state), context.replace(carried=context.carried | branch_aux.carried)
    return x, BlockIntermediates(**intermediates), aux, call.state


class _ResidualBranch:
    """A branch with its weights, norms, residual rule, random keys and edits; `aux` has the outputs of its norms."""

    def __init__(
        self, name: str, component: Branch, params: BlockParams, config: ModelConfig, context: Context
    ) -> None:
        self.name, self.component, self.config, self.aux = name, component, config.branch_config(name), Aux()
        self.weights, self.around = getattr(params, name), getattr(params, f"{name}_connection")
        self.key = None if context.batch_key is None else fold_in_name(context.batch_key, name)
        # Another key than that of the dropout, which would give equal numbers for equal shapes.
        component_key = None if self.key is None else fold_in_name(self.key, "component")
        shared_key = None if context.batch_key is None else fold_in_name(context.batch_key, "shared")
        layer_key = None if shared_key is None else part_key(shared_key, context.rows)
        self.edited = context.for_branch(name).with_key(component_key).replace(layer_key=layer_key)
        self.edit = self.edited.edit
        self.context = self.edited.replace(edits=None)  # the points of a branch are those of its component

    def norm(self, place: str, x: Array) -> Array:
        """Return the norm of x at this place, if there is one."""
        y, aux = normalise(getattr(self.around, place), getattr(self.config, f"{place}_norm"), x, self.context)
        self.aux = self.aux.merge(aux.within(place))
        return y

    def read(self, x: PyTree) -> Array:
        """Return what the branch reads of the residual stream."""
        return self.config.residual.read(self.around.residual, x, self.context)

    def compute(self, x: Array, call: BlockCall) -> BranchResult:
        """Return the result of the branch, with the update in the dtype of x."""
        # The context is not an argument: numbers of a mask that kernels read would become traced ones.
        function = functools.partial(apply_branch, self.name, self.component, context=self.edited, call=call)
        update, recorded, aux, state = call.wrap(function, self.name)(self.weights, x)
        _check_result(f"{self.name} {type(self.component).__name__}", update, aux, x)
        return update.astype(x.dtype), recorded, aux, state

    def dropout(self, x: Array) -> Array:
        """Return x with the dropout of the model."""
        return dropout(self.key, self.config.dropout, x, self.context.rows)

    def join(self, x: PyTree, update: Array) -> PyTree:
        """Return the residual stream with the update."""
        skipped = x if getattr(self.config, f"{self.name}_residual") else jax.tree.map(jnp.zeros_like, x)
        joined = self.config.residual.join(self.around.residual, skipped, update, self.context)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), joined, x)

    def change(self, x: PyTree, update: Array) -> Array:
        """Return the update with the gain of the residual rule, if intermediates are asked for."""
        if not self.context.return_intermediates:
            return update
        rule, zeros = self.config.residual, jax.tree.map(jnp.zeros_like, x)
        return rule.end(rule.join(self.around.residual, zeros, update, self.context))


def _check_result(where: str, update: object, aux: Aux, x: Array) -> None:
    """Check that a branch returns an array of the shape of its input, and scalar losses.

    Raises:
      ValueError: it does not.
    """
    shape = getattr(update, "shape", None)
    if shape is None:
        kinds = [type(item).__name__ for item in (update if isinstance(update, tuple) else (update,))]
        raise ValueError(f"{where} gives {' and '.join(kinds)}; expected an array, or a pair of an array and an Aux")
    if shape != x.shape:
        raise ValueError(f"{where} gives an update of shape {list(shape)}; expected {list(x.shape)}")
    for name, loss in aux.losses.items():
        if jnp.ndim(loss):
            raise ValueError(f"{where} gives the loss '{name}' of shape {list(jnp.shape(loss))}; expected a scalar")


def apply_branch(
    name: str,
    branch: Branch,
    weights: Parameters,
    x: Float[Array, "*batch T D"],
    context: Context,
    call: BlockCall,
) -> BranchResult:
    """Return the update of a branch, for whole sequences or for tokens that follow those of a decoding state."""
    activations: dict[str, Array] = {}
    state, prefix_context = call.state, call.prefix_context
    context = context.replace(record=activations if context.return_intermediates else None)
    result: ComponentResult
    branch_state = None if state is None else getattr(state, name)
    if state is None or not branch.reads_others:
        result = branch.apply(weights, x, context)
    elif name == "cross_attention":
        if isinstance(branch_state, Memory):
            result = branch.apply(weights, x, context.replace(source=branch_state.source))
        else:
            assert isinstance(branch, Attention), "cross-attention is an Attention"
            assert branch_state is not None, "a model with cross-attention has its keys and values in the state"
            result = branch.read(cast(Attention.Weights, weights), x, branch_state, context)
    elif isinstance(branch_state, InputHistory):
        assert prefix_context is not None, "a branch without a decoding state needs a cache with a capacity"
        result, history = recompute_prefix(branch, weights, x, branch_state, context, prefix_context)
        state = state.replace(**{name: history})
    else:
        result, branch_state = branch.step(weights, x, branch_state, context)
        state = state.replace(**{name: branch_state})
    update, aux = with_aux(result)
    return update, activations, aux, state


def recompute_prefix(
    mixer: Branch,
    weights: Parameters,
    x: Float[Array, "*batch T D"],
    prefix: InputHistory,
    context: Context,
    prefix_context: Context,
) -> tuple[Float[Array, "*batch T D"], InputHistory]:
    """Return the update of new tokens by a branch without a decoding state, which reads all tokens so far again."""
    assert context.offset is not None, "a decoding state has an offset"
    inputs = write(prefix.inputs, x, context.offset, axis=-2)
    edits = context.edits  # the points of the mixer are of all tokens
    prefix_edits = edits.after(0) if edits is not None and edits.edits_prefix else None
    y, _ = with_aux(mixer.apply(weights, inputs, prefix_context.replace(edits=prefix_edits, layer=context.layer)))
    return jax.lax.dynamic_slice_in_dim(y, context.offset, x.shape[-2], y.ndim - 2), InputHistory(inputs)
