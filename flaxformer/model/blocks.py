"""A block: residual branches, each with norms around it and a rule by which its update joins the stream."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.component import Aux, Context, with_aux
from flaxformer.config import ModelConfig
from flaxformer.model.cache import BlockState
from flaxformer.model.norm import normalise
from flaxformer.nn.dropout import dropout
from flaxformer.params import Parameters, fold_in_name, subtree
from flaxformer.parts.cache import InputHistory, Memory, write
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.residuals import Residual
from flaxformer.pytree import Node


class ResidualParams(Parameters):
    """The weights around one branch: its norms, None where a place is empty, and those of the residual rule."""

    pre: Any = subtree(component="pre_norm")
    post_branch: Any = subtree(component="post_branch_norm")
    post_residual: Any = subtree(component="post_residual_norm")
    residual: Any = subtree(component="residual")


class BlockParams(Parameters):
    """Self-attention, attention to a memory, feed-forward: each with its connection to the residual stream."""

    attention_connection: ResidualParams = subtree()
    attention: Any = subtree(component="attention")
    cross_attention_connection: ResidualParams | None = subtree(when="reads_memory")
    cross_attention: Any = subtree(component="cross", sizes={"d_source": "d_memory"})
    feed_forward_connection: ResidualParams | None = subtree(when="feed_forward")
    feed_forward: Any = subtree(component="feed_forward")


class BranchActivations(Node):
    """Intermediates of one residual branch: its input, its update, the stream after it, and those of its `Aux`.

    Those of a norm begin with its place: "pre/…", "post_branch/…", "post_residual/…".
    """

    input: Float[Array, "*batch T D"]
    update: Float[Array, "*batch T D"]
    stream: Float[Array, "*batch T D"]
    intermediates: dict[str, Any] = flax.struct.field(default_factory=dict)

    @property
    def logits(self) -> Float[Array, "*batch N T S"] | None:
        """Logits of an attention, scaled, capped and biased; None of a branch that gives none."""
        return self.intermediates.get("logits")

    @property
    def allowed(self) -> Bool[Array, "*#batch #N T S"] | None:
        """True where a query may attend to a key; None without a mask."""
        return self.intermediates.get("allowed")

    @property
    def weights(self) -> Float[Array, "*batch N T S"] | None:
        """Weights of an attention; None of a branch that gives none."""
        return self.intermediates.get("weights")


class BlockIntermediates(Node):
    """The branches of one block; None for those that it does not have."""

    attention: BranchActivations
    cross_attention: BranchActivations | None = None
    feed_forward: BranchActivations | None = None


def block(
    params: BlockParams,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    context: Context,
    key: Array | None = None,
    state: BlockState | None = None,
    whole: Context | None = None,
) -> tuple[Float[Array, "*batch T D"], BlockIntermediates, Aux, BlockState | None]:
    """For each branch: x ← post_residual(join(x, post_branch(branch(pre(x))))). Parallel branches read the same x.

    What a component gives is brought to the dtype of what it read, so that the stream keeps its own.

    Args:
      key: for dropout and the branches' own draws; None evaluates.
      state: the decoding state; the tokens follow those that it has.
      whole: the context of all its tokens, for a mixer that reads them again.

    Returns:
      The stream, what the branches did, their `Aux`, and the state with the tokens.
    """
    entered, aux, done, rule = x, Aux(), {}, config.residual
    for name, branch in config.branches():
        weights, around = getattr(params, name), getattr(params, f"{name}_connection")
        own_key = None if key is None else fold_in_name(key, name)
        # A stream of its own: with the key of the dropout below, draws of the same shape would be the same.
        own = context.of(name).replace(key=None if own_key is None else fold_in_name(own_key, "component"))
        with jax.named_scope(name):
            seen = rule.read(around.residual, entered if config.parallel else x, own)
            read, before = normalise(around.pre, config.pre_norm, seen, own)
            update, found, state = call(name, branch, weights, read, own, state, whole)
            _check_result(f"{name} {type(branch).__name__}", update, found, read)
            update = update.astype(read.dtype)
            update, after = normalise(around.post_branch, config.post_branch_norm, update, own)
            update = dropout(own_key, config.dropout, update)
            skipped = x if getattr(config, f"{name}_residual") else jax.tree.map(jnp.zeros_like, x)
            joined = rule.join(around.residual, skipped, update, own)
            joined = jax.tree.map(lambda new, old: new.astype(old.dtype), joined, x)
            added = _added(rule, around.residual, x, update, own) if own.return_intermediates else update
            x, last = normalise(around.post_residual, config.post_residual_norm, joined, own)
        norms = before.within("pre").merge(after.within("post_branch")).merge(last.within("post_residual"))
        done[name] = BranchActivations(read, added, x, found.merge(norms).intermediates)
        aux = aux.merge(found.within(name)).merge(norms.within(f"{name}_connection"))
        context = context.replace(carried=context.carried | found.carried)
    return x, BlockIntermediates(**done), aux, state


def _check_result(where: str, update: Any, aux: Aux, x: Array) -> None:
    """Refuse what a branch may not give: no array of the shape that it read, or a loss that is no number.

    Raises:
      ValueError: with the branch, what it gives, and what is expected.
    """
    if not hasattr(update, "shape"):
        kinds = [type(item).__name__ for item in (update if isinstance(update, tuple) else (update,))]
        raise ValueError(f"{where} gives {' and '.join(kinds)}; expected an array, or a pair of an array and an Aux")
    if update.shape != x.shape:
        raise ValueError(f"{where} gives an update of shape {list(update.shape)}; expected {list(x.shape)}")
    for name, loss in aux.losses.items():
        if jnp.ndim(loss):
            raise ValueError(f"{where} gives the loss '{name}' of shape {list(jnp.shape(loss))}; expected a scalar")


def _added(rule: Residual, weights: Any, stream: Any, update: Array, context: Context) -> Float[Array, "*batch T D"]:
    """Return what an update adds to the residual stream: the update with the gain of the residual rule."""
    return rule.end(rule.join(weights, jax.tree.map(jnp.zeros_like, stream), update, context))


def call(
    name: str,
    branch: Any,
    weights: Any,
    x: Float[Array, "*batch T D"],
    context: Context,
    state: BlockState | None,
    whole: Context | None,
) -> tuple[Float[Array, "*batch T D"], Aux, BlockState | None]:
    """One branch: of whole sequences, or of tokens that follow those of a decoding state."""
    if state is None or name == "feed_forward":
        return *with_aux(branch.apply(weights, x, context)), state
    if name == "cross_attention":
        memory = state.cross_attention
        if isinstance(memory, Memory):
            return *with_aux(branch.apply(weights, x, context.replace(source=memory.source))), state
        return *with_aux(branch.read(weights, x, memory, context)), state
    if isinstance(state.attention, InputHistory):
        result, own = read_again(branch, weights, x, state.attention, context, whole)  # type: ignore[arg-type]
    else:
        result, own = branch.step(weights, x, state.attention, context)
    return *with_aux(result), state.replace(attention=own)


def read_again(
    mixer: TokenMixer,
    weights: Any,
    x: Float[Array, "*batch T D"],
    prefix: InputHistory,
    context: Context,
    whole: Context,
) -> tuple[Any, InputHistory]:
    """The update of new tokens by a mixer without a decoding state: it reads all tokens so far from the start."""
    offset: Any = context.offset
    inputs = write(prefix.inputs, x, offset, axis=-2)
    y, _ = with_aux(mixer.apply(weights, inputs, whole))
    return jax.lax.dynamic_slice_in_dim(y, offset, x.shape[-2], y.ndim - 2), InputHistory(inputs)
