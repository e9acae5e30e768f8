"""Adapters, frozen weights and factors of rates: against dense formulas in numpy, for several architectures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import GRU, Attention, Gated, LanguageModel
from flaxformer.config import Block, ModelConfig
from flaxformer.core.params import AdaptedWeight, path_name
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import (
    SGD,
    Adafactor,
    AdamW,
    Adapter,
    Lamb,
    Lion,
    LoRA,
    Muon,
    Rate,
    Run,
    ScheduleFree,
    Training,
    evaluation_params,
    merge,
    start,
    train_step,
)
from flaxformer.training.loss import loss

TASK = Copy(symbols=5, length=3, batch_size=2, evaluation_batches=1)
ATTENTION = Attention(heads=2, key_value_heads=1, d_head=3)
MODELS = {
    "decoder": ModelConfig(vocabulary=6, layers=2, d_model=5, attention=ATTENTION, feed_forward=Gated(d_ff=7)),
    "recurrent and attention": ModelConfig(
        vocabulary=6,
        layers=2,
        d_model=5,
        attention=ATTENTION,
        pattern=(Block(attention=GRU()), Block(attention=ATTENTION)),
    ),
    "encoder": ModelConfig(vocabulary=6, layers=1, d_model=5, attention=ATTENTION).with_encoder(layers=1),
    "tied": ModelConfig(vocabulary=6, layers=1, d_model=5, attention=ATTENTION, head=LanguageModel(tied=True)),
}
MATRICES = ("*/attention/query", "*/attention/out", "*/attention/input", "embedding/tokens", "*/feed_forward/up")


def run_of(config=MODELS["decoder"], **changes):
    training = changes.pop("training", Training(steps=3))
    task = TASK if config.encoder is None else TASK.replace(form="paired")
    return Run(model=config, task=task, **({"optimizer": AdamW(learning_rate=0.05)} | changes), training=training)


def lora(config, **changes):
    """LoRA on those of `MATRICES` that the model has."""
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model.specs(config))]
    own = tuple(name for name in MATRICES if any(path.endswith(name.lstrip("*")) for path in paths))
    return LoRA(weights=own, **({"rank": 2, "alpha": 3.0} | changes))


def by_path(params):
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def with_noise(params, scale=0.3):
    """The weights with random numbers in the place of each adapter's arrays."""
    keys = iter(jax.random.split(jax.random.key(7), 1000))

    def noisy(node):
        if not isinstance(node, AdaptedWeight):
            return node
        own = {name: scale * jax.random.normal(next(keys), x.shape) for name, x in node.adapter.items()}
        return AdaptedWeight(base=node.base, adapter=own)

    return jax.tree.map(noisy, params, is_leaf=lambda node: isinstance(node, AdaptedWeight))


GRID = [
    pytest.param(name, layout, marks=() if name == "decoder" else pytest.mark.slow)
    for name in MODELS
    for layout in ("unrolled", "scanned")
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "layout"), GRID)
def test_a_new_adapter_changes_nothing(name, layout):
    config = MODELS[name]
    plain, adapted = start(run_of(config), layout), start(run_of(config, adapter=lora(config)), layout)
    merged = merge(adapted.params, lora(config))
    assert jax.tree.structure(merged) == jax.tree.structure(plain.params)
    assert any(isinstance(node, AdaptedWeight) for node in jax.tree.leaves(adapted.params, is_leaf=_is_adapted))
    jax.tree.map(np.testing.assert_array_equal, merged, plain.params)


def _is_adapted(node):
    return isinstance(node, AdaptedWeight)


def peft(weight, own, n_in, alpha, rank):
    """Merged weight as PEFT computes it, for a torch Linear [n_out, n_in]: W + (α / r) lora_B lora_A."""
    linear = weight.reshape(n_in, -1).T
    lora_a, lora_b = own["A"].T, own["B"].T
    return (linear + alpha / rank * (lora_b @ lora_a)).T.reshape(weight.shape)


