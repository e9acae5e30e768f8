"""Flax modules: bitwise equal to the pure functions, and equal to Flax's attention, in both modes of NNX.

Both sides run operation by operation, which compiles each operation once for all tests, but where `jit` is the matter.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import errors, linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from flaxformer.components import Attention, BatchNorm, Classifier, Dense, Elman, LanguageModel, NoHead, RMSNorm, Tokens
from flaxformer.components.component import Aux, replace_weights
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import count, param, path_name
from flaxformer.interop import linen as in_linen
from flaxformer.interop import nnx as in_nnx
from flaxformer.model import apply, init, run, specs
from flaxformer.model.weights import with_layout
from flaxformer.nn.masks import Explicit
from flaxformer.system.errors import UserError

B, T, S, V = 2, 7, 5, 13
DECODER = ModelConfig(vocabulary=V, layers=1, d_model=12, attention=Attention(heads=3), feed_forward=Dense(d_ff=17))
ENCODER = DECODER.replace(mask_pattern="bidirectional", head=Classifier(classes=3))
CONFIGS = {"Encoder": ENCODER, "Decoder": DECODER, "EncoderDecoder": DECODER.with_encoder(feed_forward=None)}
RECURRENT = recurrent_model(Elman(), vocabulary=V, d_model=12, dropout=0.2)
NOISY = ENCODER.replace(dropout=0.3, norm_kind=BatchNorm(), inputs=Tokens(frozen=True), feed_forward=None)
QUICK = NOISY.replace(layers=0)  # dropout, statistics and a frozen table, and quickly compiled
random = np.random.default_rng(0)
TOKENS = jnp.asarray(random.integers(0, V, (B, T)))
SOURCE = jnp.asarray(random.integers(0, V, (B, S)))
ALLOWED = jnp.asarray(random.random((B, 1, T, T)) < 0.7)
PUPILS = jnp.asarray(random.integers(0, V, (11, T)))
LABELS = PUPILS[:, 0] % 2

families = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(params=["graph", "tree"])
def mode(request):
    """Mode of NNX, as the environment variable NNX_GRAPH_MODE sets it."""
    with nnx.set_graph_mode(request.param == "graph"):
        yield request.param


@functools.cache
def weights(config):
    """Return random weights, so that every bias, gain and statistic has an effect."""
    random = np.random.default_rng(0)
    draw = lambda spec: jnp.asarray((spec.init == "ones") + 0.1 * random.normal(size=spec.shape), jnp.float32)  # noqa: E731
    return jax.tree.map(draw, specs(config))


def given(name):
    """Return the arguments of a call in Flax's conventions, with float32 masks, and those of the pure function."""
    source = {"source": SOURCE} if name == "EncoderDecoder" else {}
    return {"mask": ALLOWED.astype(jnp.float32)} | source, {"mask": Explicit(ALLOWED)} | source


def equal_trees(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    jax.tree.map(np.testing.assert_array_equal, first, second)


def names(module):
    return {"/".join(map(str, path)): variable for path, variable in nnx.to_flat_state(nnx.state(module))}


def holding(config, **settings):
    return in_nnx.Model(config, params=weights(config), **settings)


def trained(config, key):
    """Return the output of the pure function in training, and the weights after it."""
    outcome = run(weights(config), config, TOKENS, {}, dropout_key=key)
    return outcome.output, replace_weights(weights(config), outcome.aux.weights)


# --- NNX: models ------------------------------------------------------------------------------------------


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@families
def test_nnx_module_equals_the_pure_function(name, mode):
    config = CONFIGS[name]
    module = getattr(in_nnx, name)(config, params=weights(config))
    ours, theirs = given(name)
    expected = apply(weights(config), config, TOKENS, **theirs)
    np.testing.assert_array_equal(module(TOKENS, **ours), expected)
    assert (expected != apply(weights(config), config, TOKENS, **theirs | {"mask": None})).any()
    graph, state = nnx.split(module)
    equal_trees(nnx.merge(graph, state).params, weights(config))
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(weights(config))]
    assert sorted(names(module)) == sorted(paths)
    assert "blocks/0/attention/query" in paths


def test_rngs_draw_the_weights_of_init(mode):
    config = DECODER.replace(layers=0)
    module = in_nnx.Decoder(config, rngs=nnx.Rngs(params=3, dropout=4))
    equal_trees(module.params, init(nnx.Rngs(params=3).params(), config))
    assert module.rngs is None  # no dropout


