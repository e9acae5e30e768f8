"""Loss and accuracy from some of the tokens at a time: the logits of a large batch are never held as a whole.

Up to `nn.chunks.LARGE` outputs per device, everything is computed at once. Beyond, the features that the head's
`project` reads are divided into chunks of tokens, and each chunk's outputs, their losses and their gradients are
computed before the next chunk's. A head without `project`, or whose own loss is not declared `by_token`, has all
outputs at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from flaxformer.component import Aux
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer
from flaxformer.nn import chunks
from flaxformer.nn.widen import widen
from flaxformer.parts.heads import Head, LossSum, OutputProjection
from flaxformer.sharding import batch_shards, reduce_scatter, shard_leading, weight_spec
from flaxformer.tasks.base import Batch
from flaxformer.training.loss_terms import LossTerm, ZLoss
from flaxformer.training.run import Run
from flaxformer.weight_axes import axes

_Terms = tuple[LossTerm, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """Division of the targets of a batch: into the parts of the devices, and each of these into chunks."""

    batch: tuple[int, ...]
    shards: int
    count: int

    @classmethod
    def of(cls, outcome: ModelOutput, batch: Batch) -> Self | None:
        """Return the division for a result of the forward pass; None to compute all outputs at once."""
        projection, shape = outcome.projection, batch.weights.shape
        if projection is None or not shape or projection.features.shape[:-1] != shape:
            return None
        shards, tokens = batch_shards(shape[0]), math.prod(shape)
        width = math.prod(outcome.output.shape) // max(tokens, 1)
        if tokens * width // shards <= chunks.LARGE:
            return None
        return cls(shape, shards, chunks.chunk_count(tokens // shards, width, chunks.LARGE))

    def cut(self, tree: PyTree) -> PyTree:
        """Return arrays [*batch, ...] as chunks."""
        return chunks.split(tree, self.batch, self.shards, self.count)


@jax.named_scope("loss")
def training_sums(params: Transformer, run: Run, outcome: ModelOutput, batch: Batch) -> LossSum:
    """Return the training loss as (sum over scored targets, their count).

    It is the head's loss, plus the losses of the model's components (`Aux.losses`) and of `Run.loss_terms`, which are
    means, times the count.
    """
    head, terms, split = run.model.head, run.loss_terms, Split.of(outcome, batch)
    if split is None or outcome.projection is None:
        smoothing = run.training.label_smoothing
        total, count = head.training_loss(outcome.output, outcome.aux, batch.targets, batch.weights, smoothing)
    else:
        total, count = split_sums(params, run, outcome.projection, batch, split)
        terms = tuple(term for term in terms if not term.can_split)
    for component_loss in outcome.aux.losses.values():
        total = total + count * component_loss
    for term in terms:
        total = _add_term(total, count, term, term.value(params, outcome, batch))
    return total, count


def _add_term(total: Array, count: Array, term: LossTerm, found: LossSum) -> Float[Array, ""]:
    value, size = found
    return total + term.weight * value * count / jnp.maximum(size, 1)


def split_sums(params: Transformer, run: Run, projection: OutputProjection, batch: Batch, split: Split) -> LossSum:
    """Return the head's loss, with those terms that need no outputs of other tokens, from chunks of tokens."""
    terms = tuple(term for term in run.loss_terms if term.can_split)
    shared = (projection.replace(features=None), run.training.label_smoothing, terms)
    x, rows = split.cut(projection.features), split.cut((batch.targets, batch.weights))
    placed = functools.partial(_shards, params, projection=projection) if split.shards > 1 else lambda _: chunks.ONE
    if run.model.head.has_own_loss or any(type(term) is not ZLoss for term in terms):
        (total, count), found = chunks.sum_chunks(_sums, shared, x, rows, placed(shared))
        for term, own in zip(terms, found, strict=True):
            total = _add_term(total, count, term, own)
        return total, count
    # These counts do not depend on the outputs, so that the first pass computes no outputs.
    count, sizes = jax.lax.stop_gradient(chunks.sum_chunks(_counts, shared, x, rows))
    factors = [term.weight * count / jnp.maximum(size, 1) for term, size in zip(terms, sizes, strict=True)]
    with_factors = (shared, factors)
    return chunks.sum_chunks_once(_total, with_factors, x, rows, placed(with_factors)), count


