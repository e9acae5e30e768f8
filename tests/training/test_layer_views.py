"""Updates of an optimizer do not depend on the layout of layers, and it knows what each weight is for."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer.components import Attention, Dense, Gated, LanguageModel, LearnedPositions, ReZero, RMSNorm
from flaxformer.components.component import Aux
from flaxformer.config import Block, ModelConfig
from flaxformer.core.struct import leaf
from flaxformer.model import init
from flaxformer.model.weights import stack_as, with_layout
from flaxformer.tasks import Copy
from flaxformer.training import (
    SGD,
    Adafactor,
    AdamW,
    Lamb,
    Muon,
    Optimizer,
    Run,
    Training,
    per_layer,
    start,
    weight_axes,
)
from flaxformer.training.step import apply_gradients

BASE = ModelConfig(vocabulary=5, layers=3, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=6))
MODELS = {
    "stacked": BASE,
    "periods": BASE.replace(layers=4, pattern=(Block(), Block(feed_forward=Gated(d_ff=5)))),
    "encoder": BASE.with_encoder(layers=2),
}


def norm(x):
    return jnp.sqrt(jnp.square(x).sum())


class TrustRatio(Optimizer):
    """g · |w| / |g| of each array (You et al. 2017)."""

    def direction(self) -> optax.GradientTransformation:
        def scale(updates: Any, params: Any) -> Any:
            return jax.tree.map(lambda g, w: g * norm(w) / (norm(g) + 1e-6), updates, params)

        return optax.stateless(scale)


class MatricesOnly(Optimizer):
    """Normalised arrays of two and more axes; all others stay."""

    def direction(self) -> optax.GradientTransformation:
        return optax.stateless(
            lambda updates, params: jax.tree.map(lambda g: g / norm(g) if g.ndim > 1 else 0 * g, updates)
        )


class AllTogether(Optimizer):
    """The gradient divided by the sum of the norms of all arrays, with momentum."""

    def direction(self) -> optax.GradientTransformation:
        def scale(updates: Any, params: Any) -> Any:
            total = sum(norm(g) for g in jax.tree.leaves(updates))
            return jax.tree.map(lambda g: g / total, updates)

        return optax.chain(optax.stateless(scale), optax.trace(0.9))


class Clipped(AdamW):
    """Adam's step, at most as long as √(number of entries) / 2 in each array."""

    def direction(self) -> optax.GradientTransformation:
        return optax.chain(super().direction(), optax.clip_by_block_rms(0.5))


class Mapped(Optimizer):
    """As `TrustRatio`, mapped over the layers."""

    layers: ClassVar[Any] = "mapped"
    direction = TrustRatio.__dict__["direction"].__wrapped__


class Later(SGD):
    """A trust ratio after weight decay, as in LAMB."""

    def decayed_direction(self, scales: Any) -> list[optax.GradientTransformation]:
        return [*super().decayed_direction(scales), per_layer(optax.scale_by_trust_ratio())]


class ByKind(Optimizer):
    """Matrices of queries and keys move by the sign, norms stay, the rest moves by the gradient."""

    scale: float = leaf(0.5)

    def direction(self) -> optax.GradientTransformation:
        def label(params: Any) -> Any:
            names = {"query": "sign", "key": "sign", "norm": "zero"}
            return jax.tree.map(lambda own: names.get(own.kind, "rest"), weight_axes(params))

        rules = {"sign": optax.scale_by_sign(), "zero": optax.set_to_zero(), "rest": optax.scale(self.scale)}
        return optax.partition(rules, label)


OPTIMIZERS = [
    TrustRatio(), MatricesOnly(), AllTogether(), Clipped(), Mapped(), Later(weight_decay=0.1), ByKind(),
    AdamW(weight_decay=0.1), Lamb(weight_decay=0.1), Adafactor(factored_from=4), Muon(iterations=2),
    TrustRatio(moment_dtype="bfloat16"),
]  # fmt: skip
QUICK = {TrustRatio, AllTogether, Clipped, ByKind, Lamb}


def gradients(params, seed):
    dice = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(dice.standard_normal(x.shape) * dice.uniform(0.1, 3), jnp.float32), params
    )


