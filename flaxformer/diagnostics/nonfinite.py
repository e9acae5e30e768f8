"""Search for the first place whose numbers are not finite."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flaxformer.diagnostics.activations import measured, of_output
from flaxformer.diagnostics.places import ENCODER, in_layer, in_layers, layer_of, one_by_one
from flaxformer.diagnostics.weights import sums
from flaxformer.tasks.base import AnyBatch, concat_parts
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, backward

BRANCHES = ("attention", "cross_attention", "feed_forward")
STAGES = ("input", "logits", "weights", "update", "stream")
"""Values that a branch computes, in order."""
AFTER = ("_connection/post_residual", "_connection/residual", "_connection/post_branch")
"""The weights that act on what a branch says, the last one first."""
UPWARD = ("embedded", "layers", *(f"blocks/{branch}/{stage}" for branch in BRANCHES for stage in STAGES), "final")
"""The activations of one stack, in the order in which they are computed."""
DOWNWARD = (
    *("head", "final_norm", "layers"),
    *(f"blocks/{branch}{part}" for branch in BRANCHES[::-1] for part in (*AFTER, "", "_connection/pre")),
    *("embedding_norm", "positions"),
)
"""The modules of one stack but its embedding, in the order in which their gradients are computed."""
FORWARD = (*(f"{ENCODER}/{place}" for place in UPWARD), *UPWARD, "output", "loss")
# An encoder may read the decoder's table, whose gradient is therefore the last one.
BACKWARD = (*DOWNWARD, *(f"{ENCODER}/{place}" for place in (*DOWNWARD, "embedding")), "embedding")


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A place whose numbers are not all finite.

    Args:
      direction: "forward" where it is an activation or the loss, "backward" where it is the gradient of weights.
      place: such as "blocks/3/attention/logits" forward, and "blocks/3/attention" backward.
      bad: how many entries are NaN or infinite.
      of: how many entries there are; padding, and pairs that a mask forbids, are none.
    """

    direction: str
    place: str
    bad: int
    of: int

    def __str__(self) -> str:
        what = "" if self.direction == "forward" else "the gradient of "
        return f"{self.direction}, {what}{self.place} breaks first: {self.bad:,} of {self.of:,} numbers are not finite"


def first_nonfinite(state: TrainState, run: Run, batch: AnyBatch) -> NonFinite | None:
    """The first place of the next training step that is not finite; None where all are.

    Forward in order: the embeddings; of each block's branches the normalised input, logits and weights of an attention,
    the update and the stream; what the head reads and says; the loss; all of an encoder before its decoder. Then the
    gradient, from the head through the blocks, last to first, to the embedding.

    For a run that diverged, give `state.replace(step=state.diverged_at)` and the batch of that step.
    """
    forward, gradient = jax.device_get(_counts(state, run, batch))
    places = [("forward", *found) for found in _in_order(forward, FORWARD, 1)]
    places += [("backward", *found) for found in _in_order(gradient, BACKWARD, -1)]
    broken = (NonFinite(direction, place, int(bad), int(of)) for direction, place, (bad, of) in places if bad)
    return next(broken, None)


@jax.jit
def _counts(state: TrainState, run: Run, batch: AnyBatch) -> tuple[dict[str, Array], dict[str, Array]]:
    """[bad, of] of every activation and of every gradient, by place."""
    batch = concat_parts(batch)
    loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
    forward = measured(outcome.intermediates, batch, _bad, STAGES)
    forward |= {"output": of_output(outcome.output, batch, _bad), "loss": _bad(loss)}
    return forward, sums(gradient, _bad)


def _bad(x: Array, real: Bool[Array, "..."] | bool = True) -> Int[Array, "2"]:
    return jnp.stack([(~jnp.isfinite(x) & real).sum(), jnp.broadcast_to(real, x.shape).sum()])


def _in_order(counts: dict[str, np.ndarray], order: Sequence[str], direction: int) -> Iterator[tuple[str, Any]]:
    """The counts in order, those of a stack layer by layer: the first layer first, or (−1) the last."""
    single = one_by_one(counts)
    depth = 1 + max((layer for place in single if (layer := layer_of(place)) is not None), default=-1)
    for layered, group in itertools.groupby(order, in_layers):
        places = list(group)
        if layered:
            places = [in_layer(place, layer) for layer in range(depth)[::direction] for place in places]
        yield from ((place, single[place]) for place in places if place in single)