def _shards(params: Transformer, shared: PyTree, projection: OutputProjection) -> chunks.Shards:
    """Return the placement of the gradients of `shared` on the mesh: those of weights are sharded as the weights are.

    Args:
      projection: the one in `shared`.
    """
    own = axes(params)
    table = getattr(own.embedding, "tokens", None) if projection.table is not None else None
    kinds = {id(leaf): kind for leaf, kind in zip(
        jax.tree.leaves((projection.weights, projection.table)), jax.tree.leaves((own.head, table)), strict=True
    )}  # fmt: skip
    specs = [
        weight_spec(kinds[id(leaf)], leaf.shape, jax.sharding.get_abstract_mesh())
        if id(leaf) in kinds
        else PartitionSpec()
        for leaf in jax.tree.leaves(shared)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    ]

    def over(function: Callable[[Array, PartitionSpec], Array]) -> Callable[[list[Array]], list[Array]]:
        return lambda sums: [function(own, spec) for own, spec in zip(sums, specs, strict=True)]

    return chunks.Shards(over(shard_leading), over(reduce_scatter))


def _sums(shared: tuple[OutputProjection, Array | None, _Terms], x: Array, rows: tuple[Array, Array]) -> PyTree:
    """The head's (sum, count) for a chunk, and those of the loss terms."""
    projection, smoothing, terms = shared
    projected = projection.projected(x)
    output = _narrow_gradient(widen(projected), x)
    # Logits that the head rounded are given to the cross-entropy as they are, which a GPU reads in pairs.
    is_rounded = projected.dtype != output.dtype and not projection.head.has_own_loss
    own = projection.head.training_loss(projected if is_rounded else output, Aux(), *rows, smoothing)
    return own, [term.of_outputs(output, *rows) for term in terms]


def _counts(*arguments: PyTree) -> PyTree:
    (_, count), terms = _sums(*arguments)
    return count, [size for _, size in terms]


def _total(shared: tuple[PyTree, list[Array]], x: Array, rows: tuple[Array, Array]) -> Float[Array, ""]:
    """The loss of a chunk with its terms, each times a factor."""
    own, factors = shared
    (total, _), terms = _sums(own, x, rows)
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
    split = Split.of(outcome, batch)
    if split is None or outcome.projection is None:
        found = {"loss": head.loss(outcome.output, batch.targets, batch.weights)}
        if (right := head.accuracy(outcome.output, batch.targets, batch.weights)) is not None:
            found["accuracy"] = right
        rows = jax.tree.map(lambda x: x[:, None], (outcome.output, batch.targets, batch.weights))
        return found, jax.vmap(head.loss)(*rows)
    projection = outcome.projection
    x, rows = split.cut(projection.features), split.cut((batch.targets, batch.weights))
    per_token = chunks.merge(chunks.map_chunks(_token_scores, projection.replace(features=None), x, rows), split.batch)
    examples = jax.tree.map(lambda own: own.reshape(len(own), -1).sum(1), per_token)
    return jax.tree.map(jnp.sum, examples), examples["loss"]


def _token_scores(projection: OutputProjection, x: Array, rows: tuple[Array, Array]) -> dict[str, LossSum]:
    """The loss and the accuracy of each token of a chunk, [tokens]."""

    def one(output: Array, targets: Array, weights: Array) -> dict[str, LossSum]:
        found = {"loss": projection.head.loss(output, targets, weights)}
        right = projection.head.accuracy(output, targets, weights)
        return found if right is None else found | {"accuracy": right}

    return jax.vmap(one)(*(leaf[:, None] for leaf in (projection.outputs(x), *rows)))