@pytest.mark.every(2, "long")
def test_tied_head_has_no_leaf_of_its_own(mode):
    config = DECODER.replace(head=LanguageModel(tied=True))
    module = in_nnx.Decoder(config, params=weights(config))
    assert sum(v.size for v in jax.tree.leaves(nnx.state(module))) == count(specs(config))
    assert "head/matrix" not in names(module)
    answer = module(TOKENS)
    module.embedding.tokens[...] = module.embedding.tokens[...].at[V - 1].multiply(2)
    np.testing.assert_allclose(module(TOKENS[:1, :1])[..., V - 1], 2 * answer[:1, :1, V - 1], rtol=1e-5)


def test_weights_are_variables_of_the_class_of_their_collection():
    kinds = {name: type(variable) for name, variable in names(holding(NOISY)).items()}
    assert kinds["embedding/tokens"] is in_nnx.Frozen
    statistics = {name for name in kinds if "/running/" in name}
    assert {name for name, kind in kinds.items() if kind is nnx.BatchStat} == statistics
    assert "final_norm/running/mean" in statistics
    assert {kind for name, kind in kinds.items() if name not in {"embedding/tokens"} | statistics} == {nnx.Param}


@pytest.mark.every(2)
def test_training_applies_dropout_and_updates_statistics_in_place(mode):
    module = holding(QUICK, rngs=nnx.Rngs(dropout=4))
    train = nnx.jit(lambda m, x: m(x, deterministic=False))
    stream = nnx.Rngs(dropout=4).dropout.fork()
    output, after = trained(QUICK, stream())
    np.testing.assert_allclose(train(module, TOKENS), output, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), module.params, after)
    moved = np.abs(module.params.final_norm.running.mean - weights(QUICK).final_norm.running.mean)
    assert (moved > 1e-4).all()
    again, _ = trained(QUICK, stream())  # running statistics do not affect training
    np.testing.assert_allclose(train(module, TOKENS), again, atol=1e-5)
    assert (np.abs(again - output) > 1e-3).any()
    np.testing.assert_allclose(train(module, TOKENS), trained(QUICK, stream())[0], atol=1e-5)


def test_evaluation_draws_no_numbers_and_changes_no_statistics(mode):
    module = holding(NOISY, rngs=nnx.Rngs(dropout=4), deterministic=True)
    before = [np.asarray(x) for x in jax.tree.leaves(nnx.state(module, nnx.Not(nnx.RngKey)))]
    np.testing.assert_array_equal(module(TOKENS), apply(weights(NOISY), NOISY, TOKENS))
    equal_trees([np.asarray(x) for x in jax.tree.leaves(nnx.state(module, nnx.Not(nnx.RngKey)))], before)


@pytest.mark.parametrize("kind", ["rngs", "stream", "key"])
def test_call_accepts_its_own_rngs(kind):
    module, rngs = holding(NOISY, deterministic=False), nnx.Rngs(dropout=4)
    output, _ = trained(NOISY, nnx.Rngs(dropout=4).dropout())
    brought = {"rngs": rngs, "stream": rngs.dropout, "key": nnx.Rngs(dropout=4).dropout()}[kind]
    np.testing.assert_array_equal(module(TOKENS, rngs=brought), output)


def test_deterministic_is_required_if_training_differs_from_evaluation():
    statistics_only = NOISY.replace(dropout=None)
    for config in (NOISY, statistics_only, DECODER.replace(dropout=0.1), DECODER.with_encoder(dropout=0.1)):
        module = in_nnx.Model(config, params=weights(config))
        with pytest.raises(ValueError, match="deterministic is None"):
            module(TOKENS)
    with pytest.raises(ValueError, match="rngs is None"):
        holding(NOISY)(TOKENS, deterministic=False)
    module = in_nnx.Encoder(statistics_only, params=weights(statistics_only), deterministic=False)
    module(TOKENS)  # needs no rngs, and updates statistics
    assert (module.params.final_norm.running.mean != weights(statistics_only).final_norm.running.mean).all()


def test_flax_mode_switches_apply_to_the_module():
    module = holding(NOISY, rngs=nnx.Rngs(dropout=4))
    assert nnx.view(module, deterministic=True).deterministic is True
    assert module.deterministic is None
    module.train()
    assert module.deterministic is False
    module.eval()
    assert module.deterministic is True


