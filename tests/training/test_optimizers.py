"""Every optimizer against a loop in NumPy; in either layout; with all its numbers mapped; and what Muon takes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

from flaxformer.components import LSTM, Attention, Dense
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.overrides import override
from flaxformer.core.params import Parameters, param, path_name, subtree
from flaxformer.model import init
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import (
    SGD,
    Adafactor,
    AdamW,
    Adopt,
    Lamb,
    Lion,
    Muon,
    Run,
    ScheduleFree,
    Training,
    TrainState,
    evaluation_params,
)
from flaxformer.training.per_layer import matrix_dimensions
from flaxformer.training.trainable import select

RATE, DECAY, STEPS = 0.3, 0.1, 4
KINDS_OF_OPTIMIZER = [AdamW, SGD, Lion, Adopt, Lamb, Adafactor, Muon, ScheduleFree]
MODEL = ModelConfig(
    vocabulary=5, layers=1, d_model=6, attention=Attention(heads=3, key_value_heads=1), feed_forward=Dense(d_ff=7)
).with_encoder(layers=2)


class Pair(Parameters):
    matrix: Float[Array, "rows columns"] = param(fan_in="rows")
    bias: Float[Array, "columns"] = param(decay=False)


START = Pair(matrix=jnp.asarray(np.linspace(-1, 2, 6).reshape(2, 3), jnp.float32), bias=jnp.asarray([0.5, -1.0, 2.0]))


def slope(w):
    """A gradient that keeps changing sign and size."""
    return np.cos(3 * w) + w / 2 if isinstance(w, np.ndarray) else jnp.cos(3 * w) + w / 2


def trained(config):
    """The weights after a few steps, each with a rate of its own, and those to evaluate."""
    params, state = START, config.transformation(0.0).init(START)
    for step in range(STEPS):
        chain = config.transformation(config.learning_rate * (1 + step))
        updates, state = chain.update(jax.tree.map(slope, params), state, params)
        params = optax.apply_updates(params, updates)
    return params, config.average_weights(state, params)


train = jax.jit(trained)


class Loop:
    """One weight in float64, as the papers write it; `act` is the direction of step t = 1, 2, …."""

    def __init__(self, config, w, decay):
        self.config, self.w, self.decay = config, np.asarray(w, np.float64), decay
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def adam(self, g, t, beta1):
        c = self.config
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = c.beta2 * self.v + (1 - c.beta2) * g**2
        return self.m / (1 - beta1**t) / (np.sqrt(self.v / (1 - c.beta2**t)) + c.epsilon)

    def sgd(self, g, t):
        c = self.config
        self.m = c.momentum * self.m + g
        return g + c.momentum * self.m if c.nesterov else self.m

    def lion(self, g, t):
        c = self.config
        sign = np.sign(c.beta1 * self.m + (1 - c.beta1) * g)
        self.m = c.beta2 * self.m + (1 - c.beta2) * g
        return sign

    def adopt(self, g, t):
        c = self.config
        if t == 1:
            self.v = g**2
            return 0 * g
        bound = (t - 1) ** 0.25
        scaled = np.clip(g / np.maximum(np.sqrt(self.v), c.epsilon), -bound, bound)
        self.m = c.beta1 * self.m + (1 - c.beta1) * scaled
        self.v = c.beta2 * self.v + (1 - c.beta2) * g**2
        return self.m

    def adafactor(self, g, t):
        c, keep = self.config, 1 - t**-self.config.decay_exponent
        squares = g**2 + c.epsilon
        if min(g.shape) >= c.factored_from and g.ndim == 2:
            rows, columns = squares.mean(1, keepdims=True), squares.mean(0, keepdims=True)
            self.m, self.v = keep * self.m + (1 - keep) * rows, keep * self.v + (1 - keep) * columns
            v = self.m * self.v / self.m.mean()
        else:
            v = self.v = keep * self.v + (1 - keep) * squares
        u = g / np.sqrt(v)
        return u / max(1, np.sqrt((u**2).mean()) / c.threshold)

    def run(self):
        c, z, x, weights = self.config, self.w, self.w, 0.0
        for t in range(1, STEPS + 1):
            rate, g = RATE * t, slope(self.w)
            name = type(c).__name__.lower()
            act = {"adamw": lambda g, t: self.adam(g, t, c.beta1), "lamb": lambda g, t: self.adam(g, t, c.beta1),
                   "schedulefree": lambda g, t: self.adam(g, t, 0.0)}.get(name) or getattr(self, name)  # fmt: skip
            step = act(g, t) + self.decay * self.w
            if isinstance(c, Lamb):
                step = step * np.linalg.norm(self.w) / np.linalg.norm(step)
            if isinstance(c, ScheduleFree):
                z, weights = z - rate * step, weights + rate**2
                x = (1 - rate**2 / weights) * x + rate**2 / weights * z
                self.w = (1 - c.beta1) * z + c.beta1 * x
            else:
                self.w = self.w - rate * step
        return self.w, x if isinstance(c, ScheduleFree) else self.w


@pytest.mark.parametrize(
    "config",
    [
        AdamW(beta1=0.7, beta2=0.8),
        SGD(momentum=0.6),
        SGD(momentum=0.6, nesterov=True),
        Lion(beta1=0.6, beta2=0.8),
        Adopt(beta1=0.7, beta2=0.8),
        Lamb(beta1=0.7, beta2=0.8),
        Adafactor(decay_exponent=0.6, threshold=0.7),
        Adafactor(decay_exponent=0.6, threshold=5.0, factored_from=2),
        ScheduleFree(beta1=0.7, beta2=0.8),
    ],
    ids=str,
)
def test_each_optimizer_is_that_of_its_paper(config):
    config = config.replace(learning_rate=RATE, weight_decay=DECAY)
    found, evaluated = train(config)
    for name, decay in (("matrix", DECAY), ("bias", 0.0)):
        trained_weight, evaluated_weight = Loop(config, getattr(START, name), decay).run()
        np.testing.assert_allclose(getattr(found, name), trained_weight, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(getattr(evaluated, name), evaluated_weight, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "kind", [Muon, ScheduleFree, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS_OF_OPTIMIZER[:-2])]
)
def test_every_number_of_every_optimizer_can_be_mapped(kind):
    config = kind(learning_rate=RATE, weight_decay=DECAY, clip=0.5)
    other = jax.tree.map(lambda x: 0.9 * x, config)
    both = jax.tree.map(lambda *pair: jnp.asarray(pair, jnp.float32), config, other)
    mapped = jax.jit(jax.vmap(lambda config: trained(config)[0]))(both)
    for i, one in enumerate((config, other)):
        alone = train(one)[0]
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-6), mapped, alone)


def test_every_optimizer_has_warmup_decay_and_clipping():
    for kind in KINDS_OF_OPTIMIZER:
        names = {field.name for field in dataclasses.fields(kind)}
        assert names > {"learning_rate", "warmup_steps", "decay", "final_fraction", "weight_decay", "clip"}


# --- weights of a model --------------------------------------------------------------------------------


def drawn(params, seed):
    """Random numbers of the shapes of a model's weights, the same ones in either layout."""
    dice = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(dice.standard_normal(x.shape), jnp.float32), params)


