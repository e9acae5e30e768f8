"""FLOPs of a training step against formulas by hand and XLA's count; parameters by kind."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from flaxformer.components import Attention, Dense, FeedForward, Gated, LanguageModel, LearnedPositions, Tokens, Vectors
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, param
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import static
from flaxformer.jobs.peak import model_flops
from flaxformer.study.program_cost import cost_of_run
from flaxformer.system.errors import UserError
from flaxformer.targets.traffic import direction_of, part_of
from flaxformer.tasks import Copy
from flaxformer.training import SGD, AdamW, Muon, Run, Training
from flaxformer.training.cost import parameter_counts, run_cost
from flaxformer.training.flops import FORMULAS, flops_by_scope, flops_per_step, products_of, uncounted_primitives

LAYERS, WIDTH, HIDDEN, SYMBOLS = 2, 12, 7, 11
CONFIG = ModelConfig(
    vocabulary=SYMBOLS + 2,
    layers=LAYERS,
    d_model=WIDTH,
    attention=Attention(heads=3),
    feed_forward=Dense(d_ff=HIDDEN),
    head=LanguageModel(tied=False),
)
TASK = Copy(symbols=SYMBOLS, length=3, batch_size=5)


def run_of(config=CONFIG, optimizer=None, **training):
    return Run(model=config, task=TASK, optimizer=optimizer or AdamW(), training=Training(**({"steps": 6} | training)))


def counted(function, *arguments):
    return products_of(jax.make_jaxpr(function)(*arguments).jaxpr)


def six_n_d(config, products):
    """6 N + 12 L d T per token, for N weights in products."""
    tokens = TASK.tokens_read(config)
    return TASK.batch_size * tokens * (6 * products + 12 * config.layers * config.d_model * tokens)


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("network", "matrices"), [(Dense(d_ff=HIDDEN), 2), (Gated(d_ff=HIDDEN), 3), (None, 0)])
def test_a_training_step_has_six_flops_per_weight_and_token_and_its_attention(layers, network, matrices):
    config = CONFIG.replace(layers=layers, feed_forward=network)
    products = layers * (4 * WIDTH**2 + matrices * WIDTH * HIDDEN) + WIDTH * config.vocabulary
    assert flops_per_step(run_of(config)) == six_n_d(config, products)
    assert flops_per_step(run_of(config)) == model_flops(run_of(config))


@pytest.mark.parametrize(
    "how",
    [{"remat": "block"}, {"micro_batches": 5}, {"precision": "bfloat16"}, {"steps": 60, "evaluate_every": 20}],
    ids=str,
)
def test_flops_do_not_depend_on_how_or_how_often_a_step_is_computed(how):
    assert flops_per_step(run_of(**how)) == flops_per_step(run_of())


def test_weights_without_a_gradient_have_no_product_for_it():
    one_hot = CONFIG.replace(inputs=Tokens(lookup="one-hot"))
    frozen = CONFIG.replace(inputs=Tokens(lookup="one-hot", frozen=True))
    product = 2 * run_of().tokens_per_step * CONFIG.vocabulary * WIDTH
    assert flops_per_step(run_of(one_hot)) - flops_per_step(run_of()) == 2 * product
    assert flops_per_step(run_of(frozen)) - flops_per_step(run_of()) == product


@pytest.mark.slow
def test_products_of_the_optimizer_count():
    """Muon multiplies each matrix by its Gram matrix: 5 iterations of 3 products of the smaller side."""
    plain, muon = flops_per_step(run_of(optimizer=SGD())), flops_per_step(run_of(optimizer=Muon()))
    sides = [(WIDTH, WIDTH)] * 4 * LAYERS + [(WIDTH, HIDDEN)] * 2 * LAYERS
    gram = [2 * min(side) ** 2 * max(side) for side in sides]
    expected = 5 * sum(2 * own + 2 * min(side) ** 3 for own, side in zip(gram, sides, strict=True))
    assert muon - plain == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                {"model.feed_forward": Gated(d_ff=130)},
                {"model.head": LanguageModel(tied=True)},
                {"model.attention": Attention(heads=8, key_value_heads=2)},
                {"model.inputs": Tokens(lookup="one-hot", frozen=True)},
                {"model.positions": LearnedPositions(max_length=40)},
            )
        ),
    ],
    ids=str,
)
def test_flops_are_those_of_the_compiled_step(changes):
    """XLA counts elementwise operations too: of a model of width 64, less than a tenth of all."""
    model = CONFIG.replace(vocabulary=70, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=190))
    task = Copy(symbols=60, length=17, batch_size=8)
    run = Run(model=model, task=task, optimizer=SGD(), training=Training(steps=6, micro_batches=1))
    cost = cost_of_run(replace_at(run, changes), timed_steps=1)
    assert cost.flops_per_step <= cost.compiled_flops <= 1.1 * cost.flops_per_step


def test_loops_count_as_often_as_they_run():
    x, single = jnp.ones((7, 3, 3)), 2 * 3**3
    assert counted(lambda x: x[0] @ x[0], x) == single
    assert counted(lambda x: jax.lax.map(lambda y: y @ y, x), x) == 7 * single
    assert counted(lambda x: jax.lax.map(lambda y: y @ y, x, batch_size=2), x) == 7 * single
    nested = jax.lax.scan(lambda c, y: (jax.lax.fori_loop(0, 5, lambda _, own: own @ y, c), None), x[0], x)
    assert nested[0].shape == (3, 3)
    assert counted(lambda x: jax.lax.fori_loop(0, 5, lambda _, y: y @ y, x[0]), x) == 5 * single


def test_the_largest_branch_of_a_condition_counts():
    x = jnp.ones((3, 3))
    branches = (lambda x: x, lambda x: x @ x @ x, lambda x: x @ x)
    assert counted(lambda x: jax.lax.switch(1, branches, x), x) <= 2 * 2 * 3**3
    assert counted(lambda i, x: jax.lax.switch(i, branches, x), 1, x) == 2 * 2 * 3**3


def test_grouped_products_count_the_matrix_of_each_row():
    rows, experts = jnp.ones((10, 3)), jnp.ones((2, 3, 5))
    sizes = jnp.array([4, 6])

    def loss(rows, experts):
        return jax.lax.ragged_dot(rows, experts, sizes).sum()

    assert counted(loss, rows, experts) == 2 * 10 * 3 * 5
    assert counted(jax.grad(loss, argnums=(0, 1)), rows, experts) == 3 * 2 * 10 * 3 * 5


def test_kernels_of_pallas_count_once_per_cell_of_their_grid():
    def kernel(x, out):
        out[...] = x[...] @ x[...]

    def call(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 8), jnp.float32), grid=(4, 3))(x)

    assert counted(call, jnp.ones((8, 8))) == 4 * 3 * 2 * 8**3


def test_convolutions_and_solves_count_by_their_formulas():
    image, kernel = jnp.ones((2, 3, 9, 9)), jnp.ones((5, 3, 4, 4))
    assert counted(lambda a, b: jax.lax.conv(a, b, (1, 1), "VALID"), image, kernel) == 2 * (2 * 5 * 6 * 6) * 3 * 4 * 4
    a, b = jnp.ones((3, 6, 6)), jnp.ones((3, 6, 2))
    assert counted(lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True), a, b) == 3 * 6 * 6 * 2
    assert counted(jnp.linalg.cholesky, a) == 3 * 6**3 // 3


class OnTheHost(FeedForward):
    """A network whose product no trace shows."""

    class Weights(Parameters):
        matrix: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        hidden = jax.pure_callback(lambda x: np.asarray(x), shape, jax.lax.stop_gradient(x), vmap_method="expand_dims")
        return x @ weights.matrix + hidden


def test_operations_that_no_trace_shows_are_named(monkeypatch):
    run = run_of(CONFIG.replace(feed_forward=OnTheHost()))
    assert uncounted_primitives(run_of()) == ()
    assert uncounted_primitives(run) == ("pure_callback",)
    before = flops_per_step(run)
    monkeypatch.setitem(FORMULAS, "pure_callback", lambda equation: 1000 * math.prod(equation.outvars[0].aval.shape))
    monkeypatch.setattr("flaxformer.training.flops._COUNTED", {})
    assert uncounted_primitives(run) == ()
    assert flops_per_step(run) == before + LAYERS * 1000 * run.tokens_per_step * WIDTH


class Experts(FeedForward):
    """A network of which a token uses some of the matrices."""

    experts: int = static(5)
    active: int = static(2)

    class Weights(Parameters):
        router: Float[Array, "d_model experts"] = param(fan_in="d_model")
        matrix: Float[Array, "experts d_model d_model"] = param(fan_in="d_model", batch_axis="experts")

    def active_sizes(self):
        return {"experts": self.active}

    def apply(self, weights, x, context):
        return jnp.einsum("...d,ed,edf->...f", x, weights.router.T, weights.matrix)


def test_active_parameters_are_those_that_a_token_uses():
    config = CONFIG.replace(feed_forward=Experts())
    counts = parameter_counts(config)
    unused = LAYERS * 3 * (WIDTH + WIDTH**2)
    assert counts.total - counts.active == unused
    assert parameter_counts(CONFIG).active == parameter_counts(CONFIG).total


@pytest.mark.parametrize("active", [6, -1])
def test_active_sizes_are_at_most_the_sizes(active):
    config = CONFIG.replace(feed_forward=Experts(active=active))
    with pytest.raises(UserError, match=rf"Experts.active_sizes\(\) gives {active} for the axis 'experts'; .* 0 to 5"):
        parameter_counts(config)


@pytest.mark.parametrize(
    ("config", "tables"),
    [
        (CONFIG, (SYMBOLS + 2) * WIDTH),
        (CONFIG.replace(positions=LearnedPositions(max_length=19)), (SYMBOLS + 2 + 19) * WIDTH),
        (CONFIG.replace(inputs=Tokens(token_types=3)), (SYMBOLS + 2 + 3) * WIDTH),
        (CONFIG.with_encoder(layers=1), 2 * (SYMBOLS + 2) * WIDTH),
    ],
    ids=["tokens", "positions", "types", "encoder"],
)
def test_tables_of_tokens_and_positions_are_embeddings(config, tables):
    counts = parameter_counts(config)
    assert counts.total - counts.without_embeddings == tables


def test_a_projection_of_vectors_is_no_embedding():
    counts = parameter_counts(CONFIG.replace(inputs=Vectors(width=3)))
    assert counts.total - counts.without_embeddings == WIDTH  # the bias alone


def test_the_cost_of_a_run_is_that_of_its_steps():
    cost = run_cost(run_of(steps=60))
    assert cost.flops == 60 * flops_per_step(run_of())
    assert cost.tokens == 60 * run_of().tokens_per_step
    assert run_cost(run_of(steps=60), steps=20).flops * 3 == cost.flops


def test_flops_by_scope_are_those_of_the_parts_by_hand():
    """3 · 5 examples of T tokens: 2 products with weights of d_ff, 4 of attention with 2 of T × T, and the head."""
    run = run_of()
    scopes = flops_by_scope(run)
    assert sum(scopes.values()) == flops_per_step(run)
    tokens = run.tokens_per_step
    length = tokens // 5
    expected = {
        "feed_forward": LAYERS * tokens * 2 * 2 * WIDTH * HIDDEN,
        "attention": LAYERS * tokens * 2 * (4 * WIDTH * WIDTH + 2 * length * WIDTH),
        "head": tokens * 2 * WIDTH * (SYMBOLS + 2),
    }
    for part, forward in expected.items():
        found = {
            is_backward: sum(
                flops
                for scope, flops in scopes.items()
                if part_of(scope) == part and (direction_of(scope) == "backward") == is_backward
            )
            for is_backward in (False, True)
        }
        assert found == {False: forward, True: 2 * forward}, part


def test_a_loop_and_a_condition_count_by_scope_as_in_all():
    run = run_of(CONFIG.replace(layers=3), micro_batches=1)
    scanned = replace_at(run, {"optimizer": Muon()})
    assert sum(flops_by_scope(scanned).values()) == flops_per_step(scanned)
    assert sum(flops for scope, flops in flops_by_scope(scanned).items() if part_of(scope) == "optimizer") > 0