def test_gradients_equal_those_of_the_pure_function(mode):
    """Return the gradient with random streams and statistics split off, as both modes allow."""
    module = holding(QUICK, rngs=nnx.Rngs(dropout=4))
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def gradient(params, rest):
        loss = lambda p: (nnx.merge(graph, p, rest, copy=True)(TOKENS, deterministic=False) ** 2).sum()  # noqa: E731
        return jax.grad(loss)(params)

    key = nnx.Rngs(dropout=4).dropout.fork()()
    expected = jax.grad(lambda w: (apply(w, QUICK, TOKENS, dropout_key=key) ** 2).sum())(weights(QUICK))
    expected = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(expected)}
    found = {"/".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(gradient(params, rest))}
    assert set(found) == {name for name in expected if "running" not in name and name != "embedding/tokens"}
    for name, leaf in found.items():
        np.testing.assert_allclose(leaf, expected[name], atol=1e-6, err_msg=name)


class Reader(nnx.Module):
    """User model: this package's encoder with another head."""

    def __init__(self, rngs):
        config = ENCODER.replace(head=NoHead(), inputs=Tokens(frozen=True), feed_forward=None)
        self.encoder = in_nnx.Encoder(config, rngs=rngs)
        self.linear = nnx.Linear(12, 2, rngs=rngs)

    def __call__(self, tokens):
        return self.linear(self.encoder(tokens).mean(-2))


def test_nnx_module_trains_inside_a_user_model(mode):
    model = Reader(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    frozen = np.asarray(model.encoder.embedding.tokens[...])

    @nnx.jit
    def step(model, optimizer):
        loss = lambda m: optax.softmax_cross_entropy_with_integer_labels(m(PUPILS), LABELS).mean()  # noqa: E731
        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    losses = [float(step(model, optimizer)) for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    np.testing.assert_array_equal(model.encoder.embedding.tokens[...], frozen)


@pytest.mark.slow
def test_initialisation_maps_over_seeds(mode):
    config = DECODER.replace(layers=0)
    keys = jax.random.split(jax.random.key(0), 3)
    many = nnx.vmap(lambda key: in_nnx.Decoder(config, rngs=nnx.Rngs(key)))(keys)
    outputs = nnx.vmap(lambda m: m(TOKENS))(many)
    second = init(nnx.Rngs(keys[1]).params(), config)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-6), jax.tree.map(lambda w: w[1], many.params), second
    )
    np.testing.assert_allclose(outputs[1], apply(second, config, TOKENS), atol=1e-4)


@pytest.mark.every(2, "long")
def test_scanned_layers_keep_their_layout(mode):
    config = DECODER.replace(layers=2)
    module = in_nnx.Decoder(config, params=with_layout(weights(config), "scanned"))
    assert names(module)["blocks/attention/query"].shape == (2, 12, 3, 4)
    equal_trees(with_layout(module.params, "unrolled"), weights(config))
    drawn = in_nnx.Decoder(config, rngs=nnx.Rngs(0), layout="scanned").params
    assert jax.tree.structure(drawn) == jax.tree.structure(module.params)


@families
def test_a_config_of_another_family_is_refused(name):
    for other, config in CONFIGS.items():
        if other != name:
            with pytest.raises(UserError, match=f"{name} expects"):
                getattr(in_nnx, name)(config, rngs=nnx.Rngs(0))
            with pytest.raises(UserError, match=f"{name} expects"):
                getattr(in_linen, name)(config).init(jax.random.key(0), TOKENS)


def test_invalid_settings_are_refused():
    module = in_nnx.Decoder(DECODER, params=weights(DECODER))
    with pytest.raises(TypeError, match="a model has no argument 'vaild'; did you mean 'valid'"):
        module(TOKENS, vaild=TOKENS > 0)
    with pytest.raises(ValueError, match="rngs and params are None"):
        in_nnx.Decoder(DECODER)
    variables = in_linen.to_variables(weights(DECODER), DECODER)
    del variables["params"]["head"]
    with pytest.raises(ValueError, match="no weight 'params/head/matrix'"):
        in_linen.to_params(variables, DECODER)


# --- components from outside the package --------------------------------------------------------------------


