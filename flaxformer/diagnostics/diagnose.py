"""Diagnostics of a training step, from one forward and one backward pass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.core.pytree import Node
from flaxformer.diagnostics.activations import measure_activations, measure_output, rms
from flaxformer.diagnostics.attention import AttentionStatistics, attention_statistics
from flaxformer.diagnostics.weights import norms_by_place
from flaxformer.tasks.batch import AnyBatch, concat_parts
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, apply_gradients, backward


class Diagnostics(Node):
    """Diagnostics of the next training step, by place; within the layers, arrays have a leading axis L.

    >>> diagnostics = diagnose(start(run), run, batch)
    >>> diagnostics.gradient_norm["blocks/feed_forward/down"][-1]    # of the last block's second matrix
    """

    loss: Float[Array, ""]
    gradient_norm: dict[str, Float[Array, "*L"]]
    """|∂loss/∂w| (L2, before clipping) of every weight, such as "blocks/attention/query", and of every group of weights
    with a common path: "embedding", "blocks/attention", "blocks", "head", "encoder/blocks"; 0 if not trained."""
    parameter_norm: dict[str, Float[Array, "*L"]]
    """|w| (L2) before the step."""
    update_norm: dict[str, Float[Array, "*L"]]
    """|w after the step − w before it| (L2), also of running statistics; 0 if the run has diverged."""
    rms: dict[str, Float[Array, "*L"]]
    """Root mean square over real tokens of "embedded", "blocks/attention/update" (the branch's output),
    "blocks/attention/stream" (the residual stream after it), "final" (the head's input) and "output"."""
    attention: dict[str, AttentionStatistics]
    """By attention: "blocks/attention", "blocks/cross_attention", "encoder/blocks/attention". Mixers without logits,
    such as recurrent cells, have no entry."""
    losses: dict[str, Float[Array, ""]]
    """`Aux.losses` of the components, which are part of `loss`: "blocks/feed_forward/balance", summed over layers."""
    statistics: dict[str, Array]
    """`Aux.statistics` of the components: "blocks/feed_forward/load", with an axis over the layers that have them."""


@jax.jit
def diagnose(state: TrainState, run: Run, batch: AnyBatch) -> Diagnostics:
    """Return the diagnostics of the next training step, with the same batch, dropout and optimizer.

    A batch in buckets is concatenated, so that its dropout differs from that of the step. The function is pure and
    jitted. For a deep model, a state with scanned layers compiles fastest.
    """
    batch = concat_parts(batch)
    loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
    after, _ = apply_gradients(state, run, loss, gradient, outcome.aux)
    intermediates = outcome.intermediates
    assert intermediates is not None
    return Diagnostics(
        loss=loss,
        gradient_norm=norms_by_place(gradient),
        parameter_norm=norms_by_place(state.params),
        update_norm=norms_by_place(jax.tree.map(jnp.subtract, after.params, state.params)),
        rms=measure_activations(intermediates, batch, rms) | {"output": measure_output(outcome.output, batch, rms)},
        attention=attention_statistics(intermediates, batch),
        losses=outcome.aux.losses,
        statistics=outcome.aux.statistics,
    )