def shapes(model):
    return jax.eval_shape(lambda: init(jax.random.key(0), model))


def step(config, params, *gradients):
    """The updates of the last of some steps."""
    chain, updates = config.transformation(RATE), None
    state = chain.init(params)
    for gradient in gradients:
        updates, state = chain.update(gradient, state, params)
    return updates


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "kind",
    [Lamb, Muon]
    + [pytest.param(kind, marks=pytest.mark.slow) for kind in (AdamW, SGD, Lion, Adopt, Adafactor, ScheduleFree)],
)
def test_both_layouts_get_the_same_update(kind):
    config = kind(weight_decay=DECAY, **({"factored_from": 3} if kind is Adafactor else {}))
    model = MODEL.replace(feed_forward=None, attention=MODEL.attention.replace(bias=False))
    model = model.with_encoder(layers=2)  # of another depth than the decoder
    trees = [drawn(shapes(model), seed) for seed in range(3)]
    unrolled, scanned = (
        jax.jit(lambda *trees: step(config, *trees))(*(with_layout(tree, layout) for tree in trees))
        for layout in ("unrolled", "scanned")
    )
    assert isinstance(scanned.blocks, type(unrolled.blocks[0]))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=5e-6), unrolled, with_layout(scanned, "unrolled")
    )


def orthogonalised(g):
    """Five iterations of Newton and Schulz, in float64, on a matrix or its transpose."""
    tall = g.shape[0] > g.shape[1]
    x = (g.T if tall else g) / np.linalg.norm(g)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x - 4.775 * square @ x + 2.0315 * square @ square @ x
    return x.T if tall else x


def as_matrices(name, x):
    """The matrices of one layer's weight, by hand."""
    if name in ("query", "key", "value"):
        return [x.reshape(x.shape[0], -1)]
    if name == "out":
        return [x.reshape(-1, x.shape[-1])]
    if name in ("input", "recurrent"):
        return [x[:, gate] for gate in range(x.shape[1])]
    return [x] if name in ("up", "down") else []


MUONS = {"query", "key", "value", "out", "up", "down", "input", "recurrent"}