class Noisy(Dense):
    """A feed-forward network with noise in training, a running mean that normalises nothing, and a loss of its own."""

    class Weights(Dense.Weights):
        mean: Float[Array, "d_model"] = param(init="zeros", decay=False, trained=False)
        shift: Float[Array, "d_model"] = param(std=0.1, decay=False, trained=False)

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context) + weights.shift[None, None]
        aux = Aux(losses={"size": (y**2).mean()})
        if context.key is not None:
            y = y + jax.random.normal(context.key, y.shape)
            aux = aux.replace(weights={"mean": 0.9 * weights.mean + 0.1 * x.reshape(-1, x.shape[-1]).mean(0)})
        return y, aux


OWN = DECODER.replace(layers=2, feed_forward=Noisy(d_ff=17))
OWN_LOSS = "blocks/feed_forward/size"


def check_own(output, after, key):
    """Return the output and the weights of a module after one call in training."""
    expected, moved = trained(OWN, key)
    np.testing.assert_array_equal(output, expected)
    equal_trees(after, moved)
    assert (moved.blocks[1].feed_forward.mean != weights(OWN).blocks[1].feed_forward.mean).all()
    assert (np.abs(output - apply(weights(OWN), OWN, TOKENS)) > 1e-3).any()


@pytest.mark.every(2, "long")
def test_nnx_supports_user_components(mode):
    module = holding(OWN, rngs=nnx.Rngs(dropout=4))
    np.testing.assert_array_equal(module(TOKENS), apply(weights(OWN), OWN, TOKENS))
    equal_trees(module.params, weights(OWN))
    output = module(TOKENS, deterministic=False)
    check_own(output, module.params, nnx.Rngs(dropout=4).dropout.fork()())
    kinds = {name: type(variable) for name, variable in names(module).items()}
    assert kinds["blocks/1/feed_forward/mean"] is nnx.BatchStat
    assert kinds["blocks/1/feed_forward/shift"] is in_nnx.Frozen
    with pytest.raises(ValueError, match="rngs is None"):
        holding(OWN)(TOKENS, deterministic=False)
    drawn = in_nnx.Decoder(OWN, rngs=nnx.Rngs(params=0))  # without a stream for dropout
    assert drawn(TOKENS, deterministic=True).shape == (B, T, V)


def test_nnx_sows_the_losses_of_components(mode):
    answer, kept = nnx.capture(holding(OWN), nnx.Intermediate)(TOKENS, sow_losses=True)
    (losses,) = jax.tree.leaves(kept, is_leaf=lambda node: isinstance(node, dict) and OWN_LOSS in node)
    outcome = run(weights(OWN), OWN, TOKENS, {})
    np.testing.assert_array_equal(losses[OWN_LOSS], outcome.aux.losses[OWN_LOSS])
    np.testing.assert_array_equal(answer, outcome.output)


def test_linen_supports_user_components():
    module, variables = in_linen.Decoder(OWN), in_linen.to_variables(weights(OWN), OWN)
    np.testing.assert_array_equal(module.apply(variables, TOKENS), apply(weights(OWN), OWN, TOKENS))
    assert list(variables["batch_stats"]["blocks"]["1"]["feed_forward"]) == ["mean"]
    assert list(variables["frozen"]["blocks"]["1"]["feed_forward"]) == ["shift"]
    rngs, mutable = {"dropout": jax.random.key(1)}, ["batch_stats", "losses"]
    answer, after = module.apply(variables, TOKENS, deterministic=False, rngs=rngs, mutable=mutable)
    losses = after.pop("losses")
    check_own(answer, in_linen.to_params(variables | after, OWN), FirstKey().apply({}, rngs=rngs))
    assert list(losses) == [OWN_LOSS]
    assert set(module.init(jax.random.key(0), TOKENS)) == set(variables)


def test_scanned_user_layers_update_their_statistics():
    scanned = with_layout(weights(OWN), "scanned")
    module = in_nnx.Decoder(OWN, params=scanned, rngs=nnx.Rngs(dropout=4))
    assert type(names(module)["blocks/feed_forward/mean"]) is nnx.BatchStat
    module(TOKENS, deterministic=False)
    _, moved = trained(OWN, nnx.Rngs(dropout=4).dropout.fork()())
    means = module.params.blocks.feed_forward.mean
    for layer, mean in zip(moved.blocks, means, strict=True):
        np.testing.assert_allclose(mean, layer.feed_forward.mean, atol=1e-6)