@pytest.mark.long
@pytest.mark.parametrize(("name", "layout"), GRID)
def test_merged_weights_equal_the_formula_for_linear_layers(name, layout):
    config = MODELS[name]
    adapter = lora(config)
    params = with_noise(start(run_of(config, adapter=adapter), layout).params)
    merged = merge(params, adapter)
    specs = model.specs(config)
    fan_in = {path_name(path): spec.fan_in for path, spec in jax.tree_util.tree_leaves_with_path(specs)}
    unrolled = by_path(with_layout(merged, "unrolled"))
    arrays = by_path(with_layout(params, "unrolled"))
    adapted = sorted(path.removesuffix("/base") for path in arrays if path.endswith("/base"))
    assert len(adapted) >= 3
    for path in adapted:
        base, own = arrays[f"{path}/base"], {name: arrays[f"{path}/adapter/{name}"] for name in "AB"}
        n_in = len(base) if path == "embedding/tokens" else fan_in[path]
        np.testing.assert_allclose(unrolled[path], peft(base, own, n_in, 3.0, 2), rtol=1e-5, atol=1e-6)
    for path in set(unrolled) - set(adapted):
        np.testing.assert_array_equal(unrolled[path], arrays[path])


@pytest.mark.slow
def test_gradients_of_an_adapter_follow_the_chain_rule():
    """With D = ∂loss/∂W at the merged weights: ∂loss/∂A = (α/r) D Bᵀ and ∂loss/∂B = (α/r) Aᵀ D."""
    config = MODELS["decoder"]
    adapter = lora(config)
    run = run_of(config, adapter=adapter)
    params = with_noise(start(run).params)
    batch = TASK.load().batch(jax.random.key(1), 0)
    gradient = jax.grad(lambda own: loss(own, run, batch, None)[0])(params)
    dense = jax.grad(lambda own: loss(own, run_of(config), batch, None)[0])(merge(params, adapter))
    for layer in range(2):
        node, found = params.blocks[layer].attention.query, gradient.blocks[layer].attention.query
        full = np.asarray(dense.blocks[layer].attention.query).reshape(5, -1)
        a, b = np.asarray(node.adapter["A"]), np.asarray(node.adapter["B"])
        np.testing.assert_allclose(found.adapter["A"], 1.5 * full @ b.T, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.adapter["B"], 1.5 * a.T @ full, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found.base, 0)


OPTIMIZERS = [SGD(), AdamW(), Lion(), Lamb(), Adafactor(factored_from=2), Muon(), ScheduleFree()]


def trained(run, layout="unrolled", steps=2):
    """State before training and after some steps."""
    source, state = TASK.load(), start(run, layout)
    step = jax.jit(train_step)
    after = state
    for number in range(steps):
        after, metrics = step(after, run, source.batch(jax.random.key(3), number))
    assert np.isfinite(metrics["loss"])
    return state, after


@pytest.mark.long
@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(one, marks=() if isinstance(one, AdamW) else pytest.mark.slow) for one in OPTIMIZERS],
    ids=lambda one: type(one).__name__,
)
def test_frozen_weights_keep_their_bits_and_have_no_moments(optimizer):
    optimizer = optimizer.replace(learning_rate=0.1, weight_decay=0.5)
    adapter = LoRA(weights=("blocks/*/attention/query",), rank=2, trained=("head/*",))
    for run, is_trained in [
        (run_of(optimizer=optimizer, adapter=adapter), lambda path: path.startswith("head/") or "/adapter/" in path),
        (
            run_of(optimizer=optimizer, training=Training(steps=3, freeze=("embedding/*", "blocks/0/*"))),
            lambda path: not path.startswith(("embedding/", "blocks/0/")),
        ),
    ]:
        before, after = trained(run)
        weights, own = by_path(before.params), by_path(after.params)
        assert {path for path in own if (own[path] != weights[path]).any()} == set(filter(is_trained, own))
        moments = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(after.optimizer)]
        frozen = [path for path in own if not is_trained(path)]
        assert frozen
        assert not [name for name in moments if any(name.endswith(f"/{path}") for path in frozen)]
        assert jax.tree.structure(evaluation_params(after, run)) == jax.tree.structure(start(run_of()).params)


