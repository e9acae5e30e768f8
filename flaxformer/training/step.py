"""One training step: a pure function of state, run and batch."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from flaxformer import model
from flaxformer.components.component import Aux, replace_weights
from flaxformer.core.params import fold_in_name
from flaxformer.core.pytree import Node
from flaxformer.core.weight_projection import project_components
from flaxformer.model.layout import Layout
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer, stack_as, with_layout
from flaxformer.tasks.batch import AnyBatch, Source, concat_parts
from flaxformer.training.adapters import adapt, merge
from flaxformer.training.initial_weights import InitialWeights, overlay
from flaxformer.training.loss import accumulate, divides_by_device, loss
from flaxformer.training.micro_batches import micro_batches
from flaxformer.training.offload import to_device, to_host
from flaxformer.training.run import Run
from flaxformer.training.schedule import Optimizer, learning_rate
from flaxformer.training.trainable import insert, select
from flaxformer.training.weight_scales import weight_scales

ALIVE = -1
"""`TrainState.diverged_at` of a run that has not diverged."""


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
    weights = select(params, run.trainable.mask(params))
    moments = to_host(run, optimizer_chain(run, weights, 0.0).init(weights))
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


def train_step(
    state: TrainState, run: Run, batch: AnyBatch, update: Int[Array, ""] | None = None
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """One optimizer step; the metrics are the loss (nats), the global gradient norm and the learning rate.

    A step whose loss or gradient is not finite changes no weights and is recorded in `diverged_at`. From then on the
    run is frozen; other runs of the same stack are not affected.

    Args:
      update: number of updates before this one at the same step, each of which has dropout of its own.
    """
    value, gradient, outcome = backward(state, run, batch, update=update)
    return apply_gradients(state, run, value, gradient, outcome.aux)


def backward(
    state: TrainState,
    run: Run,
    batch: AnyBatch,
    return_intermediates: bool = False,
    update: Int[Array, ""] | None = None,
) -> tuple[Float[Array, ""], Transformer, ModelOutput]:
    """The loss of the next step, its gradient (0 for weights that are not trained), and the result of the forward pass.

    With `return_intermediates`, the batch is computed in one piece, whatever its micro-batches and buckets.
    """
    dropout_key = jax.random.fold_in(run.dropout_key, state.step)
    if update is not None:
        dropout_key = jax.random.fold_in(dropout_key, update)
    if not return_intermediates and (micro_batches(run) > 1 or isinstance(batch, tuple) or divides_by_device(run)):
        value, gradient = accumulate(state.params, run, batch, dropout_key)
        outcome = ModelOutput(output=jnp.zeros(0))  # the outputs of the parts are not kept
    else:
        of = jax.value_and_grad(loss, has_aux=True)
        (value, outcome), gradient = of(state.params, run, concat_parts(batch), dropout_key, return_intermediates)
    trained = run.trainable.mask(state.params)
    return value, jax.tree.map(lambda g, is_trained: g if is_trained else jnp.zeros_like(g), gradient, trained), outcome


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

    weights, old_moments = select(state.params, trained), to_device(run, state.optimizer)
    updates, moments = optimizer_chain(run, weights, rate).update(select(gradient, trained), old_moments, weights)
    weights = optax.apply_updates(weights, run.trainable.scale(updates))
    # Weights that are not trained keep their bits, unless the forward pass changed them.
    params = replace_weights(after_step(insert(weights, state.params, trained), run), aux.weights)
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
    mean = run.optimizer.average_weights(state.optimizer, select(state.params, trained))
    return merge(insert(mean, state.params, trained), run.adapter)


def train_chunk(
    state: TrainState, run: Run, source: Source, steps: int
) -> tuple[TrainState, dict[str, Float[Array, " steps"]]]:
    """Run `steps` training steps in one scan; the division of a run into chunks does not change the result."""
    key, source = run.data_key, source.with_numbers(run.task)

    def body(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        return staged_step(state, run, source.batch(key, state.step))

    return jax.lax.scan(body, state, length=steps)


def staged_step(state: TrainState, run: Run, batch: AnyBatch) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """`train_step`, or one per part of the batch at a stage of `Training.batch_stages`; the metrics are their means."""
    if not run.training.batch_stages:
        return train_step(state, run, batch)
    sizes, stages = run.batch_sizes, run.training.batch_stages
    distinct = sorted(set(sizes))
    updates = [functools.partial(_updates, run, run.task.batch_size // size) for size in distinct]
    number = sum(jnp.int32(state.step >= stage.start) for stage in stages)
    return jax.lax.switch(jnp.array([distinct.index(size) for size in sizes])[number], updates, state, batch)


def _updates(
    run: Run, count: int, state: TrainState, batch: AnyBatch
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """One update per part of a batch, at the same step; update j of n has the examples j, j + n, j + 2n …"""
    if count == 1:
        return train_step(state, run, batch)
    parts = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1), batch)

    def body(inner: TrainState, part: tuple[Array, AnyBatch]) -> tuple[TrainState, dict[str, Array]]:
        number, examples = part
        new, metrics = train_step(inner, run, examples, number)
        return new.replace(step=state.step), metrics

    # The running mean is over steps, and a diverged run keeps its own.
    new, metrics = jax.lax.scan(body, state.replace(average=None), (jnp.arange(count), parts))
    average = running_mean(state.average, run.training.ema, state.step, new.params)
    average = jax.tree.map(lambda mean, old: jnp.where(new.diverged_at == ALIVE, mean, old), average, state.average)
    return new.replace(step=state.step + 1, average=average), jax.tree.map(jnp.mean, metrics)


def over_stack(stack_size: int | None, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return `function(*arguments, data)`, mapped over the leading axis of the arguments if there is a stack.

    The runs of a stack share the data, unless they are a source with `is_stacked`.
    """
    if stack_size is None:
        return function

    def map_trials(*arguments: PyTree) -> PyTree:
        data, batch_size = arguments[-1], None if stack_size == 1 else stack_size
        if isinstance(data, Source) and data.is_stacked:
            return jax.lax.map(lambda trial: function(*trial), arguments, batch_size=batch_size)
        return jax.lax.map(lambda trial: function(*trial, data), arguments[:-1], batch_size=batch_size)

    return map_trials