# --- Linen: models ----------------------------------------------------------------------------------------


@families
def test_linen_module_equals_the_pure_function(name):
    config = CONFIGS[name]
    ours, theirs = given(name)
    module, variables = getattr(in_linen, name)(config), in_linen.to_variables(weights(config), config)
    answer = module.apply(variables, TOKENS, **ours)
    np.testing.assert_array_equal(answer, apply(weights(config), config, TOKENS, **theirs))
    equal_trees(in_linen.to_params(variables, config), weights(config))


def test_linen_initialises_all_collections():
    module = in_linen.Encoder(NOISY, deterministic=True)
    variables = module.init(jax.random.key(0), TOKENS)
    expected = in_linen.to_variables(weights(NOISY), NOISY)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, expected)
    assert list(variables["frozen"]) == ["embedding"]
    assert variables["batch_stats"]["final_norm"]["running"]["mean"].shape == (12,)
    assert variables["params"]["blocks"]["0"]["attention"]["query"].shape == (12, 3, 4)
    other = module.init(jax.random.key(1), TOKENS)
    assert (variables["frozen"]["embedding"]["tokens"] != other["frozen"]["embedding"]["tokens"]).all()


class LinenReader(linen.Module):
    """User model: this package's encoder with another head."""

    @linen.compact
    def __call__(self, tokens, train):
        config = QUICK.replace(head=NoHead(), dropout=0.1)
        encoder = linen.jit(in_linen.Encoder)(config, deterministic=not train, name="encoder")
        return linen.Dense(2)(encoder(tokens).mean(-2))


def test_linen_module_trains_inside_a_user_model():
    reader = LinenReader()
    variables = reader.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, PUPILS, True)
    params, statistics = variables["params"], variables["batch_stats"]
    np.testing.assert_array_equal(statistics["encoder"]["final_norm"]["running"]["mean"], 0)  # not updated by init
    optimizer = optax.adam(3e-2)
    state = optimizer.init(params)

    @jax.jit
    def step(params, statistics, state, key):
        def loss(params):
            held = {"params": params, "frozen": variables["frozen"], "batch_stats": statistics}
            y, after = reader.apply(held, PUPILS, True, rngs={"dropout": key}, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(y, LABELS).mean(), after["batch_stats"]

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state)
        return value, optax.apply_updates(params, updates), statistics, state

    losses = []
    for key in jax.random.split(jax.random.key(2), 80):
        loss, params, statistics, state = step(params, statistics, state, key)
        losses.append(float(loss))
    assert np.mean(losses[-10:]) < 0.7 * losses[0]
    assert (statistics["encoder"]["final_norm"]["running"]["mean"] != 0).all()
    assert (params["encoder"]["final_norm"]["gain"] != 1).all()


class FirstKey(linen.Module):
    """Return the key of a module's first `make_rng`."""

    def __call__(self):
        return self.make_rng("dropout")


def test_linen_training_equals_that_of_the_pure_function():
    module, variables = in_linen.Encoder(NOISY), in_linen.to_variables(weights(NOISY), NOISY)
    for seed in (1, 2):
        rngs = {"dropout": jax.random.key(seed)}
        answer, moved = module.apply(variables, TOKENS, deterministic=False, rngs=rngs, mutable=["batch_stats"])
        output, after = trained(NOISY, FirstKey().apply({}, rngs=rngs))
        np.testing.assert_array_equal(answer, output)
        equal_trees(in_linen.to_params(variables | moved, NOISY), after)
    still = NOISY.replace(dropout=None)
    variables = in_linen.to_variables(weights(still), still)
    answer, moved = in_linen.Encoder(still, deterministic=False).apply(variables, TOKENS, mutable=["batch_stats"])
    output, after = trained(still, jax.random.key(7))
    np.testing.assert_array_equal(answer, output)
    equal_trees(in_linen.to_params(variables | moved, still), after)
    assert (after.final_norm.running.mean != weights(still).final_norm.running.mean).all()


def test_linen_evaluates_without_randomness():
    variables = in_linen.to_variables(weights(NOISY), NOISY)
    answer = in_linen.Encoder(NOISY).apply(variables, TOKENS, deterministic=True)
    np.testing.assert_array_equal(answer, apply(weights(NOISY), NOISY, TOKENS))


