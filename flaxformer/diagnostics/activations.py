"""One number from each activation of a call, over what is real of it: no padding, no pair that a mask forbids."""

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.diagnostics.places import ENCODER, in_layers, stacked
from flaxformer.model.blocks import BranchActivations
from flaxformer.params import path_name
from flaxformer.tasks.base import Batch

Statistic = Callable[[Array, Bool[Array, "..."]], Array]
"""Function of an activation, and of which entries are real, that returns a number."""
STREAMS = ("update", "stream")
"""Measured of each branch: its update, after its norm and gain, and the residual stream after it. A branch also has its
`input`, `logits` and `weights`."""
PAIRS = ("logits", "weights")
"""Intermediates of a branch that compares tokens, for each head and pair of tokens."""


def rms(x: Float[Array, "..."], real: Bool[Array, "..."]) -> Float[Array, ""]:
    """Root mean square, √(mean x²), over the real entries."""
    return jnp.sqrt(mean(jnp.square(x), real))


def magnitude(x: Float[Array, "..."], real: Bool[Array, "..."]) -> Float[Array, ""]:
    """mean |x| over the real entries."""
    return mean(jnp.abs(x), real)


def mean(
    x: Float[Array, "..."], real: Bool[Array, "..."], axis: tuple[int, ...] | None = None, keepdims: bool = False
) -> Float[Array, "..."]:
    """The mean over the real entries of some axes, or of all; 0 where nothing is real."""
    total, count = (y.sum(axis, keepdims=keepdims) for y in (jnp.where(real, x, 0), real))
    return total / jnp.maximum(count, 1)


def measured(
    intermediates: Any, batch: Batch, measure: Statistic, streams: Collection[str] = STREAMS
) -> dict[str, Float[Array, "*L"]]:
    """The measure of every activation of a call, by place; [L] for one in the layers.

    The places are those of the intermediates: "embedded", "blocks/attention/update", "blocks/feed_forward/stream",
    "final" and so on; those of an encoder begin with "encoder/".

    Args:
      intermediates: of the call.
      batch: what was read; its padding is not real.
      streams: what is measured of each branch.
    """
    found: dict[str, Array] = {}
    for place, node, valid in nodes(intermediates, batch):
        of_one = functools.partial(_of_node, valid=valid, measure=measure, streams=streams)
        values = jax.vmap(of_one)(node) if in_layers(place) else of_one(node)
        found |= {place + name: value for name, value in values.items()}
    return found


def _of_node(
    node: Any, valid: Bool[Array, "*batch T"] | None, measure: Statistic, streams: Collection[str]
) -> dict[str, Array]:
    if not isinstance(node, BranchActivations):
        return {"": measure(node, real_entries(node, valid))}
    found = {}
    for name in streams:
        if name not in PAIRS:
            x = by_token(getattr(node, name), node.input.shape[:-1])
            found[f"/{name}"] = measure(x, real_entries(x, valid))
        elif name in (own := scores(node)):
            found[f"/{name}"] = measure(own[name], real_pairs(node, valid))
    return found


def of_output(output: Array, batch: Batch, measure: Statistic) -> Array:
    """The measure of what the head says where it is scored: of the logits of a language model or a classifier."""
    return measure(output, jnp.broadcast_to(batch.weights[..., None] > 0, output.shape))


def nodes(intermediates: Any, batch: Batch) -> Iterator[tuple[str, Any, Bool[Array, "*batch T"] | None]]:
    """Every activation outside of the branches and every branch: its place, itself, and which tokens are real.

    What is in the layers is stacked, if they are alike.
    """
    leaves = jax.tree_util.tree_leaves_with_path(
        stacked(intermediates), is_leaf=lambda node: isinstance(node, BranchActivations)
    )
    for path, node in leaves:
        place = path_name(path)
        yield place, node, batch.source_valid if place.startswith(ENCODER) else batch.valid


def real_entries(x: Float[Array, "*batch T D"], valid: Bool[Array, "*batch T"] | None) -> Bool[Array, "*batch T D"]:
    """Return which entries belong to real tokens."""
    return jnp.ones(x.shape, bool) if valid is None else jnp.broadcast_to(valid[..., None], x.shape)


def by_token(x: Any, tokens: tuple[int, ...]) -> Float[Array, "*batch T D"]:
    """All numbers of each token in a row: a residual rule may have several vectors per token, or several arrays."""
    rows = [leaf.reshape(*tokens, -1) for leaf in jax.tree.leaves(x)]
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows, -1)


def scores(branch: BranchActivations) -> dict[str, Float[Array, "*batch N T S"]]:
    """The logits and weights of a branch, as far as it gives them.

    Only those of pairs of tokens count: a feed-forward network may have other logits, such as a router's.
    """
    *batch, length, _ = branch.input.shape

    def is_of_pairs(x: Array | None) -> bool:
        return x is not None and x.ndim == len(batch) + 3 and [*x.shape[:-3], x.shape[-2]] == [*batch, length]

    return {name: x for name in PAIRS if is_of_pairs(x := getattr(branch, name))}


def real_pairs(branch: BranchActivations, valid: Bool[Array, "*batch T"] | None) -> Bool[Array, "*batch N T S"]:
    """Return which pairs are of a real query and a key that it may attend to."""
    shape = next(iter(scores(branch).values())).shape
    allowed = jnp.ones(shape, bool) if branch.allowed is None else jnp.broadcast_to(branch.allowed, shape)
    return allowed if valid is None else allowed & jnp.broadcast_to(valid[..., None, :, None], shape)
