"""The second half of the example components: each study trains a step, and each model obeys the laws of a decoder."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer.component import Aux, Context
from flaxformer.config import Dense, Residual
from flaxformer.model import apply, extend, init, new_cache
from flaxformer.model.transformer import with_layout
from flaxformer.params import path_name
from flaxformer.struct import replace_at
from flaxformer.study.load import load_study
from flaxformer.training import evaluate, start, train_step

FOLDER = Path(__file__).parents[2] / "examples" / "components"
NAMES = (
    "local_global",
    "looped_block",
    "value_residual",
    "hyper_connections",
    "contextual_positions",
    "dynamic_tanh",
    "multi_token_prediction",
    "own_optimizer",
    "wsd_schedule",
    "learned_activation",
    "own_task",
)
MODELS = {
    "local_global": "pattern=3 local + 1 global",
    "looped_block": "blocks=1 block × 4",
    "value_residual": "share=half",
    "hyper_connections": "residual=4 streams",
    "contextual_positions": "positions=contextual",
    "dynamic_tanh": "norm=DyT",
    "multi_token_prediction": "head=4 tokens",
    "learned_activation": "activation=learned Swish",
}
"""The arm of each study that has the component in its model."""
T, V = 7, 13


@functools.cache
def study_of(name):
    return load_study(FOLDER / f"{name}.py")


def component(name, kind):
    """A class that a study's file defines."""
    study_of(name)
    [module] = [own for key, own in sys.modules.items() if key.startswith(f"{name}@")]
    return getattr(module, kind)


def small(config, **changes):
    """The model with two layers, the last two of a pattern, and few dimensions."""
    return config.replace(layers=min(2, config.layers), d_model=16, pattern=config.pattern[-2:], **changes)


@functools.cache
def model_of(name):
    """The model of a component at reduced size, and weights none of which is at an initial 0 or 1."""
    [run] = [arm.run for arm in study_of(name).arms() if arm.name == MODELS[name]]
    config, dice = small(run.model, vocabulary=V), np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), config))
    return config, jax.tree.map(lambda x: jnp.asarray(0.5 * dice.standard_normal(x.shape), jnp.float32), shapes)


TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, V - 1, (2, T)))
LEFT, RIGHT = (jnp.stack([jnp.ones(T, bool), own]) for own in (jnp.arange(T) >= 2, jnp.arange(T) < T - 2))
"""Padding of the second of two sequences."""
extended = jax.jit(extend)
models = pytest.mark.parametrize("name", MODELS)


@jax.jit
def _forward(params, config, tokens, valid, positions):
    return apply(params, config, tokens, valid=valid, positions=positions)


def forward(params, config, tokens, valid):
    """`apply` with positions that count no padding, as a cache has them."""
    return _forward(params, config, tokens, valid, jnp.maximum(valid.cumsum(-1) - 1, 0))


def close(x, y):
    np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5 * max(1, np.abs(y).max()))


# --- every study -------------------------------------------------------------------------------------------


def first_step(runs, batch):
    """The state and metrics after one step of a group of runs, layers scanned."""
    return jax.vmap(lambda run: train_step(start(run, "scanned"), run, batch))(runs)


def group_of(arm):
    """Two seeds of an arm at reduced size, in bfloat16, and a batch."""
    run = arm.run.replace(model=small(arm.run.model), task=arm.run.task.replace(batch_size=2))
    run = replace_at(run, {"training.precision": "bfloat16"})
    runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.replace(seed=seed) for seed in (100, 101)))
    return runs, run.task.load().batch(jax.random.key(0), 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_has_a_training_step(name):
    study = study_of(name)
    assert study.name == name
    assert study.claims
    assert study.caveats
    for arm in study.arms():
        runs, batch = group_of(arm)
        begun = jax.eval_shape(jax.vmap(lambda run: start(run, "scanned")), runs)
        state, _ = jax.eval_shape(first_step, runs, batch)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), begun)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_takes_a_step_in_bfloat16_scanned_and_mapped_over_seeds(name):
    for arm in study_of(name).arms():
        state, metrics = jax.jit(first_step)(*group_of(arm))
        assert (state.diverged_at == -1).all()
        assert np.isfinite(metrics["loss"]).all()
        assert (metrics["gradient_norm"] > 0).all()
        assert metrics["loss"][0] != metrics["loss"][1]


# --- every model -------------------------------------------------------------------------------------------


@models
def test_decoding_equals_the_whole_sequence(name):
    config, params = model_of(name)
    whole = forward(params, config, TOKENS, LEFT)
    cache, found = new_cache(params, config, (2,), T + 1), []
    for start_of, end in [(0, 3), *((t, t + 1) for t in range(3, T))]:
        part = slice(start_of, end)
        output, cache = extended(params, config, TOKENS[:, part], cache, valid=LEFT[:, part])
        found.append(output)
    close(jnp.concatenate(found, axis=1)[LEFT], whole[LEFT])