def test_linen_mistakes_are_flax_errors():
    module, variables = in_linen.Encoder(NOISY), in_linen.to_variables(weights(NOISY), NOISY)
    with pytest.raises(ValueError, match='"deterministic" must be passed'):
        module.apply(variables, TOKENS)
    with pytest.raises(ValueError, match="Should be passed just once"):
        in_linen.Encoder(NOISY, deterministic=True).apply(variables, TOKENS, deterministic=True)
    with pytest.raises(errors.InvalidRngError):
        module.apply(variables, TOKENS, deterministic=False)
    with pytest.raises(errors.ModifyScopeVariableError):
        module.apply(variables, TOKENS, deterministic=False, rngs={"dropout": jax.random.key(0)})
    with pytest.raises(errors.ScopeCollectionNotFound):
        module.apply(variables | {"params": {}}, TOKENS, deterministic=True)


def test_recurrent_models_are_supported():
    module, variables = holding(RECURRENT), in_linen.to_variables(weights(RECURRENT), RECURRENT)
    answers = [
        module(TOKENS, deterministic=True),
        in_linen.Decoder(RECURRENT).apply(variables, TOKENS, deterministic=True),
        in_linen.Model(RECURRENT, layout="scanned").apply(
            in_linen.to_variables(with_layout(weights(RECURRENT), "scanned"), RECURRENT),
            TOKENS,
            deterministic=True,
        ),
    ]
    for answer in answers:
        np.testing.assert_allclose(answer, apply(weights(RECURRENT), RECURRENT, TOKENS), atol=1e-5)
    with pytest.raises(UserError, match=r"family decoder .*; Encoder expects encoder"):
        in_linen.Encoder(RECURRENT).init(jax.random.key(0), TOKENS)


def test_linen_scanned_layers_keep_their_layout():
    config = DECODER.replace(layers=2)
    variables = in_linen.to_variables(with_layout(weights(config), "scanned"), config)
    assert variables["params"]["blocks"]["attention"]["query"].shape == (2, 12, 3, 4)
    answer = in_linen.Decoder(config, layout="scanned").apply(variables, TOKENS)
    np.testing.assert_allclose(answer, apply(weights(config), config, TOKENS), atol=1e-5)
    equal_trees(with_layout(in_linen.to_params(variables, config, "scanned"), "unrolled"), weights(config))


# --- multi-head attention ---------------------------------------------------------------------------------

X, Y, Z = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((B, T, 12), (B, S, 12), (B, S, 12)))
MASK = jnp.asarray(random.random((B, 3, T, S)) < 0.7).at[..., 0].set(True)
CASES = {  # settings, inputs, call
    "self": ({}, (X,), {}),
    "cross, masked": ({}, (X, Y), {"mask": MASK.astype(jnp.float32)}),
    "other values": ({}, (X, Y, Z), {}),
    "widths": ({"qkv_features": 6, "out_features": 5}, (X, Y), {}),
    "no bias, norms": ({"use_bias": False, "normalize_qk": True}, (X,), {}),
}
ONLY_NNX = {
    "grouped": ({"num_heads": 6, "num_kv_heads": 2}, (X,), {}),
    "other width of keys": ({"in_kv_features": 7}, (X, Y[..., :7]), {}),
    "causal": ({}, (X,), {"is_causal": True}),
}


def numbers(shapes):
    """Return random weights of these shapes, by name."""
    random = np.random.default_rng(1)
    return {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def from_flax(weights):
    """Return the weights of Flax's attention by this package's names."""
    norms = {"query_ln/scale": "query_norm/gain", "key_ln/scale": "key_norm/gain"}
    return {norms.get(name, name.replace("/kernel", "").replace("/bias", "_bias")): w for name, w in weights.items()}


def filled(module, weights=None):
    """An abstract module with these weights, or random ones, so that nothing need be drawn."""
    if weights is None:
        weights = numbers({name: variable.shape for name, variable in names(module).items()})
    assert {name: w.shape for name, w in weights.items()} == {name: v.shape for name, v in names(module).items()}
    for name, variable in names(module).items():
        variable.set_value(weights[name])
    return module


def abstract(cls, *args, **settings):
    return nnx.eval_shape(lambda: cls(*args, rngs=nnx.Rngs(0), **settings))


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES | ONLY_NNX)
def test_nnx_attention_equals_that_of_flax(case):
    settings, inputs, call = (CASES | ONLY_NNX)[case]
    settings = {"num_heads": 3, "in_features": 12} | settings
    theirs = filled(abstract(nnx.MultiHeadAttention, **settings, decode=False))
    weights = from_flax({name: variable[...] for name, variable in names(theirs).items()})
    ours = filled(abstract(in_nnx.MultiHeadAttention, **settings), weights)
    np.testing.assert_allclose(ours(*inputs, **call), theirs(*inputs, **call), rtol=1e-5, atol=1e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES)
