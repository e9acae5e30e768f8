"""One training step: a pure function of state, run and batch."""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from flaxformer import model
from flaxformer.component import Aux, replace_weights
from flaxformer.errors import UserError
from flaxformer.model.layout import Layout
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer, with_layout
from flaxformer.params import fold_in_name
from flaxformer.pytree import Node
from flaxformer.sharding import cuts_batch_alone
from flaxformer.tasks.base import AnyBatch, Batch, Source, concat_parts
from flaxformer.training.adapters import adapt, merge
from flaxformer.training.after_step import after_step, running_mean
from flaxformer.training.initial_weights import InitialWeights, overlay
from flaxformer.training.micro_batches import micro_batches, separable
from flaxformer.training.offload import to_device, to_host
from flaxformer.training.precision import cast_inputs, cast_params
from flaxformer.training.run import Run
from flaxformer.training.schedule import learning_rate
from flaxformer.training.split_loss import training_sums
from flaxformer.training.trainable import insert, select
from flaxformer.training.weight_scales import weight_scales

ALIVE = -1
"""`TrainState.diverged_at` of a run that has not diverged."""
_Rows = Int[Array, " B"] | tuple[Int[Array, " B"], ...] | None
_Part = tuple[AnyBatch, _Rows]
_Sums = Callable[[Transformer, _Part, Array], tuple[Array, Array, Transformer]]


class TrainState(Node):
    """State of a training run between two steps."""

    step: Int[Array, ""]
    params: Transformer
    optimizer: optax.OptState
    diverged_at: Int[Array, ""]
    """The step whose loss or gradient was not finite, after which nothing changes; `ALIVE` until then."""
    average: Transformer | None = None
    """The running mean of the weights after each step, under `Training.ema`; before the first step, the weights."""
    schedule: PyTree[Array] = None
    """State of a schedule that sees the loss; None without one."""


def start(run: Run, layout: Layout = "unrolled", initial: InitialWeights | None = None) -> TrainState:
    """The state before the first step.

    Args:
      layout: of the layers; unrolled where only some of them are frozen, or have an adapter.
      initial: weights to start from (`study.initial_weights.read`); required for a run with `init`.
    """
    loaded = overlay(run.init, initial, model.init(run.init_key, run.model))
    adapted = adapt(loaded, run.adapter, fold_in_name(run.init_key, "adapters"))
    params = after_step(with_layout(adapted, run.trainable.layout(layout)), run)
    own = select(params, run.trainable.mask(params))
    moments = to_host(run, optimizer_chain(run, own, 0.0).init(own))
    # A copy, so that both can be donated.
    average = None if run.training.ema is None else jax.tree.map(jnp.copy, params)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        optimizer=moments,
        diverged_at=jnp.int32(ALIVE),
        average=average,
        schedule=jax.tree.map(jnp.asarray, run.optimizer.decay.init_state()),
    )


def optimizer_chain(run: Run, params: Transformer, rate: float | Float[Array, ""]) -> optax.GradientTransformation:
    """The Optax chain of a run at one learning rate, with the factors of its parametrization on each weight."""
    return run.optimizer.transformation(rate, weight_scales(params, run.model, run.optimizer.gradient_degree or 0))


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
    inputs, given = cast_inputs((batch.inputs, batch.given), precision)
    return model.run(
        cast_params(params, precision),
        run.model,
        inputs,
        given,
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
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ModelOutput]]:
    """Return the training loss as a sum over the scored targets; their count, and the result of the forward pass.

    Each bucket of a batch has its own dropout; their sums are added, and the result is that of the last bucket. Weights
    with adapters are merged first.

    Args:
      rows: index of each example in the batch, or in its bucket, if these are a part of it.
    """
    params = merge(params, run.adapter)
    if isinstance(batch, tuple):
        keys = [None] * len(batch) if dropout_key is None else jax.random.split(dropout_key, len(batch))
        own_rows = rows if isinstance(rows, tuple) else [None] * len(batch)
        parts = zip(batch, keys, own_rows, strict=True)
        found = [summed_loss(params, run, part, key, rows=own) for part, key, own in parts]
        totals, counts = [total for total, _ in found], [count for _, (count, _) in found]
        return functools.reduce(operator.add, totals), (functools.reduce(operator.add, counts), found[-1][1][1])
    assert not isinstance(rows, tuple), "a batch without buckets has one array of rows"
    outcome = forward(params, run, batch, dropout_key, return_intermediates, rows)
    total, count = training_sums(params, run, outcome, batch)
    return total, (count, outcome)