@models
@pytest.mark.parametrize("valid", [LEFT, RIGHT], ids=["left", "right"])
def test_padding_changes_nothing_even_when_it_is_nan(name, valid):
    config, params = model_of(name)
    table = params.embedding.tokens.at[V - 1].set(jnp.nan)
    params = params.replace(embedding=params.embedding.replace(tokens=table))
    found = forward(params, config, jnp.where(valid, TOKENS, V - 1), valid)[valid]
    assert np.isfinite(found).all()
    close(found, forward(params, config, TOKENS, valid)[valid])


@jax.jit
def sensitivity(params, config, tokens):
    """|d output[t] / d embedding[s]|, [T, T], where each token has a row of the embedding table to itself."""

    def of_vectors(vectors):
        placed = params.replace(embedding=params.embedding.replace(tokens=vectors))
        return apply(placed, config, jnp.arange(T)) @ jnp.cos(jnp.arange(V))

    return jnp.abs(jax.jacrev(of_vectors)(params.embedding.tokens[tokens])).sum(-1)


@models
def test_the_gradient_sees_no_future_and_all_of_the_past(name):
    config, params = model_of(name)
    seen = np.asarray(sensitivity(params, config, TOKENS[0])) > 0
    assert (seen == np.tri(T, dtype=bool)).all()


@pytest.mark.slow
@models
def test_scanned_layers_equal_unrolled_ones(name):
    config, params = model_of(name)
    scanned = with_layout(params, "scanned")
    assert jax.tree.structure(scanned) != jax.tree.structure(params)
    close(forward(scanned, config, TOKENS, LEFT)[LEFT], forward(params, config, TOKENS, LEFT)[LEFT])


# --- each component ----------------------------------------------------------------------------------------


def test_a_looped_block_is_a_stack_of_equal_blocks():
    config, params = model_of("looped_block")
    assert len(params.blocks) == 1
    close(
        forward(params, config, TOKENS, LEFT)[LEFT],
        forward(params.replace(blocks=params.blocks * 2), config.replace(distinct_blocks=None), TOKENS, LEFT)[LEFT],
    )


def test_a_value_residual_of_1_reads_the_values_of_the_first_layer_alone():
    config, params = model_of("value_residual")

    def without_value(layer, share):
        own = params.blocks[layer]
        attention = own.attention.replace(value=jnp.zeros_like(own.attention.value))
        blocks = (*params.blocks[:layer], own.replace(attention=attention), *params.blocks[layer + 1 :])
        changed = replace_at(config, {"attention.share": share})
        return forward(params.replace(blocks=blocks), changed, TOKENS, LEFT)[LEFT]

    whole = forward(params, replace_at(config, {"attention.share": 1.0}), TOKENS, LEFT)[LEFT]
    close(without_value(1, 1.0), whole)
    assert np.abs(without_value(0, 1.0) - whole).max() > 1e-3
    assert np.abs(without_value(1, 0.5) - whole).max() > 1e-3


def test_hyper_connections_begin_as_the_plain_rule():
    (config, params), plain = model_of("hyper_connections"), Residual()
    rule = type(config.residual)
    initial = rule.Weights(read=jnp.zeros(4), mix=jnp.zeros((4, 4)), write=jnp.ones(4))

    def output(residual, weights):
        def around(connection):
            return connection.replace(residual=weights)

        blocks = tuple(
            block.replace(
                attention_connection=around(block.attention_connection),
                feed_forward_connection=around(block.feed_forward_connection),
            )
            for block in params.blocks
        )
        return forward(params.replace(blocks=blocks), config.replace(residual=residual), TOKENS, LEFT)[LEFT]

    # Equal but for the last norm's ε, for the sum of n streams is n times the one.
    np.testing.assert_allclose(output(config.residual, initial), output(plain, plain.Weights()), atol=1e-4)


def test_contextual_positions_count_the_gates_between_query_and_key():
    scheme = component("contextual_positions", "ContextualPositions")(farthest=2)
    dice = np.random.default_rng(2)
    query, key, table = (dice.standard_normal(shape) for shape in ((T, 1, 4), (T, 1, 4), (3, 4)))
    mask = np.tri(T, dtype=bool)[None] & (np.arange(T) != 1)
    found = scheme.query_bias(
        scheme.Weights(table=jnp.asarray(table)), jnp.asarray(query), jnp.asarray(key), None, None, jnp.asarray(mask)
    )
    gates = mask[0] / (1 + np.exp(-query[:, 0] @ key[:, 0].T / 2))
    for t in range(T):
        for s in range(t + 1):
            vector = [np.interp(gates[t, s : t + 1].sum(), range(3), column) for column in table.T]
            np.testing.assert_allclose(found[0, t, s], query[t, 0] @ vector, rtol=1e-4, atol=1e-5)