def test_linen_attention_equals_that_of_flax(case):
    settings, inputs, call = CASES[case]
    flatten = lambda tree: {"/".join(path): w for path, w in flatten_dict(tree).items()}  # noqa: E731
    theirs, ours = (
        module(num_heads=3, **settings) for module in (linen.MultiHeadDotProductAttention, in_linen.MultiHeadAttention)
    )
    shapes = [
        jax.tree.map(jnp.shape, flatten(jax.eval_shape(m.init, jax.random.key(0), *inputs, **call)["params"]))
        for m in (theirs, ours)
    ]
    weights = numbers(shapes[0])
    assert {name: w.shape for name, w in from_flax(weights).items()} == shapes[1]
    nest = lambda weights: {"params": unflatten_dict({tuple(n.split("/")): w for n, w in weights.items()})}  # noqa: E731
    their, our = nest(weights), nest(from_flax(weights))
    np.testing.assert_allclose(ours.apply(our, *inputs, **call), theirs.apply(their, *inputs, **call), atol=1e-5)


def test_attention_draws_its_weights(mode):
    layer = in_nnx.MultiHeadAttention(3, 12, out_features=59, rngs=nnx.Rngs(0))
    assert layer.params.out.shape == (3, 4, 59)
    np.testing.assert_allclose(np.std(layer.params.out), 12**-0.5, rtol=0.1)  # 1 / √fan-in, whatever the output's width
    np.testing.assert_array_equal(layer.params.out_bias, np.zeros(59))
    graph, state = nnx.split(layer)
    np.testing.assert_array_equal(nnx.merge(graph, state)(X), layer(X))
    variables = in_linen.MultiHeadAttention(3, out_features=59).init(jax.random.key(0), X)
    assert jax.tree.map(jnp.shape, variables["params"]) == {name: w.shape for name, w in names(layer).items()}
    np.testing.assert_allclose(np.std(variables["params"]["out"]), 12**-0.5, rtol=0.1)


def test_options_are_fields_of_the_attention():
    changes = [
        {"logit_cap": 0.1},
        {"scale_exponent": 0.0},
        {"query_key_norm": RMSNorm()},
        {"share_query_key": True},
    ]
    answers = [filled(abstract(in_nnx.MultiHeadAttention, 3, 12, options=options))(X) for options in [{}, *changes]]
    assert all((np.abs(answers[0] - answer) > 1e-3).any() for answer in answers[1:])


def sowed(layer, **call):
    """Return the output, the sown weights A, and A applied to the values."""
    answer, kept = nnx.capture(layer, nnx.Intermediate)(X, Y, mask=MASK, sow_weights=True, **call)
    weights = np.asarray(jax.tree.leaves(kept)[0])
    w = jax.tree.map(np.asarray, layer.params)
    values = np.einsum("bsd,dkv->bskv", Y, w.value) + w.value_bias
    if w.out is None:
        return answer, weights, np.einsum("bnts,bsnv->btv", weights, values) + w.out_bias
    return answer, weights, np.einsum("bnts,bsnv,nvd->btd", weights, values, w.out) + w.out_bias


