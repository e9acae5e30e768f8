"""One training step: a pure function of state, run and batch."""

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from flaxformer import model
from flaxformer.model.transformer import Layout, Transformer
from flaxformer.nn.losses import correct, cross_entropy
from flaxformer.params import stream
from flaxformer.tasks.base import Batch, Source
from flaxformer.training.optimizer import learning_rate, optimizer
from flaxformer.training.run import Run

ALIVE = -1


class State(flax.struct.PyTreeNode):
    """What a training run is between two steps."""

    step: Int[Array, ""]
    params: Transformer
    optimizer: optax.OptState
    diverged_at: Int[Array, ""]
    """The step whose loss or gradient was not finite, after which nothing changes; −1 while alive."""


def start(run: Run, layout: Layout = "unrolled") -> State:
    """The state before the first step."""
    params = model.init(jax.random.key(run.seed), run.model, layout)
    moments = optimizer(run.optimizer, 0.0).init(params)
    return State(step=jnp.int32(0), params=params, optimizer=moments, diverged_at=jnp.int32(ALIVE))


def loss(params: Transformer, run: Run, batch: Batch, dropout_key: Array | None) -> Float[Array, ""]:
    """Mean cross-entropy in nats over the scored tokens."""
    logits = model.apply(params, run.model, batch.inputs, dropout_key=dropout_key)
    total, count = cross_entropy(logits, batch.targets, batch.weights, label_smoothing=run.training.label_smoothing)
    return total / jnp.maximum(count, 1)


def train_step(state: State, run: Run, batch: Batch) -> tuple[State, dict[str, Float[Array, ""]]]:
    """One optimiser step; metrics are the loss (nats), the global gradient norm and the learning rate.

    A step whose loss or gradient is not finite changes nothing, is recorded in `diverged_at`, and is the last one
    that could have: the run is frozen from there on, and its neighbours in a mapped group are not touched.
    """
    dropout_key = jax.random.fold_in(stream(jax.random.key(run.seed), "dropout"), state.step)
    value, gradient = jax.value_and_grad(loss)(state.params, run, batch, dropout_key)
    rate = learning_rate(run.optimizer, state.step, run.training.steps)
    norm = optax.tree.norm(gradient)

    updates, moments = optimizer(run.optimizer, rate).update(gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    alive = state.diverged_at == ALIVE
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    params, moments = jax.tree.map(
        lambda new, old: jnp.where(alive & finite, new, old), (params, moments), (state.params, state.optimizer)
    )
    diverged_at = jnp.where(alive & ~finite, state.step, state.diverged_at)
    state = State(step=state.step + 1, params=params, optimizer=moments, diverged_at=diverged_at)
    return state, {"loss": value, "gradient_norm": norm, "learning_rate": rate}


def train_chunk(state: State, run: Run, source: Source, steps: int) -> tuple[State, dict[str, Float[Array, " steps"]]]:
    """`steps` training steps under one scan, on the device; how steps are cut into chunks changes no bit."""
    key = stream(jax.random.key(run.seed), "data")

    def body(state: State, _: None) -> tuple[State, dict[str, Array]]:
        return train_step(state, run, source.batch(key, state.step))

    return jax.lax.scan(body, state, length=steps)


def evaluate(params: Transformer, run: Run, source: Source) -> dict[str, Float[Array, ""]]:
    """Mean loss (nats) and accuracy over the fixed evaluation set, without dropout or label smoothing."""

    def one(batch: Batch) -> tuple[Array, Array, Array]:
        logits = model.apply(params, run.model, batch.inputs)
        total, count = cross_entropy(logits, batch.targets, batch.weights)
        return total, correct(logits, batch.targets, batch.weights)[0], count

    total, right, count = jax.tree.map(jnp.sum, jax.lax.map(one, source.evaluation()))
    return {"validation_loss": total / count, "validation_accuracy": right / count}
