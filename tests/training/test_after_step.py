"""Projections of weights after a step, and schedules that see the loss, against numpy and Optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

from flaxformer.checkpoint.host_arrays import copy_from_host, copy_to_host
from flaxformer.components import Attention, Dense, Gated, NoPositions, RMSNorm
from flaxformer.components.component import Aux
from flaxformer.config import Block, ModelConfig
from flaxformer.core.struct import leaf, static
from flaxformer.model.weights import with_layout
from flaxformer.tasks import Copy
from flaxformer.training import SGD, AdamW, Constant, Run, Schedule, Training, start, train_chunk, weight_axes
from flaxformer.training.step import apply_gradients

TASK = Copy(symbols=4, length=3, batch_size=4, evaluation_batches=1)


def unit(x, axis):
    return x / jnp.sqrt(jnp.square(x).sum(axis, keepdims=True))


class Sphere(Dense):
    """Columns of W_1 and rows of W_2 have length 1 (nGPT)."""

    def after_step(self, weights: Any) -> Any:
        return weights.replace(up=unit(weights.up, 0), down=unit(weights.down, 1))


class Bounded(RMSNorm):
    """Gains are at most 0.9."""

    def after_step(self, weights: Any) -> Any:
        return weights.replace(gain=jnp.minimum(weights.gain, 0.9))


class OnSpheres(SGD):
    """Gradient descent after which each row of the maps of queries and keys has length 1."""

    def after_step(self, params: Any) -> Any:
        def project(w: Array, own: Any) -> Array:
            assert own.names[0] != "layers"
            return unit(w, 0) if own.kind in ("query", "key") else w

        return jax.tree.map(project, params, weight_axes(params))


BASE = ModelConfig(
    vocabulary=5, layers=4, d_model=8, attention=Attention(heads=2), feed_forward=Sphere(d_ff=6),
    norm_kind=Bounded(), positions=NoPositions(),
)  # fmt: skip
MODELS = {
    "same layers": BASE,
    "periods": BASE.replace(pattern=(Block(feed_forward=Gated(d_ff=5)), Block())),
    "encoder": BASE.replace(layers=1).with_encoder(layers=2),
}


def gradients(params):
    dice = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(dice.standard_normal(x.shape), jnp.float32), params)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_projected_after_each_step(name):
    model, form = MODELS[name], "paired" if name == "encoder" else "joined"
    run = Run(
        model=model, task=TASK.replace(form=form),
        optimizer=OnSpheres(learning_rate=0.1, momentum=0.0, decay=Constant()),
        training=Training(steps=5),
    )  # fmt: skip
    found = []
    for layout in ("unrolled", "scanned"):
        state = start(run, layout)
        gradient = with_layout(gradients(with_layout(state.params, "unrolled")), layout)
        after, _ = jax.jit(lambda state, g: apply_gradients(state, run, jnp.float32(1), g, Aux()))(state, gradient)
        found.append(with_layout(after.params, "unrolled"))
        if layout == "unrolled":
            first, g = state.params, gradient
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for layer in (1, 3) if name == "periods" else range(len(found[0].blocks)):
        before, own, now = (tree.blocks[layer] for tree in (first, g, found[0]))

        def moved(part, name, before=before, own=own):
            w, gradient = (np.asarray(getattr(getattr(tree, part), name), np.float64) for tree in (before, own))
            return w - 0.1 * gradient

        up, query, value = moved("feed_forward", "up"), moved("attention", "query"), moved("attention", "value")
        np.testing.assert_allclose(now.feed_forward.up, up / np.sqrt((up**2).sum(0)), atol=1e-6)
        np.testing.assert_allclose(now.attention.query, query / np.sqrt((query**2).sum(0)), atol=1e-6)
        np.testing.assert_allclose(now.attention.value, value, atol=1e-6)
        np.testing.assert_allclose(np.square(before.feed_forward.down).sum(1), 1, atol=1e-5)  # from the start on
        assert float(now.attention_connection.pre.gain.max()) <= 0.9
    assert float(found[0].final_norm.gain.max()) <= 0.9


def test_frozen_weights_are_not_projected():
    run = Run(
        model=BASE, task=TASK, optimizer=SGD(learning_rate=0.1),
        training=Training(steps=5, freeze=("blocks/*/feed_forward/*",)),
    )  # fmt: skip
    state = start(run)
    assert not np.allclose(np.square(state.params.blocks[0].feed_forward.up).sum(0), 1, atol=1e-3)


class Plateau(Schedule):
    """The factor falls to `share` of itself after `patience` steps without a lower loss."""

    share: float = leaf(0.5, above=0, below=1)
    patience: int = static(3, at_least=1)

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Array:
        return jnp.ones_like(progress)

    def init_state(self) -> dict[str, Array]:
        return {"factor": jnp.float32(1), "lowest": jnp.float32(jnp.inf), "waited": jnp.int32(0)}

    def observe(self, state: dict[str, Array], loss: Float[Array, ""], step: Any) -> dict[str, Array]:
        is_lower = loss < state["lowest"]
        waited = jnp.where(is_lower, 0, state["waited"] + 1)
        is_over = waited == self.patience
        factor = jnp.where(is_over, self.share * state["factor"], state["factor"])
        return {
            "factor": factor, "lowest": jnp.minimum(loss, state["lowest"]), "waited": jnp.where(is_over, 0, waited)
        }  # fmt: skip

    def factor(self, state: dict[str, Array]) -> Array:
        return state["factor"]


def plateau_run(**changes):
    model = ModelConfig(vocabulary=5, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=6))
    optimizer = AdamW(learning_rate=0.1, decay=Plateau(), warmup_steps=2)
    return Run(model=model, task=TASK, optimizer=optimizer, training=Training(steps=40)).replace(**changes)


@pytest.mark.long
def test_a_schedule_that_sees_the_loss_equals_that_of_optax():
    run = plateau_run()
    state, source = start(run), TASK.load()
    state, metrics = jax.jit(lambda state: train_chunk(state, run, source, 40))(state)
    reference = optax.contrib.reduce_on_plateau(factor=0.5, patience=3, rtol=0.0, atol=1e-9)
    own, factors = reference.init({}), []
    for value in metrics["loss"]:
        _, own = reference.update({}, own, value=value)
        factors.append(float(own.scale))
    assert len(set(factors)) > 2
    warmup = np.minimum((np.arange(40) + 1) / 2, 1)
    np.testing.assert_allclose(metrics["learning_rate"], 0.1 * warmup * np.array(factors), rtol=1e-6)
    np.testing.assert_allclose(state.schedule["factor"], factors[-1])


def test_a_run_in_two_parts_sees_the_same_losses():
    run, source = plateau_run(), TASK.load()
    steps = jax.jit(lambda state, steps: train_chunk(state, run, source, steps), static_argnums=1)
    whole, _ = steps(start(run), 40)
    first, _ = steps(start(run), 20)
    again, _ = steps(copy_from_host(start(run), copy_to_host(first)), 20)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_not_seen():
    run = plateau_run()
    state = start(run)
    gradient = jax.tree.map(jnp.zeros_like, state.params)
    after, _ = apply_gradients(state, run, jnp.float32(jnp.nan), gradient, Aux())
    assert after.schedule == state.schedule
    assert int(after.diverged_at) == 0
