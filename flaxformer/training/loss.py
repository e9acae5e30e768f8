"""Training loss of a batch, and its gradient: as a whole, or as a sum over micro-batches and devices."""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from flaxformer import model
from flaxformer.devices.sharding import cuts_batch_alone
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer
from flaxformer.nn.losses import mean
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import AnyBatch, Batch
from flaxformer.training.adapters import merge
from flaxformer.training.micro_batches import micro_batches, separable
from flaxformer.training.precision import cast_inputs, cast_params
from flaxformer.training.run import Run
from flaxformer.training.split_loss import TargetCounts, training_counts, training_sums

_Rows = Int[Array, " B"] | tuple[Int[Array, " B"], ...] | None
_Part = tuple[AnyBatch, _Rows]
_PartFunction = Callable[[AnyBatch, _Rows, Array, PyTree], PyTree]


def forward(
    params: Transformer,
    run: Run,
    batch: Batch,
    dropout_key: Array | None = None,
    return_intermediates: bool = False,
    rows: Int[Array, " B"] | None = None,
) -> ModelOutput:
    """Apply the model to a batch, in the precision of the run and with its `remat`; the output is float32.

    Args:
      dropout_key: random key of the whole batch; None evaluates.
      rows: index of each example, if these are a part of the batch.
    """
    precision = run.training.precision
    inputs, arguments = cast_inputs((batch.inputs, batch.arguments), precision)
    return model.run(
        cast_params(params, precision),
        run.model,
        inputs,
        arguments,
        dropout_key=dropout_key,
        rows=rows,
        return_intermediates=return_intermediates,
        remat=run.training.remat,
    )


def summed_loss(
    params: Transformer,
    run: Run,
    batch: AnyBatch,
    dropout_key: Array | None,
    return_intermediates: bool = False,
    rows: _Rows = None,
    counts: TargetCounts | None = None,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ModelOutput]]:
    """Return the training loss as a sum over the scored targets; their count, and the result of the forward pass.

    Each bucket of a batch has its own dropout; their sums are added, and the result is that of the last bucket. Weights
    with adapters are merged first.

    Args:
      rows: index of each example in the batch, or in its bucket, if these are a part of it.
      counts: `batch_counts` of the whole batch, if this is a part of it.
    """
    params = merge(params, run.adapter)
    buckets, outcomes = _forward_buckets(params, run, batch, dropout_key, return_intermediates, rows)
    if counts is None:
        counts = _add_counts(params, run, buckets, outcomes)
    bucket_sums = [
        training_sums(params, run, outcome, bucket, counts) for bucket, outcome in zip(buckets, outcomes, strict=True)
    ]
    total, count = jax.tree.map(lambda *sums: functools.reduce(operator.add, sums), *bucket_sums)
    return total, (count, outcomes[-1])


def batch_counts(
    params: Transformer, run: Run, batch: AnyBatch, dropout_key: Array | None, rows: _Rows = None
) -> TargetCounts:
    """Return what the sums of a batch are divided by: its scored targets, and the count of each loss term."""
    params = merge(params, run.adapter)
    return _add_counts(params, run, *_forward_buckets(params, run, batch, dropout_key, False, rows))


def _add_counts(params: Transformer, run: Run, buckets: tuple[Batch, ...], outcomes: list[ModelOutput]) -> TargetCounts:
    counts = [training_counts(params, run, outcome, bucket) for bucket, outcome in zip(buckets, outcomes, strict=True)]
    return jax.tree.map(lambda *sums: functools.reduce(operator.add, sums), *counts)


def _forward_buckets(
    params: Transformer,
    run: Run,
    batch: AnyBatch,
    dropout_key: Array | None,
    return_intermediates: bool,
    rows: _Rows,
) -> tuple[tuple[Batch, ...], list[ModelOutput]]:
    """Return the buckets of a batch, and the result of the forward pass of each, with dropout of its own."""
    buckets = batch if isinstance(batch, tuple) else (batch,)
    keys = [dropout_key] * len(buckets)
    if isinstance(batch, tuple) and dropout_key is not None:
        keys = list(jax.random.split(dropout_key, len(buckets)))
    rows_of_buckets = rows if isinstance(rows, tuple) else (rows,) * len(buckets)
    outcomes = [
        forward(params, run, bucket, key, return_intermediates and not isinstance(batch, tuple), rows_of_bucket)
        for bucket, key, rows_of_bucket in zip(buckets, keys, rows_of_buckets, strict=True)
    ]
    return buckets, outcomes


