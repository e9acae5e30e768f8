"""Search for the first activation or gradient of a training step that is not finite."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flaxformer.diagnostics.activations import measure_activations, measure_output
from flaxformer.diagnostics.places import ENCODER, is_in_every_layer, layer_index, place_in_layer, split_layers
from flaxformer.diagnostics.weights import sum_by_place
from flaxformer.tasks.batch import AnyBatch, concat_parts
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, backward

BRANCHES = ("attention", "cross_attention", "feed_forward")
STAGES = ("input", "logits", "weights", "update", "stream")
"""Activations of a branch, in the order of computation."""
AFTER = ("_connection/post_residual", "_connection/residual", "_connection/post_branch")
"""Groups of weights that are applied to a branch's output, the last one first."""
STACK_FORWARD = (
    "embedded",
    "layers",
    *(f"blocks/{branch}/{stage}" for branch in BRANCHES for stage in STAGES),
    "final",
)
"""Activations of one stack, in the order of computation."""
STACK_BACKWARD = (
    *("head", "final_norm", "layers"),
    *(f"blocks/{branch}{part}" for branch in BRANCHES[::-1] for part in (*AFTER, "", "_connection/pre")),
    *("embedding_norm", "positions"),
)
"""Groups of weights of one stack except its embedding, in the order in which their gradients are computed."""
FORWARD = (*(f"{ENCODER}/{place}" for place in STACK_FORWARD), *STACK_FORWARD, "output", "loss")
# The decoder's embedding comes last: an encoder may share its table.
BACKWARD = (*STACK_BACKWARD, *(f"{ENCODER}/{place}" for place in (*STACK_BACKWARD, "embedding")), "embedding")


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A place with numbers that are not finite.

    Args:
      direction: "forward" for an activation or the loss, "backward" for the gradient of weights.
      place: such as "blocks/3/attention/logits" forward, and "blocks/3/attention" backward.
      bad: number of entries that are NaN or infinite.
      of: number of all entries, without padding and without pairs that a mask forbids.
    """

    direction: str
    place: str
    bad: int
    of: int

    def __str__(self) -> str:
        what = self.place if self.direction == "forward" else f"gradient of {self.place}"
        return f"first non-finite in the {self.direction} pass: {what}, {self.bad:,} of {self.of:,} numbers"


def first_nonfinite(state: TrainState, run: Run, batch: AnyBatch) -> NonFinite | None:
    """Return the first place of the next training step that is not finite; None if all are.

    Places of the forward pass come first, an encoder before its decoder: the embeddings; in each block, per branch, the
    normalised input, the logits and weights of an attention, the update and the residual stream; the head's input and
    output; the loss. Then the gradients from the head through the blocks, last to first, to the embedding.

    For a run that diverged, pass `state.replace(step=state.diverged_at)` and the batch of that step.
    """
    forward, gradient = jax.device_get(_count_entries(state, run, batch))
    places = [("forward", *counted_place) for counted_place in in_computation_order(forward, FORWARD, 1)]
    places += [("backward", *counted_place) for counted_place in in_computation_order(gradient, BACKWARD, -1)]
    broken = (NonFinite(direction, place, int(bad), int(of)) for direction, place, (bad, of) in places if bad)
    return next(broken, None)


@jax.jit
def _count_entries(state: TrainState, run: Run, batch: AnyBatch) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the counts [bad, of] of every activation, and of every gradient, by place."""
    batch = concat_parts(batch)
    loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
    assert outcome.intermediates is not None
    forward = measure_activations(outcome.intermediates, batch, _count, STAGES)
    forward |= {"output": measure_output(outcome.output, batch, _count), "loss": _count(loss)}
    return forward, sum_by_place(gradient, _count)


def _count(x: Array, real: Bool[Array, "..."] | bool = True) -> Int[Array, "2"]:
    """Return the number of real entries that are not finite, and of all real entries."""
    return jnp.stack([(~jnp.isfinite(x) & real).sum(), jnp.broadcast_to(real, x.shape).sum()])


def in_computation_order(
    counts: dict[str, np.ndarray], order: Sequence[str], direction: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the places with their counts in the order of computation, those of a stack layer by layer.

    Args:
      counts: counts by place; within the layers with a leading axis L.
      order: `FORWARD` or `BACKWARD`.
      direction: 1 for the first layer first, −1 for the last.
    """
    single = split_layers(counts)
    depth = 1 + max((layer for place in single if (layer := layer_index(place)) is not None), default=-1)
    for is_layered, group in itertools.groupby(order, is_in_every_layer):
        places = list(group)
        if is_layered:
            places = [place_in_layer(place, layer) for layer in range(depth)[::direction] for place in places]
        yield from ((place, single[place]) for place in places if place in single)