def loss(
    params: Transformer, run: Run, batch: AnyBatch, dropout_key: Array | None, return_intermediates: bool = False
) -> tuple[Float[Array, ""], ModelOutput]:
    """`summed_loss` divided by the count: the mean over the scored targets, and the result of the forward pass."""
    total, (count, outcome) = summed_loss(params, run, batch, dropout_key, return_intermediates)
    return total / jnp.maximum(count, 1), outcome


def train_step(state: TrainState, run: Run, batch: AnyBatch) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """One optimizer step; the metrics are the loss (nats), the global gradient norm and the learning rate.

    A step whose loss or gradient is not finite changes no weights and is recorded in `diverged_at`. From then on the
    run is frozen; other runs of the same stack are not affected.
    """
    value, gradient, outcome = backward(state, run, batch)
    return apply_gradients(state, run, value, gradient, outcome.aux)


def backward(
    state: TrainState, run: Run, batch: AnyBatch, return_intermediates: bool = False
) -> tuple[Float[Array, ""], Transformer, ModelOutput]:
    """The loss of the next step, its gradient (0 for weights that are not trained), and the result of the forward pass.

    With `return_intermediates`, the batch is computed in one piece, whatever its micro-batches and buckets.
    """
    dropout_key = jax.random.fold_in(run.dropout_key, state.step)
    if not return_intermediates and (micro_batches(run) > 1 or isinstance(batch, tuple) or _by_device(run)):
        value, gradient = accumulated(state.params, run, batch, dropout_key)
        outcome = ModelOutput(output=jnp.zeros(0))  # the outputs of the parts are not kept
    else:
        of = jax.value_and_grad(loss, has_aux=True)
        (value, outcome), gradient = of(state.params, run, concat_parts(batch), dropout_key, return_intermediates)
    trained = run.trainable.mask(state.params)
    return value, jax.tree.map(lambda g, own: g if own else jnp.zeros_like(g), gradient, trained), outcome


def accumulated(
    params: Transformer, run: Run, batch: AnyBatch, dropout_key: Array
) -> tuple[Float[Array, ""], Transformer]:
    """`loss` and its gradient, by micro-batches: the sums over all of them, divided once by the total count.

    Micro-batch i of n has the examples i, i + n, i + 2n …, so that each device of a sharded batch has its share of it;
    with buckets, it has those examples of each bucket. Each example has its row in the batch beside it, so that dropout
    does not depend on the division.
    """
    sums: _Sums = functools.partial(_summed_gradient, run, micro_batches(run))
    if _by_device(run):
        # Each device sums over its own examples, and one all-reduce per step adds the sums. Without `shard_map`, the
        # compiler inserts an all-reduce for every micro-batch.
        of_device = sums

        def all_reduced(params: Transformer, part: _Part, key: Array) -> tuple[Array, Array, Transformer]:
            return jax.lax.psum(of_device(params, part, key), "data")

        sums = jax.shard_map(
            all_reduced,
            in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    buckets = batch if isinstance(batch, tuple) else (batch,)
    rows = tuple(jnp.arange(len(bucket.targets)) for bucket in buckets)
    total, count, gradient = sums(params, (batch, rows if isinstance(batch, tuple) else rows[0]), dropout_key)
    count = jnp.maximum(count, 1)
    return total / count, jax.tree.map(lambda g: g / count, gradient)


def _by_device(run: Run) -> bool:
    """True if each device can sum over its own examples: weights are replicated, and examples are separable."""
    return cuts_batch_alone() and separable(run)


def _summed_gradient(
    run: Run, parts: int, params: Transformer, part: _Part, dropout_key: Array
) -> tuple[Array, Array, Transformer]:
    """The summed loss of a batch, its count, and the gradient of the sum, computed in `parts` micro-batches."""
    split = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1), part)

    def body(sums: PyTree, micro_batch: _Part) -> tuple[PyTree, None]:
        own, rows = micro_batch
        of = jax.value_and_grad(summed_loss, has_aux=True)
        (total, (count, found)), gradient = of(params, run, own, dropout_key, rows=rows)
        if found.aux.weights:
            raise UserError(
                f"the forward pass changes {next(iter(found.aux.weights))}, and the batch is computed in parts; "
                "expected mixes_batch = True in the class of that component"
            )
        return jax.tree.map(jnp.add, sums, (total, count, gradient)), None

    zeros = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    (total, count, gradient), _ = jax.lax.scan(body, zeros, split)
    return total, count, gradient


