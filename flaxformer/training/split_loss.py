"""Loss and accuracy from some of the tokens at a time: the logits of a large batch are never held as a whole.

Up to `chunks.LARGE` outputs per device, everything is computed at once. Beyond, the features that the head's
`project` reads are divided into chunks of tokens, and each chunk's outputs, their losses and their gradients are
computed before the next chunk's. A head without `project`, or whose own loss is not declared `by_token`, has all
outputs at once.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import Aux
from flaxformer.components.heads import Head, LossSum, OutputProjection
from flaxformer.core.weight_axes import axes
from flaxformer.devices.sharding import batch_shards, reduce_scatter, shard_leading, weight_spec
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer
from flaxformer.nn.formulations import chunks, with_formulations
from flaxformer.nn.formulations.chunks import Division
from flaxformer.nn.losses import mean
from flaxformer.nn.widen import widen
from flaxformer.tasks.batch import Batch
from flaxformer.training.loss_terms import LossTerm, ZLoss
from flaxformer.training.run import Run

_Terms = tuple[LossTerm, ...]
TargetCounts = tuple[Float[Array, ""], tuple[Float[Array, ""], ...]]
"""The count of scored targets of a batch, and the count of each loss term."""


def division_of(outcome: ModelOutput, batch: Batch) -> Division | None:
    """Return the division of the targets for a result of the forward pass; None to compute all outputs at once."""
    projection, shape = outcome.projection, batch.weights.shape
    if projection is None or not shape or projection.features.shape[:-1] != shape:
        return None
    shards, tokens = batch_shards(shape[0]), math.prod(shape)
    width = math.prod(outcome.output.shape) // max(tokens, 1)
    return divide_outputs(shape, shards, width)


@with_formulations("outputs", chunks.FORMULATIONS)
def divide_outputs(shape: tuple[int, ...], shards: int, width: int) -> Division | None:
    """Return None: all outputs of a batch of this shape, `width` per token, are computed at once."""
    return None


def training_counts(params: Transformer, run: Run, outcome: ModelOutput, batch: Batch) -> TargetCounts:
    """Return what `training_sums` divides by: the count of scored targets, and that of each loss term.

    Where they do not depend on the outputs, the compiler leaves the forward pass out.
    """
    head, division = run.model.head, division_of(outcome, batch)
    if division is None or outcome.projection is None:
        _, count = head.training_loss(outcome.output, outcome.aux, batch.targets, batch.weights, None)
        in_chunks: dict[int, Array] = {}
    else:
        indices = [index for index, term in enumerate(run.loss_terms) if term.can_split]
        count, sizes = _chunk_counts(run, outcome.projection, batch, division)
        in_chunks = dict(zip(indices, sizes, strict=True))
    sizes = [
        in_chunks[index] if index in in_chunks else term.value(params, outcome, batch)[1]
        for index, term in enumerate(run.loss_terms)
    ]
    return jax.lax.stop_gradient((count, tuple(sizes)))


@jax.named_scope("loss")
def training_sums(
    params: Transformer, run: Run, outcome: ModelOutput, batch: Batch, counts: TargetCounts | None = None
) -> LossSum:
    """Return the training loss as (sum over scored targets, their count).

    It is Σ_t loss_t + count · (Σ_k weight_k · total_k / count_k + Σ_c loss_c), with the head's loss of each target t,
    the terms k of `Run.loss_terms`, and the losses c of the model's components (`Aux.losses`), which are means.

    Args:
      counts: `training_counts` of the whole batch, if this is a part of it: the sum over the parts, divided by the
        count of the whole batch, is then the loss of the whole batch, whatever the division. By default, of this batch.
    """
    head, division = run.model.head, division_of(outcome, batch)
    factors = term_factors(run, training_counts(params, run, outcome, batch) if counts is None else counts)
    left = list(zip(run.loss_terms, factors, strict=True))
    if division is None or outcome.projection is None:
        smoothing = run.training.label_smoothing
        total, count = head.training_loss(outcome.output, outcome.aux, batch.targets, batch.weights, smoothing)
    else:
        total, count = split_sums(params, run, outcome.projection, batch, division, factors)
        left = [(term, factor) for term, factor in left if not term.can_split]
    for component_loss in outcome.aux.losses.values():
        total = total + count * component_loss
    for term, factor in left:
        total = total + factor * term.value(params, outcome, batch)[0]
    return total, count


def term_factors(run: Run, counts: TargetCounts) -> tuple[Array, ...]:
    """Return weight_k · count / count_k for each term k of `Run.loss_terms`: the factor of its total."""
    count, sizes = counts
    return tuple(term.weight * mean(count, size) for term, size in zip(run.loss_terms, sizes, strict=True))


def split_sums(
    params: Transformer,
    run: Run,
    projection: OutputProjection,
    batch: Batch,
    division: Division,
    factors: tuple[Array, ...],
) -> LossSum:
    """Return the head's loss, with those terms that need no outputs of other tokens, from chunks of tokens.

    Args:
      factors: of the sum of each loss term of the run.
    """
    in_chunks = [(term, factor) for term, factor in zip(run.loss_terms, factors, strict=True) if term.can_split]
    shared = _chunk_constants(run, projection)
    x, rows = projection.features, (batch.targets, batch.weights)
    placed = functools.partial(_shards, params, projection=projection) if division.shards > 1 else lambda _: chunks.ONE
    if run.model.head.has_own_loss or any(type(term) is not ZLoss for term, _ in in_chunks):
        (total, count), values = chunks.sum_chunks(_sums, shared, x, rows, division, placed(shared))
        return total + sum(factor * value for (_, factor), (value, _) in zip(in_chunks, values, strict=True)), count
    # The count does not depend on the outputs, so that this pass computes no outputs.
    count, _ = _chunk_counts(run, projection, batch, division)
    with_factors = (shared, [factor for _, factor in in_chunks])
    return chunks.sum_chunks_once(_total, with_factors, x, rows, division, placed(with_factors)), count


def _chunk_constants(run: Run, projection: OutputProjection) -> tuple[OutputProjection, float | Array | None, _Terms]:
    """Return what all chunks read: the projection without features, the label smoothing, and the terms by chunks."""
    terms = tuple(term for term in run.loss_terms if term.can_split)
    return projection.replace(features=None), run.training.label_smoothing, terms


def _chunk_counts(
    run: Run, projection: OutputProjection, batch: Batch, division: Division
) -> tuple[Array, list[Array]]:
    """Return the count of scored targets, and the counts of the terms that are computed in chunks."""
    rows = batch.targets, batch.weights
    counts: tuple[Array, list[Array]] = chunks.sum_chunks(
        _counts, _chunk_constants(run, projection), projection.features, rows, division
    )
    return jax.lax.stop_gradient(counts)


def _shards(params: Transformer, shared: PyTree, projection: OutputProjection) -> chunks.Shards:
    """Return the placement of the gradients of `shared` on the mesh: those of weights are sharded as the weights are.

    Args:
      projection: the one in `shared`.
    """
    weight_axes = axes(params)
    table = getattr(weight_axes.embedding, "tokens", None) if projection.table is not None else None
    kinds = {id(leaf): kind for leaf, kind in zip(
        jax.tree.leaves((projection.weights, projection.table)), jax.tree.leaves((weight_axes.head, table)), strict=True
    )}  # fmt: skip
    specs = [
        weight_spec(kinds[id(leaf)], leaf.shape, jax.sharding.get_abstract_mesh())
        if id(leaf) in kinds
        else PartitionSpec()
        for leaf in jax.tree.leaves(shared)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    ]

    def over(function: Callable[[Array, PartitionSpec], Array]) -> Callable[[list[Array]], list[Array]]:
        return lambda sums: [function(gradient, spec) for gradient, spec in zip(sums, specs, strict=True)]

    return chunks.Shards(over(shard_leading), over(reduce_scatter))


def _sums(shared: tuple[OutputProjection, float | Array | None, _Terms], x: Array, rows: tuple[Array, Array]) -> PyTree:
    """The (sum, count) of the head and of the loss terms for a chunk."""
    projection, smoothing, terms = shared
    projected = projection.project(x)
    output = _narrow_gradient(widen(projected), x)
    # Logits that the head rounded are given to the cross-entropy as they are, which a GPU reads in pairs.
    is_rounded = projected.dtype != output.dtype and not projection.head.has_own_loss
    head_sum = projection.head.training_loss(projected if is_rounded else output, Aux(), *rows, smoothing)
    return head_sum, [term.of_outputs(output, *rows) for term in terms]


def _counts(*arguments: PyTree) -> PyTree:
    (_, count), terms = _sums(*arguments)
    return count, [size for _, size in terms]


def _total(shared: tuple[PyTree, list[Array]], x: Array, rows: tuple[Array, Array]) -> Float[Array, ""]:
    """The loss of a chunk with its terms, each times a factor."""
    head_and_terms, factors = shared
    (total, _), terms = _sums(head_and_terms, x, rows)
    return total + sum(factor * value for factor, (value, _) in zip(factors, terms, strict=True))


@jax.custom_vjp
def _narrow_gradient(output: Array, x: Array) -> Array:
    """Return the output; its gradient is rounded to the dtype of x, for products of two matrices of that dtype."""
    return output


def _narrow_backward(x: Array, gradient: Array) -> tuple[Array, None]:
    return gradient.astype(x.dtype).astype(gradient.dtype), None


_narrow_gradient.defvjp(lambda output, x: (output, jnp.zeros((), x.dtype)), _narrow_backward)


def batch_sums(outcome: ModelOutput, head: Head, batch: Batch) -> tuple[dict[str, LossSum], tuple[Array, Array]]:
    """Return "loss" and, where there is one, "accuracy" as (sum, count); and each example's loss as (sum, count)."""
    division = division_of(outcome, batch)
    if division is None or outcome.projection is None:
        sums = {"loss": head.loss(outcome.output, batch.targets, batch.weights)}
        if (right := head.accuracy(outcome.output, batch.targets, batch.weights)) is not None:
            sums["accuracy"] = right
        rows = jax.tree.map(lambda x: x[:, None], (outcome.output, batch.targets, batch.weights))
        return sums, jax.vmap(head.loss)(*rows)
    projection = outcome.projection
    rows = batch.targets, batch.weights
    per_token = chunks.map_chunks(_token_scores, projection.replace(features=None), projection.features, rows, division)
    examples = jax.tree.map(lambda token_sums: token_sums.reshape(len(token_sums), -1).sum(1), per_token)
    return jax.tree.map(jnp.sum, examples), examples["loss"]


def _token_scores(projection: OutputProjection, x: Array, rows: tuple[Array, Array]) -> dict[str, LossSum]:
    """The loss and the accuracy of each token of a chunk, [tokens]."""

    def score(output: Array, targets: Array, weights: Array) -> dict[str, LossSum]:
        scores = {"loss": projection.head.loss(output, targets, weights)}
        right = projection.head.accuracy(output, targets, weights)
        return scores if right is None else scores | {"accuracy": right}

    return jax.vmap(score)(*(leaf[:, None] for leaf in (projection.outputs(x), *rows)))
