"""Statistics of attention heads: entropy, logits and diversity."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.core.pytree import Node
from flaxformer.diagnostics.activations import PAIRS, activations_and_branches, mean, pair_scores, real_pairs
from flaxformer.diagnostics.places import is_in_every_layer
from flaxformer.model import Intermediates
from flaxformer.model.blocks import BranchActivations
from flaxformer.tasks.batch import Batch


class AttentionStatistics(Node):
    """Statistics per layer and head over the pairs, in a batch, of a real query and a key that it may attend to.

    Padding queries, and queries without any such key, are left out.
    """

    entropy: Float[Array, "L N"]
    """mean over queries of −Σ_s A[t, s] ln A[t, s], nats: 0 for one key, ln S for equal weights (Zhai et al. 2023)."""
    largest_logit: Float[Array, "L N"]
    """max |z| over pairs; z is scaled, capped and biased. It grows before a run diverges (Dehghani et al. 2023)."""
    logit_variance: Float[Array, "L N"]
    """mean over pairs of (z − mean z)²."""
    head_diversity: Float[Array, " L"]
    """1 − the mean, over queries and pairs of heads, of the cosine of the angle between their rows of weights A[t].

    0 if all heads have equal weights, or if there is one head; 1 if no two heads attend to a common key. A normalised
    form, of this package's own, of the disagreement of attended positions in Li et al. 2018.
    """


def attention_statistics(intermediates: Intermediates, batch: Batch) -> dict[str, AttentionStatistics]:
    """Return the statistics of every attention of a forward pass, by place.

    Places are such as "blocks/attention", "blocks/cross_attention" and "encoder/blocks/attention". Branches without
    logits and weights of pairs of tokens have no entry.
    """
    return {
        place: jax.vmap(of_layer)(node) if is_in_every_layer(place) else of_layer(node)
        for place, node, valid in activations_and_branches(intermediates, batch)
        if isinstance(node, BranchActivations) and pair_scores(node).keys() == set(PAIRS)
        for of_layer in [functools.partial(_layer_statistics, valid=valid)]
    }


def _layer_statistics(branch: BranchActivations, valid: Bool[Array, "*batch T"] | None) -> AttentionStatistics:
    scores = pair_scores(branch)
    logits, weights = scores["logits"], scores["weights"]
    pairs = real_pairs(branch, valid)
    queries = pairs.any(-1)
    # Weights may have fewer heads than logits, as in differential attention, where a head combines two maps.
    same = weights.shape[-3] == queries.shape[-2]
    is_counted = queries if same else jnp.broadcast_to(queries.any(-2, keepdims=True), weights.shape[:-1])
    batch = range(pairs.ndim - 3)
    average = mean(logits, pairs, (*batch, -2, -1), keepdims=True)
    return AttentionStatistics(
        entropy=mean(jax.scipy.special.entr(weights).sum(-1), is_counted, (*batch, -1)),
        largest_logit=jnp.where(pairs, jnp.abs(logits), 0).max((*batch, -2, -1), initial=0),
        logit_variance=mean(jnp.square(logits - average), pairs, (*batch, -2, -1)),
        head_diversity=_diversity(weights, queries.all(-2)),
    )


def _diversity(weights: Float[Array, "*batch N T S"], queries: Bool[Array, "*batch T"]) -> Float[Array, ""]:
    """Return `AttentionStatistics.head_diversity` of one layer."""
    heads = weights.shape[-3]
    if heads == 1:
        return jnp.zeros(())
    length = jnp.linalg.norm(weights, axis=-1, keepdims=True)
    unit_weights = weights / jnp.where(length > 0, length, 1)
    # For weights of length 1, the cosines of all pairs of heads add up to (|Σ_n weights_n|² − N) / 2.
    similarity = (jnp.square(unit_weights.sum(-3)).sum(-1) - heads) / (heads * (heads - 1))
    return mean(1 - similarity, queries)
