"""Statistics of each activation of a forward pass over its real entries: no padding, no pairs that a mask forbids."""

import functools
from collections.abc import Callable, Collection, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from flaxformer.core.params import path_name
from flaxformer.diagnostics.places import ENCODER, is_in_every_layer, stack_layers
from flaxformer.model import Intermediates
from flaxformer.model.blocks import BranchActivations
from flaxformer.tasks.batch import Batch

Statistic = Callable[[Array, Bool[Array, "..."]], Array]
"""Function of an activation and of a mask that is True at real entries; its result is a scalar or a small vector."""
STAGES = ("update", "stream")
"""Activations that are measured per branch: its update, after norm and gain, and the residual stream after it. A branch
also has its `input`, `logits` and `weights`."""
PAIRS = ("logits", "weights")
"""Activations of a branch with one entry per head and pair of tokens."""


def rms(x: Float[Array, "..."], real: Bool[Array, "..."]) -> Float[Array, ""]:
    """Return the root mean square, √(mean x²), over the real entries."""
    return jnp.sqrt(mean(jnp.square(x), real))


def magnitude(x: Float[Array, "..."], real: Bool[Array, "..."]) -> Float[Array, ""]:
    """Return mean |x| over the real entries."""
    return mean(jnp.abs(x), real)


def mean(
    x: Float[Array, "..."], real: Bool[Array, "..."], axis: tuple[int, ...] | None = None, keepdims: bool = False
) -> Float[Array, "..."]:
    """Return the mean over the real entries along some axes, or along all; 0 where no entry is real."""
    total, count = (y.sum(axis, keepdims=keepdims) for y in (jnp.where(real, x, 0), real))
    return total / jnp.maximum(count, 1)


def measure_activations(
    intermediates: Intermediates, batch: Batch, measure: Statistic, stages: Collection[str] = STAGES
) -> dict[str, Float[Array, "*L"]]:
    """Apply a statistic to every activation of a forward pass.

    Args:
      intermediates: those of the forward pass.
      batch: its inputs; padding is not real.
      measure: the statistic.
      stages: the activations to measure in each branch.

    Returns:
      The results by place, with a leading axis L within the layers. Places are paths in the intermediates: "embedded",
      "blocks/attention/update", "blocks/feed_forward/stream", "final"; those of an encoder begin with "encoder/".
    """
    measured: dict[str, Array] = {}
    for place, node, valid in activations_and_branches(intermediates, batch):
        measure_one = functools.partial(_measure_node, valid=valid, measure=measure, stages=stages)
        values = jax.vmap(measure_one)(node) if is_in_every_layer(place) else measure_one(node)
        measured |= {place + name: value for name, value in values.items()}
    return measured


def _measure_node(
    node: Array | BranchActivations,
    valid: Bool[Array, "*batch T"] | None,
    measure: Statistic,
    stages: Collection[str],
) -> dict[str, Array]:
    """Return the results of one layer, by the end of their place: "" for an activation, "/update" in a branch."""
    if not isinstance(node, BranchActivations):
        return {"": measure(node, real_entries(node, valid))}
    measured = {}
    for name in stages:
        if name not in PAIRS:
            x = flatten_per_token(getattr(node, name), node.input.shape[:-1])
            measured[f"/{name}"] = measure(x, real_entries(x, valid))
        elif name in (scores := pair_scores(node)):
            measured[f"/{name}"] = measure(scores[name], real_pairs(node, valid))
    return measured


def measure_output(output: Array, batch: Batch, measure: Statistic) -> Array:
    """Apply a statistic to the head's output, such as logits, at the targets that have a weight in the loss."""
    return measure(output, jnp.broadcast_to(batch.weights[..., None] > 0, output.shape))


def activations_and_branches(
    intermediates: Intermediates, batch: Batch
) -> Iterator[tuple[str, Array | BranchActivations, Bool[Array, "*batch T"] | None]]:
    """Yield (place, node, valid) for every branch, and for every activation outside of the branches.

    Nodes of layers with the same structure are stacked [L, ...]; `valid` is True at real tokens, None without padding.
    """
    leaves = jax.tree_util.tree_leaves_with_path(
        stack_layers(intermediates), is_leaf=lambda node: isinstance(node, BranchActivations)
    )
    for path, node in leaves:
        place = path_name(path)
        yield place, node, batch.source_valid if place.startswith(ENCODER) else batch.valid


def real_entries(x: Float[Array, "*batch T D"], valid: Bool[Array, "*batch T"] | None) -> Bool[Array, "*batch T D"]:
    """Return a mask of the entries that belong to real tokens."""
    return jnp.ones(x.shape, bool) if valid is None else jnp.broadcast_to(valid[..., None], x.shape)


def flatten_per_token(x: PyTree, tokens: tuple[int, ...]) -> Float[Array, "*batch T D"]:
    """Return all numbers of each token as one vector: a residual stream may have several vectors or arrays per token.

    Args:
      x: arrays of which each begins with the axes `tokens`.
      tokens: the sizes (*batch, T).
    """
    flattened = [leaf.reshape(*tokens, -1) for leaf in jax.tree.leaves(x)]
    return flattened[0] if len(flattened) == 1 else jnp.concatenate(flattened, -1)


def pair_scores(branch: BranchActivations) -> dict[str, Float[Array, "*batch N T S"]]:
    """Return the logits and weights of a branch that it returns, if they are of pairs of tokens.

    A feed-forward network may have other logits, such as a router's.
    """
    *batch, length, _ = branch.input.shape

    def has_pairs(x: Array | None) -> bool:
        return x is not None and x.ndim == len(batch) + 3 and [*x.shape[:-3], x.shape[-2]] == [*batch, length]

    return {name: x for name in PAIRS if has_pairs(x := getattr(branch, name))}


def real_pairs(branch: BranchActivations, valid: Bool[Array, "*batch T"] | None) -> Bool[Array, "*batch N T S"]:
    """Return a mask of the pairs of a real query and a key that it may attend to."""
    shape = next(iter(pair_scores(branch).values())).shape
    allowed = jnp.ones(shape, bool) if branch.allowed is None else jnp.broadcast_to(branch.allowed, shape)
    return allowed if valid is None else allowed & jnp.broadcast_to(valid[..., None, :, None], shape)
