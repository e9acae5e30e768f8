"""Statistics of the heads of an attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.diagnostics.activations import PAIRS, mean, nodes, real_pairs, scores
from flaxformer.diagnostics.places import in_layers
from flaxformer.model.blocks import BranchActivations
from flaxformer.pytree import Node
from flaxformer.tasks.base import Batch


class AttentionStatistics(Node):
    """Statistics over the pairs of a real query and a key that it may attend to in a batch; the axes: layer, head.

    A query counts if it is real and may attend to something.
    """

    entropy: Float[Array, "L N"]
    """mean over queries of −Σ_s A[t, s] ln A[t, s], nats: 0 at one key, ln S at S keys alike (Zhai et al. 2023)."""
    largest_logit: Float[Array, "L N"]
    """max |z| over pairs; z is scaled, capped and biased. It grows before a run diverges (Dehghani et al. 2023)."""
    logit_variance: Float[Array, "L N"]
    """mean over pairs of (z − mean z)²."""
    head_diversity: Float[Array, " L"]
    """1 − the mean, over queries and pairs of heads, of the cosine of the angle between their rows of weights A[t].

    0 where all heads look alike, or where there is one; 1 where no two look at a common key. The measure is our own: a
    normalised form of the disagreement of attended positions of Li et al. 2018.
    """


def attention_statistics(intermediates: Any, batch: Batch) -> dict[str, AttentionStatistics]:
    """The statistics of every attention of a call, by place: "blocks/attention", "blocks/cross_attention", "encoder/…".

    A branch has them if it gives logits and weights of pairs of tokens.
    """
    return {
        place: jax.vmap(of_one)(node) if in_layers(place) else of_one(node)
        for place, node, valid in nodes(intermediates, batch)
        if isinstance(node, BranchActivations) and scores(node).keys() == set(PAIRS)
        for of_one in [functools.partial(_of_layer, valid=valid)]
    }


def _of_layer(branch: BranchActivations, valid: Bool[Array, "*batch T"] | None) -> AttentionStatistics:
    logits: Any = branch.logits
    weights: Any = branch.weights
    pairs = real_pairs(branch, valid)
    queries = pairs.any(-1)
    # Weights may be of other heads than the logits, as where a head combines two maps.
    same = weights.shape[-3] == queries.shape[-2]
    rows = queries if same else jnp.broadcast_to(queries.any(-2, keepdims=True), weights.shape[:-1])
    batch = range(pairs.ndim - 3)
    average = mean(logits, pairs, (*batch, -2, -1), keepdims=True)
    return AttentionStatistics(
        entropy=mean(jax.scipy.special.entr(weights).sum(-1), rows, (*batch, -1)),
        largest_logit=jnp.where(pairs, jnp.abs(logits), 0).max((*batch, -2, -1), initial=0),
        logit_variance=mean(jnp.square(logits - average), pairs, (*batch, -2, -1)),
        head_diversity=_diversity(weights, queries.all(-2)),
    )


def _diversity(weights: Float[Array, "*batch N T S"], queries: Bool[Array, "*batch T"]) -> Float[Array, ""]:
    heads = weights.shape[-3]
    if heads == 1:
        return jnp.zeros(())
    length = jnp.linalg.norm(weights, axis=-1, keepdims=True)
    rows = weights / jnp.where(length > 0, length, 1)
    # Σ over pairs of heads of cos = (|Σ_n row_n|² − N) / 2, for rows of length 1.
    similarity = (jnp.square(rows.sum(-3)).sum(-1) - heads) / (heads * (heads - 1))
    return mean(1 - similarity, queries)