@pytest.mark.every(28, "long")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(one, id=type(one).__name__, marks=() if type(one) in QUICK else pytest.mark.slow)
        for one in OPTIMIZERS
    ],
)
def test_updates_are_equal_in_both_layouts(optimizer, name):
    task = Copy(symbols=4, length=3, batch_size=2, evaluation_batches=1)
    run = Run(model=BASE, task=task, optimizer=optimizer.replace(learning_rate=0.1), training=Training(steps=4))
    run = run.replace(model=MODELS["stacked"])
    params = init(jax.random.key(0), MODELS[name])
    found = {}
    for layout in ("unrolled", "scanned"):
        weights = with_layout(jax.tree.map(lambda x: x + 0.1, params), layout)
        chain = run.optimizer.transformation(0.1)
        state = chain.init(weights)
        for seed in range(2):
            updates, state = chain.update(with_layout(gradients(params, seed), layout), state, weights)
            weights = optax.apply_updates(weights, updates)
        found[layout] = with_layout(weights, "unrolled")
    for one, other in zip(jax.tree.leaves(found["unrolled"]), jax.tree.leaves(found["scanned"]), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_norm_per_array_is_that_of_one_layer():
    params = with_layout(init(jax.random.key(0), BASE), "scanned")
    direction, gradient = TrustRatio().direction(), gradients(params, 0)
    updates, _ = direction.update(gradient, direction.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    for layer in range(3):
        w, g = (np.asarray(tree.blocks.attention.query[layer], np.float64) for tree in (params, gradient))
        expected = g * np.sqrt((w**2).sum()) / np.sqrt((g**2).sum())
        np.testing.assert_allclose(updates.blocks.attention.query[layer], expected, rtol=1e-5)


def test_the_layout_of_a_run_does_not_change_training():
    task = Copy(symbols=4, length=3, batch_size=2, evaluation_batches=1)
    run = Run(model=BASE, task=task, optimizer=TrustRatio(learning_rate=0.1, clip=1.0), training=Training(steps=4))
    found = []
    for layout in ("unrolled", "scanned"):
        state = start(run, layout)
        gradient = with_layout(gradients(with_layout(state.params, "unrolled"), 3), layout)
        state, _ = jax.jit(lambda state, gradient: apply_gradients(state, run, jnp.float32(1), gradient, Aux()))(
            state, gradient
        )
        found.append(with_layout(state.params, "unrolled"))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_tree_is_stacked_as_another(name):
    params = init(jax.random.key(0), MODELS[name])
    scanned = with_layout(params, "scanned")
    again = stack_as(params, scanned)
    assert jax.tree.structure(again) == jax.tree.structure(scanned)
    jax.tree.map(np.testing.assert_array_equal, again, scanned)


def test_each_weight_has_a_kind_and_a_path():
    config = BASE.replace(
        attention=Attention(heads=2, query_key_norm=RMSNorm()), feed_forward=Gated(d_ff=6), residual=ReZero(),
        positions=LearnedPositions(max_length=9), head=LanguageModel(transform="relu"),
    )  # fmt: skip
    params = init(jax.random.key(0), config.replace(layers=2))
    found = {own.path: own.kind for own in jax.tree.leaves(weight_axes(params), is_leaf=lambda x: hasattr(x, "kind"))}
    block = "blocks/1/"
    expected = {
        "embedding/tokens": "embedding", "positions/table": "positions", "final_norm/gain": "norm",
        "head/matrix": "head", "head/transform/matrix": "head", "head/transform/norm/gain": "norm",
        f"{block}attention/query": "query", f"{block}attention/key": "key", f"{block}attention/value": "value",
        f"{block}attention/out": "out", f"{block}attention/out_bias": "out_bias",
        f"{block}attention/key_norm/gain": "norm",
        f"{block}feed_forward/up": "up", f"{block}feed_forward/gate": "gate", f"{block}feed_forward/down": "down",
        f"{block}attention_connection/pre/gain": "norm", f"{block}attention_connection/residual/gain": "residual",
    }  # fmt: skip
    assert {path: found[path] for path in expected} == expected
    stacked = weight_axes(with_layout(params, "scanned")).blocks.attention.query
    assert (stacked.path, stacked.kind, stacked.names[0]) == ("blocks/attention/query", "query", "layers")