def test_dynamic_tanh_is_its_formula():
    norm = component("dynamic_tanh", "DynamicTanh")()
    x, weights = np.linspace(-3, 3, 12).reshape(2, 3, 2), norm.Weights(slope=0.7, gain=jnp.ones(2), bias=jnp.zeros(2))
    context = Context(query_positions=jnp.arange(3), key_positions=jnp.arange(3))
    np.testing.assert_allclose(norm.apply(weights, jnp.asarray(x), context), np.tanh(0.7 * x), rtol=1e-5)


def test_a_head_for_several_tokens_is_trained_on_all_and_judged_by_the_next():
    head, vocabulary = component("multi_token_prediction", "MultiToken")(ahead=3), 5
    targets = jnp.array([[1, 2, 3, 4, 0]])
    right = [9.0 * jax.nn.one_hot(jnp.roll(targets, -i, axis=-1), vocabulary) for i in range(3)]
    output, later = right[0], {"head/later": right[1:]}
    scored = jnp.array([[1.0, 1, 1, 1, 0]])
    next_token = float(head.loss(output, targets, scored)[0])
    total, count = head.training_loss(output, Aux(intermediates=later), targets, scored)
    assert count == 4
    # Of four scored targets, three have a scored one after them, and two have one after that.
    np.testing.assert_allclose(total, next_token * (4 + 3 + 2) / 4, rtol=1e-5)


def test_the_validation_loss_of_a_head_for_several_tokens_is_that_of_the_next():
    [arm] = [arm for arm in study_of("multi_token_prediction").arms() if arm.name == "head=4 tokens"]
    run = replace_at(arm.run, {"task.batch_size": 2, "task.evaluation_batches": 1, "model.d_model": 16})
    state, source = start(run), run.task.load()
    found = jax.jit(evaluate)(state.params, run, source)
    assert abs(found["validation_loss"] - np.log(256)) < 1


def test_signum_moves_every_weight_by_the_rate():
    optimizer = component("own_optimizer", "Signum")(momentum=0.5)
    chain, params = optimizer.transformation(0.1), jnp.array([1.0, 1.0, 1.0])
    state = chain.init(params)
    for gradient in ([3.0, -0.1, 1.0], [-1.0, 0.2, 1.0]):
        update, state = chain.update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, update)
    # The mean of the first number's gradients is 3/4 − 1/2, of the second's −1/40 + 1/10.
    np.testing.assert_allclose(params, [0.8, 1.0, 0.8], rtol=1e-6)


def test_wsd_is_flat_and_then_falls_to_0():
    schedule = component("wsd_schedule", "WarmupStableDecay")(share=0.25)
    fractions = [float(schedule.fraction(jnp.float32(at), jnp.float32(1))) for at in (0, 0.75, 0.8125, 1)]
    np.testing.assert_allclose(fractions, [1, 1, 0.5, 0], atol=1e-6)


def test_learned_swish_begins_as_swish():
    config, _ = model_of("learned_activation")
    network, fixed = config.feed_forward, Dense(activation="silu", bias=False)
    dice = np.random.default_rng(3)
    up, down, x = (jnp.asarray(dice.standard_normal(shape)) for shape in ((16, 24), (24, 16), (2, 16)))
    context = Context(query_positions=jnp.arange(2), key_positions=jnp.arange(2))
    learned = network.Weights(up=up, down=down, slope=jnp.ones(24))
    close(network.apply(learned, x, context), fixed.apply(fixed.Weights(up=up, down=down), x, context))


@pytest.mark.parametrize("written", [False, True], ids=["at the end", "after every bit"])
def test_parity_is_that_of_the_bits_so_far(written):
    task = component("own_task", "Parity")(bits=5, written=written, batch_size=8)
    batch = jax.device_get(task.load().batch(jax.random.key(0), 0))
    assert batch.inputs.shape == (8, task.sequence_length)
    for tokens, target, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
        scored = np.flatnonzero(weights)
        assert len(scored) == (5 if written else 1)
        for place in scored:
            before = tokens[: place + 1]
            assert target[place] == 2 + before[before < 2].sum() % 2


def test_every_weight_of_a_component_is_named_in_its_model():
    names = {
        "hyper_connections": "blocks/0/attention_connection/residual/mix",
        "contextual_positions": "positions/table",
        "dynamic_tanh": "final_norm/slope",
        "multi_token_prediction": "head/later",
        "learned_activation": "blocks/0/feed_forward/slope",
    }
    for name, path in names.items():
        paths = [path_name(own) for own, _ in jax.tree_util.tree_leaves_with_path(model_of(name)[1])]
        assert path in paths