@jax.named_scope("optimizer")
def apply_gradients(
    state: TrainState, run: Run, value: Float[Array, ""], gradient: Transformer, aux: Aux
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Second half of `train_step`: the state after an update with this gradient, and the metrics.

    Args:
      value: the loss.
      gradient: as `backward` gives it.
      aux: has the weights that the forward pass itself changed, such as running statistics.
    """
    trained = run.trainable.mask(state.params)
    rate, schedule = learning_rate(run.optimizer, state.step, run.training.steps), state.schedule
    if schedule is not None:
        schedule = run.optimizer.decay.observe(schedule, value, state.step)
        rate = rate * run.optimizer.decay.factor(schedule)
    norm = optax.tree.norm(gradient)

    own, old_moments = select(state.params, trained), to_device(run, state.optimizer)
    updates, moments = optimizer_chain(run, own, rate).update(select(gradient, trained), old_moments, own)
    own = optax.apply_updates(own, run.trainable.scale(updates))
    # Weights that are not trained keep their bits, unless the forward pass changed them.
    params = replace_weights(after_step(insert(own, state.params, trained), run), aux.weights)
    if run.training.freeze and aux.weights:
        frozen = run.trainable.frozen_by_pattern(params)
        params = jax.tree.map(lambda is_frozen, old, new: old if is_frozen else new, frozen, state.params, params)
    alive = state.diverged_at == ALIVE
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    params, moments, average, schedule = jax.tree.map(
        lambda new, old: jnp.where(alive & finite, new, old),
        (params, moments, running_mean(state.average, run.training.ema, state.step, params), schedule),
        (state.params, old_moments, state.average, state.schedule),
    )
    moments = to_host(run, moments)
    diverged_at = jnp.where(alive & ~finite, state.step, state.diverged_at)
    state = TrainState(state.step + 1, params, moments, diverged_at, average, schedule)
    return state, {"loss": value, "gradient_norm": norm, "learning_rate": rate}


def evaluation_params(state: TrainState, run: Run) -> Transformer:
    """The weights to evaluate, to sample from and to publish: those that train, or their mean under `Training.ema`.

    Adapters are merged: the result is a tree of the model's weights.
    """
    if state.average is not None:
        return merge(state.average, run.adapter)
    trained = run.trainable.mask(state.params)
    mean = run.optimizer.averaged(state.optimizer, select(state.params, trained))
    return merge(insert(mean, state.params, trained), run.adapter)


def train_chunk(
    state: TrainState, run: Run, source: Source, steps: int
) -> tuple[TrainState, dict[str, Float[Array, " steps"]]]:
    """Run `steps` training steps in one scan; the division of a run into chunks does not change the result."""
    key, source = run.data_key, source.with_numbers(run.task)

    def body(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        return train_step(state, run, source.batch(key, state.step))

    return jax.lax.scan(body, state, length=steps)