@pytest.mark.parametrize(
    "model", [MODEL, recurrent_model(LSTM(), vocabulary=5, d_model=6)], ids=["transformer", "recurrent"]
)
def test_muon_makes_each_matrix_of_a_layer_orthogonal_and_gives_the_rest_to_adam(model):
    params, gradient = drawn(shapes(model), 0), drawn(shapes(model), 1)
    found = jax.jit(lambda p, g: step(Muon(beta1=0.7), p, g))(params, gradient)
    rows = zip(*(jax.tree_util.tree_leaves_with_path(tree) for tree in (found, gradient)), strict=True)
    seen = set()
    for (path, update), (_, g) in rows:
        place, name = path_name(path), path_name(path).split("/")[-1]
        if "blocks" not in place.split("/") or name not in MUONS:
            np.testing.assert_allclose(update, -RATE * np.sign(g), rtol=1e-5, err_msg=place)  # Adam's first step
            continue
        seen.add(name)
        updates, gradients = as_matrices(name, np.asarray(update, np.float64)), as_matrices(name, np.float64(g))
        for own, matrix in zip(updates, gradients, strict=True):
            size = -RATE * 0.2 * np.sqrt(max(matrix.shape))
            np.testing.assert_allclose(own / size, orthogonalised(matrix), rtol=1e-3, atol=2e-4, err_msg=place)
            values = np.linalg.svd(own / size, compute_uv=False)
            assert np.median(values) > 0.6
            assert values.max() < 1.3
    recurrent = {"input", "recurrent"}
    assert seen == (recurrent if isinstance(model.attention, LSTM) else MUONS - recurrent)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_momentum_of_muon_is_that_of_its_authors_from_the_first_step_on(nesterov):
    """Jordan et al. 2024: m ← β m + (1 − β) g, and β m + (1 − β) g with nesterov, in float64, for 6 drawn gradients."""
    optimizer, params = Muon(momentum=0.95, nesterov=nesterov, rms=None), drawn(shapes(MODEL), 0)
    transform = optimizer.direction()
    state, update, moments = transform.init(params), jax.jit(transform.update), {}
    for seed in range(1, 7):
        gradient = drawn(shapes(MODEL), seed)
        found, state = update(gradient, state, params)
        for (path, own), (_, g) in zip(
            *(jax.tree_util.tree_leaves_with_path(tree) for tree in (found, gradient)), strict=True
        ):
            place = path_name(path)
            if "blocks" not in place.split("/") or (name := place.split("/")[-1]) not in MUONS:
                continue
            for number, (step_, matrix) in enumerate(
                zip(as_matrices(name, np.float64(own)), as_matrices(name, np.float64(g)), strict=True)
            ):
                m = 0.95 * moments.get((place, number), 0.0) + 0.05 * matrix
                moments[place, number] = m
                expected = orthogonalised(0.95 * m + 0.05 * matrix if nesterov else m)
                cosine = (step_ * expected).sum() / np.linalg.norm(step_) / np.linalg.norm(expected)
                assert cosine > 1 - 1e-5, (place, seed, cosine)
    assert moments


def test_the_dimensions_of_a_stacked_matrix_leave_the_layers_apart():
    scanned = jax.eval_shape(lambda: init(jax.random.key(0), MODEL, "scanned"))
    found = matrix_dimensions(scanned).blocks.attention
    assert found.query == ((1,), (2, 3))
    assert found.out == ((1, 2), (3,))
    assert found.out_bias is None
    assert matrix_dimensions(scanned).head.matrix is None


class Own(Parameters):
    square: Float[Array, "d_model d_model"] = param(fan_in="d_model")
    row: Float[Array, "d_model"] = param(fan_in="d_model")


class Stack(Parameters):
    blocks: tuple[Own, ...] = subtree(repeat="layers")


def test_a_matrix_whose_axes_have_one_name_is_one_and_a_row_is_none():
    own = Own(square=jnp.zeros((3, 3)), row=jnp.zeros(3))
    for blocks, first in (((own,), 0), (jax.tree.map(lambda x: x[None], own), 1)):
        found = matrix_dimensions(Stack(blocks=blocks)).blocks
        found = found[0] if isinstance(blocks, tuple) else found
        assert found.square == ((first,), (first + 1,))
        assert found.row is None


# --- what a schedule-free run evaluates -----------------------------------------------------------------

RUN = Run(
    model=ModelConfig(vocabulary=7, layers=1, d_model=4, attention=Attention(heads=2), feed_forward=Dense(d_ff=3)),
    task=Copy(symbols=5, length=2, batch_size=4, evaluation_batches=1),
    optimizer=ScheduleFree(beta1=0.6),
)


def test_weights_that_are_not_trained_are_evaluated_unchanged():
    run = override(RUN, ["model.inputs=Tokens(frozen=True)"])
    params = drawn(shapes(run.model), 0)
    chain = run.optimizer.transformation(RATE)
    trained = select(params, run.trainable.mask(params))
    moved = params.replace(embedding=params.embedding.replace(tokens=params.embedding.tokens + 1))
    state = TrainState(step=jnp.int32(1), params=moved, optimizer=chain.init(trained), diverged_at=jnp.int32(-1))
    found = evaluation_params(state, run)
    np.testing.assert_array_equal(found.embedding.tokens, moved.embedding.tokens)
    np.testing.assert_allclose(found.head.matrix, params.head.matrix, rtol=1e-5, atol=1e-6)


def test_two_averages_are_one_too_many():
    with pytest.raises(UserError, match=r"training.ema is 0.9 with ScheduleFree, .*expected None"):
        RUN.replace(training=Training(ema=0.9))


def test_an_optimizer_is_chosen_by_name_on_the_command_line():
    assert override(RUN, ["optimizer=Muon(momentum=0.9)"]).optimizer == Muon(momentum=0.9)
    with pytest.raises(UserError, match="did you mean 'Lion'"):
        override(RUN, ["optimizer=Loin"])