@pytest.mark.parametrize("form", ["factored", "full"])
def test_dropout_drops_attention_weights(form, mode):
    settings = {"dropout_rate": 0.4, "options": {"value_form": form}}
    layer = filled(abstract(in_nnx.MultiHeadAttention, 3, 12, keep_rngs=False, **settings))
    rngs = nnx.Rngs(dropout=0)
    answer, whole, mixed = sowed(layer, deterministic=True)
    np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(answer, mixed, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(answer, layer(X, Y, mask=MASK, deterministic=True), rtol=1e-4, atol=1e-4)
    answer, dropped, mixed = sowed(layer, deterministic=False, rngs=rngs)
    np.testing.assert_allclose(answer, mixed, rtol=1e-4, atol=1e-4)
    seen = whole > 1e-30
    assert (dropped[~seen] < 1e-29).all()
    kept = dropped[seen] > 0
    assert 0.4 < kept.mean() < 0.8  # 0.6 of some 140
    np.testing.assert_allclose(dropped[seen][kept], whole[seen][kept] / 0.6, rtol=1e-5)
    second = layer(X, Y, mask=MASK, deterministic=False, rngs=rngs)
    assert (second != answer).any()
    with pytest.raises(ValueError, match="rngs is None"):
        layer(X, deterministic=False)


def linen_weights(layer, **call):
    """Random weights, so that none need be drawn."""
    shapes = jax.eval_shape(functools.partial(layer.init, **call), jax.random.key(0), X)["params"]
    return numbers({name: weight.shape for name, weight in shapes.items()})


def test_linen_attention_applies_dropout_and_sows_weights():
    layer = in_linen.MultiHeadAttention(3, dropout_rate=0.4)
    variables = {"params": linen_weights(layer, deterministic=True)}
    keys = {"rngs": {"dropout": jax.random.key(1)}}
    drawn = layer.apply(variables, X, deterministic=False, **keys)
    brought = layer.apply(variables, X, deterministic=False, dropout_rng=FirstKey().apply({}, **keys))
    np.testing.assert_array_equal(drawn, brought)
    whole, kept = layer.apply(variables, X, deterministic=True, sow_weights=True, mutable=["intermediates"])
    np.testing.assert_allclose(kept["intermediates"]["attention_weights"][0].sum(-1), 1, rtol=1e-5)
    assert (whole != drawn).any()
    for call, error in (({}, ValueError), ({"deterministic": False}, errors.InvalidRngError)):
        with pytest.raises(error):
            layer.apply(variables, X, **call)


def test_nnx_decoding_equals_causal_attention(mode):
    layer = filled(abstract(in_nnx.MultiHeadAttention, 3, 12))
    with pytest.raises(ValueError, match="init_cache"):
        layer(X, decode=True)
    layer.init_cache(X.shape)
    parts = [layer(X[:, :3], decode=True), *(layer(X[:, t : t + 1], decode=True) for t in range(3, T))]
    np.testing.assert_allclose(jnp.concatenate(parts, 1), layer(X, is_causal=True), atol=1e-5)
    assert int(layer.cache_index[...]) == T
    with pytest.raises(ValueError, match="7 of 7 positions are used"):
        layer(X[:, :1], decode=True)


def test_linen_decoding_equals_causal_attention():
    layer = in_linen.MultiHeadAttention(3, decode=True)
    params, parts = linen_weights(layer), []
    _, cache = layer.apply({"params": params}, X, mutable=["cache"])  # creates the cache
    cache = cache["cache"]
    for part in jnp.split(X, [3, 4, 5, 6], axis=1):
        answer, after = layer.apply({"params": params, "cache": cache}, part, mutable=["cache"])
        cache = after["cache"]
        parts.append(answer)
    whole = in_linen.MultiHeadAttention(3).apply({"params": params}, X, mask=linen.make_causal_mask(X[..., 0]))
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, atol=1e-5)


MISTAKES = {
    "qkv_features is 10; expected a multiple of num_heads 3": {"qkv_features": 10},
    "options has 'logit_cup'; did you mean 'logit_cap'": {"options": {"logit_cup": 3.0}},
    'out_features is 5 with value_form "full"; expected 12': {"out_features": 5, "options": {"value_form": "full"}},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_invalid_attention_arguments_are_refused(message):
    with pytest.raises(UserError, match=message):
        in_nnx.MultiHeadAttention(3, 12, **MISTAKES[message], rngs=nnx.Rngs(0))


def test_inputs_of_wrong_width_are_refused():
    layer = filled(abstract(in_nnx.MultiHeadAttention, 3, 12, dropout_rate=0.1, keep_rngs=False))
    with pytest.raises(ValueError, match="inputs_v is given without inputs_k"):
        layer(X, None, Y, deterministic=True)
    with pytest.raises(ValueError, match=r"inputs_q is .2, 7, 11.; expected vectors of width 12"):
        layer(X[..., 1:], deterministic=True)
    with pytest.raises(ValueError, match=r"inputs_v is .2, 5, 11.; expected vectors of width 12"):
        layer(X, Y, Z[..., 1:], deterministic=True)
    with pytest.raises(ValueError, match="deterministic is None; MultiHeadAttention"):
        layer(X)
