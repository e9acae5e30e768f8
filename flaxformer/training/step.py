"""One training step: a pure function of state, run and batch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from flaxformer import model
from flaxformer.component import Aux, changed_weights
from flaxformer.model.layout import Layout
from flaxformer.model.transformer import ModelOutput
from flaxformer.params import fold_in_name
from flaxformer.pytree import Node
from flaxformer.sharding import cuts_batch_alone
from flaxformer.struct import UserError
from flaxformer.tasks.base import AnyBatch, Batch, Source, concat_parts
from flaxformer.training.micro_batches import micro_batches, separable
from flaxformer.training.precision import cast_inputs, cast_params
from flaxformer.training.run import Run
from flaxformer.training.schedule import learning_rate
from flaxformer.weight_axes import trained_mask

ALIVE = -1


class TrainState(Node):
    """State of a training run between two steps."""

    step: Int[Array, ""]
    params: Any
    optimizer: optax.OptState
    diverged_at: Int[Array, ""]
    """The step whose loss or gradient was not finite, after which nothing changes; −1 while alive."""
    average: Any = None
    """The running mean of the weights after each step, under `Training.ema`; before the first, the weights."""


def start(run: Run, layout: Layout = "unrolled") -> TrainState:
    """The state before the first step."""
    params = model.init(jax.random.key(run.seed), run.model, layout)
    moments = run.optimizer.transformation(0.0).init(params)
    # A copy, so that both may be donated.
    average = None if run.training.ema is None else jax.tree.map(jnp.copy, params)
    return TrainState(
        step=jnp.int32(0), params=params, optimizer=moments, diverged_at=jnp.int32(ALIVE), average=average
    )


def forward(
    params: Any, run: Run, batch: Batch, dropout_key: Array | None = None, return_intermediates: bool = False
) -> ModelOutput:
    """One call of the model on a batch, in the precision of the run and with its `remat`; the answer is float32."""
    precision = run.training.precision
    inputs, given = cast_inputs((batch.inputs, batch.given), precision)
    return model.run(
        cast_params(params, precision),
        run.model,
        inputs,
        given,
        dropout_key=dropout_key,
        return_intermediates=return_intermediates,
        remat=run.training.remat,
    )


def summed_loss(
    params: Any, run: Run, batch: AnyBatch, dropout_key: Array | None, return_intermediates: bool = False
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ModelOutput]]:
    """Return the training loss as a sum over the scored targets; their count, and the result of the forward pass.

    The head's loss, and the losses of its components (`Aux.losses`), which are means, times the count. Of the buckets
    of a batch, the sums of each, with draws of dropout of its own; the result is then the last one's.
    """
    if isinstance(batch, tuple):
        keys = [None] * len(batch) if dropout_key is None else jax.random.split(dropout_key, len(batch))
        found = [summed_loss(params, run, part, key) for part, key in zip(batch, keys, strict=True)]
        return sum(total for total, _ in found), (sum(count for _, (count, _) in found), found[-1][1][1])  # type: ignore[return-value]
    outcome = forward(params, run, batch, dropout_key, return_intermediates)
    total, count = run.model.head.training_loss(
        outcome.output, outcome.aux, batch.targets, batch.weights, run.training.label_smoothing
    )
    for further in outcome.aux.losses.values():
        total = total + count * further
    for term in run.loss_terms:
        value, size = term.value(params, outcome, batch)
        total = total + term.weight * value * count / jnp.maximum(size, 1)
    return total, (count, outcome)


def loss(
    params: Any, run: Run, batch: AnyBatch, dropout_key: Array | None, return_intermediates: bool = False
) -> tuple[Float[Array, ""], ModelOutput]:
    """`summed_loss` divided by the count: the mean over the scored targets, and the result of the forward pass."""
    total, (count, outcome) = summed_loss(params, run, batch, dropout_key, return_intermediates)
    return total / jnp.maximum(count, 1), outcome


def train_step(state: TrainState, run: Run, batch: AnyBatch) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """One optimiser step; metrics are the loss (nats), the global gradient norm and the learning rate.

    A step whose loss or gradient is not finite changes nothing, is recorded in `diverged_at`, and is the last one
    that could have: the run is frozen from there on, and its neighbours in a mapped group are not touched.
    """
    value, gradient, outcome = backward(state, run, batch)
    return apply_gradients(state, run, value, gradient, outcome.aux)


def backward(
    state: TrainState, run: Run, batch: AnyBatch, return_intermediates: bool = False
) -> tuple[Float[Array, ""], Any, ModelOutput]:
    """The loss of the next step, its gradient (0 at what no gradient trains), and the result of the forward pass.

    With `return_intermediates`, the batch is computed in one piece, whatever its micro-batches and buckets.
    """
    dropout_key = jax.random.fold_in(fold_in_name(jax.random.key(run.seed), "dropout"), state.step)
    if not return_intermediates and (micro_batches(run) > 1 or isinstance(batch, tuple) or _by_device(run)):
        value, gradient = accumulated(state.params, run, batch, dropout_key)
        outcome = ModelOutput(output=None)  # type: ignore[arg-type]
    else:
        of = jax.value_and_grad(loss, has_aux=True)
        (value, outcome), gradient = of(state.params, run, concat_parts(batch), dropout_key, return_intermediates)
    trained = trained_mask(state.params, run.model)
    return value, jax.tree.map(lambda g, own: g if own else jnp.zeros_like(g), gradient, trained), outcome


def accumulated(params: Any, run: Run, batch: AnyBatch, dropout_key: Array) -> tuple[Float[Array, ""], Any]:
    """`loss` and its gradient, micro-batch by micro-batch: sums over each, divided once by the count of them all.

    Micro-batch i of n has the examples i, i + n, i + 2n …, so that each device of a sharded batch has its share of it;
    of a batch in buckets, those of each bucket.
    """
    sums: Any = functools.partial(_sums, run, micro_batches(run))
    if _by_device(run):
        # Each device adds up its own examples, and they tell each other once a step; the compiler, left to itself,
        # has them tell each other at every micro-batch.
        alone = sums

        def on_each_device(params: Any, batch: AnyBatch, key: Array) -> Any:
            own_key = jax.random.fold_in(key, jax.lax.axis_index("data"))
            return jax.lax.psum(alone(params, batch, own_key), "data")

        sums = jax.shard_map(
            on_each_device,
            in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    total, count, gradient = sums(params, batch, dropout_key)
    count = jnp.maximum(count, 1)
    return total / count, jax.tree.map(lambda g: g / count, gradient)


def _by_device(run: Run) -> bool:
    """True if the devices can sum over their examples each for itself: they have whole weights, and share no draws."""
    return cuts_batch_alone() and separable(run)


def _sums(run: Run, parts: int, params: Any, batch: AnyBatch, dropout_key: Array) -> tuple[Array, Array, Any]:
    """The summed loss, what it is summed over, and its gradient, of a batch in so many parts."""
    split = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1), batch)

    def body(sums: Any, part: Any) -> tuple[Any, None]:
        own, index = part
        key = jax.random.fold_in(dropout_key, index)
        (total, (count, found)), gradient = jax.value_and_grad(summed_loss, has_aux=True)(params, run, own, key)
        if found.aux.weights:
            raise UserError(
                f"the forward pass changes {next(iter(found.aux.weights))}, and the batch is computed in parts; "
                "expected mixes_batch = True in the class of that component"
            )
        return jax.tree.map(jnp.add, sums, (total, count, gradient)), None

    zeros = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    (total, count, gradient), _ = jax.lax.scan(body, zeros, (split, jnp.arange(parts)))
    return total, count, gradient


def apply_gradients(
    state: TrainState, run: Run, value: Float[Array, ""], gradient: Any, aux: Aux
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """The other half of `train_step`: the state after a loss and a gradient, and the metrics.

    `aux` has the weights that the forward pass itself changed, such as running statistics.
    """
    trained = trained_mask(state.params, run.model)
    rate = learning_rate(run.optimizer, state.step, run.training.steps)
    norm = optax.tree.norm(gradient)

    updates, moments = run.optimizer.transformation(rate).update(gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    # What no gradient trains keeps its bits, unless the forward pass changed it.
    params = jax.tree.map(lambda new, old, own: new if own else old, params, state.params, trained)
    params = changed_weights(params, aux.weights)
    alive = state.diverged_at == ALIVE
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    params, moments, average = jax.tree.map(
        lambda new, old: jnp.where(alive & finite, new, old),
        (params, moments, averaged(state, run, params)),
        (state.params, state.optimizer, state.average),
    )
    diverged_at = jnp.where(alive & ~finite, state.step, state.diverged_at)
    state = TrainState(step=state.step + 1, params=params, optimizer=moments, diverged_at=diverged_at, average=average)
    return state, {"loss": value, "gradient_norm": norm, "learning_rate": rate}


def averaged(state: TrainState, run: Run, params: Any) -> Any:
    """The average with the weights after step t = 1, 2 …: Σ_i ema^(t−i) w_i / Σ_i ema^(t−i), a mean from the first on.

    None where none is kept. Running statistics of a BatchNorm are averaged like weights.
    """
    ema = run.training.ema
    if ema is None:
        return None
    past = 1 - jnp.power(ema, state.step)
    own = (1 - ema) / (1 - ema + ema * past)
    return jax.tree.map(lambda mean, new: (1 - own) * mean + own * new, state.average, params)


def evaluation_params(state: TrainState, run: Run) -> Any:
    """The weights to evaluate, to sample from and to publish: those that train, or the mean that the run keeps."""
    if state.average is not None:
        return state.average
    mean = run.optimizer.averaged(state.optimizer, state.params)
    trained = trained_mask(state.params, run.model)
    return jax.tree.map(lambda own, other, train: other if train else own, state.params, mean, trained)


def train_chunk(
    state: TrainState, run: Run, source: Source, steps: int
) -> tuple[TrainState, dict[str, Float[Array, " steps"]]]:
    """Run `steps` training steps in one scan; the division of a run into chunks does not change the result."""
    key = fold_in_name(jax.random.key(run.seed), "data")

    def body(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        return train_step(state, run, source.batch(key, state.step))

    return jax.lax.scan(body, state, length=steps)


def evaluate(params: Any, run: Run, source: Source) -> dict[str, Float[Array, ""]]:
    """Mean loss over the fixed evaluation set, without dropout or label smoothing; and accuracy, where there is one."""

    def one(batch: Batch) -> dict[str, tuple[Array, Array]]:
        output = forward(params, run, batch).output
        head = run.model.head
        found = {"validation_loss": head.loss(output, batch.targets, batch.weights)}
        if (right := head.accuracy(output, batch.targets, batch.weights)) is not None:
            found["validation_accuracy"] = right
        return found

    sums = jax.tree.map(jnp.sum, jax.lax.map(one, source.evaluation()))
    return {name: total / count for name, (total, count) in sums.items()}
