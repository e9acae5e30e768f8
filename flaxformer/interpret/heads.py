"""Heads of attention: their weights, their importance for the loss, and scores of what they attend to."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.interpret.interventions import combine, patch
from flaxformer.interpret.scores import mean_activations, scores
from flaxformer.model.call import ForwardInputs
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Batch
from flaxformer.training.run import Run

HEADS = "*attention/heads"
WEIGHTS = "*attention/weights"
MOST_NUMBERS = 4096
"""Largest number of attention weights that `named_maps` returns, each a column of the results."""
Replaced = Literal["mean", "zero"]


def attention_maps(
    params: Transformer, config: ModelConfig, inputs: Array, **arguments: Unpack[ForwardInputs]
) -> dict[str, Float[Array, "*batch N T S"]]:
    """Return the weights of every attention by the path of the point, such as "blocks/1/attention/weights"."""
    return model.activations_at(params, config, inputs, WEIGHTS, **arguments)


def named_maps(
    params: Transformer, run: Run, batches: Batch, at: str | Sequence[str] = WEIGHTS, *, positions: int = 16
) -> dict[str, Float[Array, ""]]:
    """Return the mean attention weights of every head as scalars by name, of which a report makes a figure per arm.

    Names are "attention_map/blocks/1/attention/weights/HEAD/QUERY/KEY", for a study's `measure`.

    Args:
      batches: data [batches, B, …], over whose sequences the mean is; padding does not count as a query.
      at: paths or patterns of attention weights.
      positions: number of queries and keys, from the start of the sequence.

    Raises:
      UserError: a point other than attention weights, or more than 4,096 numbers.
    """
    means = mean_activations(params, run, batches, at, per_position=True)
    for path in means:
        if not path.endswith("/weights"):
            raise UserError(f"at has the point '{path}'; expected attention weights, such as '{WEIGHTS}'")
    maps = {path: x[0, :, :positions, :positions] for path, x in means.items()}
    count = sum(x.size for x in maps.values())
    if count > MOST_NUMBERS:
        raise UserError(
            f"the attention maps have {count:,} numbers; expected at most {MOST_NUMBERS:,}: choose fewer layers by "
            f"`at`, or fewer positions than {positions}"
        )
    return {
        f"attention_map/{path}/{head}/{query}/{key}": x[head, query, key]
        for path, x in maps.items()
        for head, query, key in np.ndindex(*x.shape)
    }


def head_importance(
    params: Transformer, run: Run, batches: Batch, replaced_by: Replaced = "mean"
) -> dict[str, Float[Array, "N"]]:
    """Return the increase of the loss when one head is replaced, for every head, by the path of the point of its layer.

    Importance of head n: loss(y_n ← its mean) − loss, where y_n are the values that the head gives before the output
    matrix (the point "blocks/1/attention/heads"), in nats for the cross-entropy.

    Args:
      batches: data [batches, B, …], such as `run.task.load().evaluation()`; the loss and the mean are over all of them.
      replaced_by: "mean" over all tokens (mean ablation), or "zero".

    Source: Michel et al. 2019, "Are sixteen heads really better than one?", with zeros; means as in Wang et al. 2022.
    """
    if replaced_by not in ("mean", "zero"):
        raise UserError(f"replaced_by is {replaced_by!r}; expected mean or zero")
    average = mean_activations(params, run, batches, HEADS)
    values = average if replaced_by == "mean" else jax.tree.map(jnp.zeros_like, average)
    before = scores(params, run, batches)["loss"]

    counts = [x.shape[-2] for x in values.values()]
    ends = list(itertools.accumulate(counts))
    # One program for all layers: a row per head of the model, with the heads of each layer that it replaces.
    rows = jnp.split(jnp.eye(ends[-1], dtype=bool), ends[:-1], axis=1)

    def importance(chosen: Mapping[str, Array]) -> Float[Array, ""]:
        edits = combine(*(patch({path: x}, heads=chosen[path]) for path, x in values.items()))
        return scores(params, run, batches, edits)["loss"] - before

    increases = jax.lax.map(importance, dict(zip(values, rows, strict=True)))
    return dict(zip(values, jnp.split(increases, ends[:-1]), strict=True))


def head_scores(
    params: Transformer,
    config: ModelConfig,
    tokens: Int[Array, "*batch T"],
    score: Callable[[Array, Array], Array],
    **arguments: Unpack[ForwardInputs],
) -> dict[str, Float[Array, "N"]]:
    """Return a score of the attention weights of every head of self-attention, by the path of the point.

    Args:
      score: function of the weights [*batch, N, T, T] and the tokens [*batch, T], such as `prefix_matching`; its result
        has one number per head.
    """
    maps = model.activations_at(params, config, tokens, "blocks/*/attention/weights", **arguments)
    return {path: score(weights, tokens) for path, weights in maps.items()}


def prefix_matching(
    weights: Float[Array, "*batch N T T"],
    tokens: Int[Array, "*batch T"],
    queries: Bool[Array, "*#batch T"] | None = None,
) -> Float[Array, "N"]:
    """Return the mean weight on the tokens that followed an earlier occurrence of the query's token, per head.

    Mean over all queries t with such a token of Σ_s A[t, s] · [s ≤ t and tokens[s − 1] = tokens[t]]: the
    prefix-matching score of an induction head, 1 for a perfect one (Olsson et al. 2022).

    Args:
      queries: True at the queries that count, such as those whose targets are scored; None for all.
    """
    before = jnp.concatenate([jnp.full_like(tokens[..., :1], -1), tokens[..., :-1]], -1)
    length = tokens.shape[-1]
    follows = (tokens[..., :, None] == before[..., None, :]) & _lower(jnp.ones((length, length), bool), tokens)
    return _mean_weight(weights, follows, queries)


def previous_token(
    weights: Float[Array, "*batch N T T"],
    tokens: Int[Array, "*batch T"],
    queries: Bool[Array, "*#batch T"] | None = None,
) -> Float[Array, "N"]:
    """Return the mean weight A[t, t − 1] on the token before the query, over all t ≥ 1, per head.

    Args:
      queries: True at the queries that count; None for all.
    """
    length = tokens.shape[-1]
    return _mean_weight(weights, _lower(jnp.eye(length, k=-1, dtype=bool), tokens), queries)


def repeated_tokens(key: Array, batch: int, length: int, vocabulary: int) -> Int[Array, "batch length"]:
    """Return sequences of `length` whose second half repeats the first: random tokens, drawn with replacement."""
    half = jax.random.randint(key, (batch, -(-length // 2)), 0, vocabulary)
    return jnp.concatenate([half, half], -1)[:, :length]


def _lower(pairs: Bool[Array, "T T"], tokens: Int[Array, "*batch T"]) -> Bool[Array, "*batch T T"]:
    """Return the pairs with s ≤ t, for every sequence."""
    return jnp.broadcast_to(jnp.tril(pairs), (*tokens.shape, tokens.shape[-1]))


def _mean_weight(
    weights: Float[Array, "*batch N T T"], on: Bool[Array, "*batch T T"], queries: Bool[Array, "*#batch T"] | None
) -> Float[Array, "N"]:
    """Return Σ_s A[t, s] · on[t, s], averaged over the queries for which any `on` is True, per head."""
    counted = on.any(-1) if queries is None else on.any(-1) & jnp.broadcast_to(queries, on.shape[:-1])
    on = jnp.broadcast_to(on[..., None, :, :], weights.shape)
    counted = jnp.broadcast_to(counted[..., None, :], weights.shape[:-1])
    rows = jnp.where(on, weights, 0).sum(-1)
    axes = (*range(rows.ndim - 2), rows.ndim - 1)
    return jnp.where(counted, rows, 0).sum(axes) / jnp.maximum(counted.sum(axes), 1)