def after_step(params: Transformer, run: Run) -> Transformer:
    """Return the weights after `after_step` of the components and of the optimizer; untrained ones do not change."""
    changed = project_components(params, run.model)
    if type(run.optimizer).after_step is not Optimizer.after_step:
        changed = stack_as(run.optimizer.after_step(with_layout(changed, "unrolled")), params)
    if all(new is old for new, old in zip(jax.tree.leaves(changed), jax.tree.leaves(params), strict=True)):
        return params
    return jax.tree.map(
        lambda is_trained, old, new: new if is_trained else old, run.trainable.mask(params), params, changed
    )


def running_mean(
    average: Transformer | None, ema: float | Float[Array, ""] | None, step: Int[Array, ""], params: Transformer
) -> Transformer | None:
    """Return the average with the weights after step t = 1, 2 …: Σ_i ema^(t−i) w_i / Σ_i ema^(t−i).

    It is a mean from the first step on. None without `Training.ema`. Running statistics of a BatchNorm are averaged
    like weights.

    Args:
      step: number of steps before this one.
    """
    if ema is None or average is None:
        return None
    ema = jnp.asarray(ema)
    past = jnp.where(step > 0, -jnp.expm1(step * jnp.log1p(ema - 1)), 0.0)  # 1 - ema^t loses its digits for ema near 1
    share = (1 - ema) / (1 - ema + ema * past)
    return jax.tree.map(lambda mean, new: (1 - share) * mean + share * new, average, params)
