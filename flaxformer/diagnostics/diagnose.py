"""Diagnostics of a training step, from one forward and one backward pass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.diagnostics.activations import measured, of_output, rms
from flaxformer.diagnostics.attention import AttentionStatistics, attention_statistics
from flaxformer.diagnostics.weights import norms
from flaxformer.pytree import Node
from flaxformer.tasks.base import AnyBatch, concat_parts
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, apply_gradients, backward


class Diagnostics(Node):
    """Diagnostics of the next training step. Places are paths; in the layers, arrays have a leading axis L.

    >>> found = diagnose(start(run), run, batch)
    >>> found.gradient_norm["blocks/feed_forward/down"][-1]    # of the last block's second matrix
    """

    loss: Float[Array, ""]
    gradient_norm: dict[str, Float[Array, "*L"]]
    """|∂loss/∂w| (L2, before clipping) of every weight, "blocks/attention/query", and of all that a path leads to:
    "embedding", "blocks/attention", "blocks", "head", "encoder/blocks" …; 0 at what no gradient trains."""
    parameter_norm: dict[str, Float[Array, "*L"]]
    """|w|, before the step."""
    update_norm: dict[str, Float[Array, "*L"]]
    """|w after the step − w before it|, of running statistics too; 0 of a run that diverged."""
    rms: dict[str, Float[Array, "*L"]]
    """Root mean square over real tokens: "embedded", "blocks/attention/update" (what the branch says),
    "blocks/attention/stream" (the stream after it), "final" (what the head reads), "output" (what it says)."""
    attention: dict[str, AttentionStatistics]
    """By attention: "blocks/attention", "blocks/cross_attention", "encoder/blocks/attention"; none of a mixer
    that gives no logits, such as a recurrent cell."""
    losses: dict[str, Float[Array, ""]]
    """`Aux.losses` of the components, which are part of `loss`: "blocks/feed_forward/balance", summed over layers."""
    statistics: dict[str, Array]
    """`Aux.statistics` of the components: "blocks/feed_forward/load", with an axis of the layers that give them."""


@jax.jit
def diagnose(state: TrainState, run: Run, batch: AnyBatch) -> Diagnostics:
    """The diagnostics of the training step that would come next: same batch, same dropout, same optimizer.

    A batch in buckets is concatenated, with other draws of dropout.
    Pure, and compiled when it is called. For a deep model, a state with scanned layers compiles fastest.
    """
    batch = concat_parts(batch)
    loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
    after, _ = apply_gradients(state, run, loss, gradient, outcome.aux)
    kept = outcome.intermediates
    return Diagnostics(
        loss=loss,
        gradient_norm=norms(gradient),
        parameter_norm=norms(state.params),
        update_norm=norms(jax.tree.map(jnp.subtract, after.params, state.params)),
        rms=measured(kept, batch, rms) | {"output": of_output(outcome.output, batch, rms)},
        attention=attention_statistics(kept, batch),
        losses=outcome.aux.losses,
        statistics=outcome.aux.statistics,
    )