@pytest.mark.slow
def test_layouts_train_alike():
    weights = ("blocks/*/attention/query", "blocks/*/attention/out")
    run = run_of(adapter=LoRA(weights=weights, rank=2, trained=("head/*",)))
    one, other = trained(run)[1].params, trained(run, "scanned")[1].params
    assert not isinstance(other.blocks, tuple)
    other = with_layout(other, "unrolled")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), one, other)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    "changes",
    [
        {"training": Training(steps=3, freeze=("blocks/1/*",))},
        {"training": Training(steps=3, rates=(Rate(weights=("blocks/0/attention/*",), factor=0.5),))},
        {"adapter": LoRA(weights=("blocks/1/attention/query",), rank=2)},
    ],
    ids=["freeze", "rates", "adapter"],
)
def test_layers_that_are_trained_differently_are_not_stacked(changes):
    state = start(run_of(**changes), "scanned")
    assert isinstance(state.params.blocks, tuple)


@pytest.mark.long
@pytest.mark.parametrize("layout", [pytest.param("unrolled", marks=pytest.mark.slow), "scanned"])
def test_a_factor_scales_the_update_and_its_weight_decay(layout):
    optimizer = SGD(learning_rate=0.1, momentum=0.0, weight_decay=0.3, decay="constant")
    rates = (Rate(weights=("blocks/*/feed_forward/*",), factor=0.25), Rate(weights=("head/*",), factor=0.0))
    plain = trained(run_of(optimizer=optimizer), layout, steps=1)
    scaled = trained(run_of(optimizer=optimizer, training=Training(steps=3, rates=rates)), layout, steps=1)
    before = by_path(plain[0].params)
    whole, part = (
        {path: x - before[path] for path, x in by_path(state.params).items()} for _, state in (plain, scaled)
    )
    for path in before:
        factor = 0.25 if "/feed_forward/" in path else 0.0 if path.startswith("head/") else 1.0
        np.testing.assert_allclose(part[path], factor * whole[path], rtol=1e-3, atol=1e-7)


class Scale(Adapter):
    """Each output of a matrix times a trained number, 1 at first (a form of IA³, Liu et al. 2022)."""

    def init(self, key, weight):
        return {"scale": jnp.ones(weight.shape[1])}

    def apply(self, weight, own):
        return weight * own["scale"][None]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_an_adapter_of_ones_own_is_trained(layout):
    run = run_of(adapter=Scale(weights=("blocks/*/feed_forward/up",)))
    before, after = trained(run, layout)
    plain = start(run_of(), layout)
    jax.tree.map(np.testing.assert_array_equal, merge(before.params, run.adapter), plain.params)
    changed = {path for path, x in by_path(after.params).items() if (x != by_path(before.params)[path]).any()}
    assert changed
    assert all(path.endswith("feed_forward/up/adapter/scale") for path in changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": Training(freeze=("embeding/*",))}, r"training.freeze has 'embeding/\*', which matches no weight"),
        ({"training": Training(freeze=("*",))}, "which freezes every weight; expected one that is trained"),
        (
            {"training": Training(rates=(Rate(weights=("hed/*",), factor=2.0),))},
            r"training.rates.0.weights has 'hed/\*', .* a pattern of: embedding/tokens, blocks/\*/attention_connection",
        ),
        (
            {"training": Training(rates=(Rate(weights=("head/*",), factor=2.0), Rate(weights=("*",), factor=3.0)))},
            "training.rates gives head/matrix two factors; expected at most one",
        ),
        ({"adapter": LoRA(weights=("x",))}, "adapter.weights has 'x', which matches no weight"),
        (
            {"adapter": LoRA(weights=("head/matrix",)), "training": Training(freeze=("head/*",))},
            "training.freeze and adapter.weights match head/matrix; expected one",
        ),
        (
            {
                "optimizer": ScheduleFree(),
                "training": Training(rates=(Rate(weights=("head/*",), factor=2.0),)),
            },
            "training.rates is given with ScheduleFree",
        ),
    ],
)
def test_patterns_that_have_no_meaning_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        run_of(**changes)


def test_an_adapter_of_a_vector_is_refused():
    with pytest.raises(UserError, match=r"adapter.weights matches blocks/\*/attention/query_bias, .* are not matrices"):
        run_of(adapter=LoRA(weights=("blocks/*/attention/query*",)))