def loss(
    params: Transformer, run: Run, batch: AnyBatch, dropout_key: Array | None, return_intermediates: bool = False
) -> tuple[Float[Array, ""], ModelOutput]:
    """`summed_loss` divided by the count: the mean over the scored targets, and the result of the forward pass."""
    total, (count, outcome) = summed_loss(params, run, batch, dropout_key, return_intermediates)
    return mean(total, count), outcome


def accumulate(
    params: Transformer, run: Run, batch: AnyBatch, dropout_key: Array
) -> tuple[Float[Array, ""], Transformer]:
    """`loss` and its gradient, by micro-batches: the sums over all of them, divided once by the total count.

    Micro-batch i of n has the examples i, i + n, i + 2n …, so that each device of a sharded batch has its share of it;
    with buckets, it has those examples of each bucket. Each example has its row in the batch beside it, so that dropout
    does not depend on the division.
    """
    buckets = batch if isinstance(batch, tuple) else (batch,)
    indices = tuple(jnp.arange(len(bucket.targets)) for bucket in buckets)
    whole = (batch, indices if isinstance(batch, tuple) else indices[0])
    over_parts = functools.partial(_sum_over_parts, run, whole, dropout_key)
    zero, counts = jnp.float32(0), None
    if run.loss_terms:  # each has a count of its own, which all parts are divided by
        no_counts = (zero, (zero,) * len(run.loss_terms))
        counts = over_parts(
            lambda part, rows, key, params: batch_counts(params, run, part, key, rows), no_counts, params
        )

    def gradient_of_part(
        part: AnyBatch, rows: _Rows, key: Array, shared: tuple[Transformer, TargetCounts | None]
    ) -> tuple[Array, Array, Transformer]:
        params, counts = shared
        of = jax.value_and_grad(summed_loss, has_aux=True)
        (total, (count, outcome)), gradient = of(params, run, part, key, rows=rows, counts=counts)
        if outcome.aux.weights:
            raise UserError(
                f"the forward pass changes {next(iter(outcome.aux.weights))}, and the batch is computed in parts; "
                "expected mixes_batch = True in the class of that component"
            )
        return total, count, gradient

    zeros = (zero, zero, jax.tree.map(jnp.zeros_like, params))
    total, count, gradient = over_parts(gradient_of_part, zeros, (params, counts))
    return mean(total, count), jax.tree.map(lambda g: mean(g, count), gradient)


def divides_by_device(run: Run) -> bool:
    """True if each device can sum over its own examples: weights are replicated, and examples are separable."""
    return cuts_batch_alone() and separable(run)


def _sum_over_parts(
    run: Run, whole: _Part, dropout_key: Array, function: _PartFunction, zeros: PyTree, shared: PyTree
) -> PyTree:
    """Return Σ function(part, rows, dropout_key, shared) over the micro-batches of a batch, one after another."""
    count = micro_batches(run)

    def sum_part(shared: PyTree, whole: _Part, key: Array) -> PyTree:
        split = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1), whole)

        def body(sums: PyTree, part: _Part) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, sums, function(*part, key, shared)), None

        return jax.lax.scan(body, zeros, split)[0]

    if not divides_by_device(run):
        return sum_part(shared, whole, dropout_key)
    # Each device sums over its own examples, and one all-reduce per step adds the sums. Without `shard_map`, the
    # compiler inserts an all-reduce for every micro-batch.
    return jax.shard_map(
        lambda shared, whole, key: jax.lax.psum(sum_part(shared, whole, key), "data"),
        in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(shared, whole, dropout_key)
