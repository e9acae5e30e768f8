"""The first half of the example components: each study trains a step, and each model obeys the laws of a decoder."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.component import Context, with_aux
from flaxformer.config import Attention, FeedForward, ModelConfig
from flaxformer.model import apply, generate, init, specs
from flaxformer.model.transformer import with_layout
from flaxformer.struct import replace_at
from flaxformer.study.load import load_study
from flaxformer.training import start, train_step
from flaxformer.training.by_layer import matrix_dimensions

FOLDER = Path(__file__).parents[2] / "examples" / "components"
MODELS = {
    "sigmoid_attention": "attention=sigmoid",
    "differential_attention": "attention=differential",
    "attention_sinks": "attention=sink",
    "mixture_of_experts": "network=experts",
    "gated_linear_attention": "mixer=gated linear",
    "gated_delta_rule": "write=delta",
    "short_convolution": "first=convolution",
}
"""The arm of each study that has the component in its model."""
B, T, V, PROMPT = 3, 7, 13, 3


@functools.cache
def study_of(name):
    return load_study(FOLDER / f"{name}.py")


def component(name, kind, **fields):
    """A component that a study's file defines, as a class in that file; and weights of it, for a model of width 6."""
    study_of(name)
    [module] = [own for key, own in sys.modules.items() if key.startswith(f"{name}@")]
    own, dice = getattr(module, kind)(**fields), np.random.default_rng(0)
    place = "feed_forward" if isinstance(own, FeedForward) else "attention"
    model = ModelConfig(layers=1, d_model=6, **({"attention": Attention(heads=2)} | {place: own}))
    declared = getattr(specs(model).blocks[0], place)
    return own, jax.tree.map(lambda spec: np.float32(dice.standard_normal(spec.shape)), declared)


def small(config):
    """The model with few dimensions and words."""
    return config.replace(d_model=16, vocabulary=V)


def drawn(shapes, batch=()):
    """Random numbers of these shapes, by NumPy: `init` compiles a program for every model."""
    dice = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * dice.standard_normal((*batch, *x.shape)), jnp.float32), shapes)


@functools.cache
def model_of(name, layers=2):
    """The model of a component at reduced size, and weights none of which is at an initial 0 or 1."""
    [run] = [arm.run for arm in study_of(name).arms() if arm.name == MODELS[name]]
    config = small(run.model).replace(layers=layers)
    return config, drawn(jax.eval_shape(lambda: init(jax.random.key(0), config)))


TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, V - 1, (B, T)))
PADDED = {
    side: jnp.stack([own, jnp.ones(T, bool), own])
    for side, own in {"left": jnp.arange(T) >= 2, "right": jnp.arange(T) < T - 2, "middle": jnp.arange(T) != 3}.items()
}
forward = jax.jit(apply)
models = pytest.mark.parametrize("name", MODELS)


def close(x, y, tolerance=2e-5):
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max()))


# --- every study -------------------------------------------------------------------------------------------


steps = jax.jit(jax.vmap(train_step, in_axes=(0, 0, None)))
"""A step of each run of a group, on one batch."""


def smallest(run):
    return replace_at(run, {"task.batch_size": 2, "task.evaluation_batches": 1, "model.d_model": 16})


@pytest.mark.slow
@models
def test_every_arm_takes_a_step_in_bfloat16_scanned_and_mapped_over_seeds(name):
    study = study_of(name)
    assert study.name == name
    assert study.claims
    assert study.caveats
    for arm in study.arms():
        run = replace_at(smallest(arm.run), {"training.precision": "bfloat16"})
        runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.replace(seed=seed) for seed in (100, 101)))
        shapes = jax.eval_shape(lambda run=run: start(run, "scanned"))
        state = jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), shapes)
        state = state.replace(params=drawn(shapes.params, batch=(2,)), diverged_at=jnp.full(2, -1))
        state, metrics = steps(state, runs, run.task.load().batch(jax.random.key(0), 0))
        assert (state.diverged_at == -1).all()
        assert np.isfinite(metrics["loss"]).all()
        assert (metrics["gradient_norm"] > 0).all()
        assert metrics["loss"][0] != metrics["loss"][1]


@pytest.mark.parametrize("name", ["attention_sinks", "mixture_of_experts"])
def test_a_study_measures_a_share(name):
    study, config = study_of(name), model_of(name)[0].replace(vocabulary=256)
    run = smallest(study.baseline).replace(model=config)
    params = drawn(jax.eval_shape(lambda: init(jax.random.key(0), config)))
    [share] = jax.jit(study.measure)(params, run).values()
    assert 0 < share < 1


# --- every model -------------------------------------------------------------------------------------------


@models
def test_decoding_equals_the_whole_sequence(name):
    config, params = model_of(name)
    prompt, valid = TOKENS[:, :PROMPT], jnp.array([[False, True, True], [True, True, False], [True, True, True]])
    found = generate(params, config, prompt, steps=T - PROMPT, valid=valid)
    rows = [[*own[keep].tolist(), *new.tolist()] for own, keep, new in zip(prompt, valid, found.tokens, strict=True)]
    lengths = np.array([len(row) for row in rows])
    whole = np.array([row + [V - 1] * (T - len(row)) for row in rows])
    logits = forward(params, config, jnp.asarray(whole), valid=jnp.asarray(np.arange(T)[None] < lengths[:, None]))
    steps = lengths[:, None] - (T - PROMPT) + np.arange(T - PROMPT)[None] - 1  # the place that says each new token
    said = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), steps[..., None], axis=1)
    np.testing.assert_array_equal(found.tokens, said.argmax(-1))
    np.testing.assert_allclose(found.log_probabilities, said.max(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@models
@pytest.mark.parametrize("side", PADDED)
def test_padding_changes_nothing_even_when_it_is_nan(name, side):
    (config, params), valid = model_of(name), PADDED[side]
    table = params.embedding.tokens.at[V - 1].set(jnp.nan)
    params = params.replace(embedding=params.embedding.replace(tokens=table))
    found = forward(params, config, jnp.where(valid, TOKENS, V - 1), valid=valid)[valid]
    assert np.isfinite(found).all()
    close(found, forward(params, config, TOKENS, valid=valid)[valid])


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
    # A scan runs over periods of the pattern, and there must be two.
    config, params = model_of(name, layers=4 if model_of(name)[0].pattern else 2)
    scanned, valid = with_layout(params, "scanned"), PADDED["left"]
    assert jax.tree.structure(scanned) != jax.tree.structure(params)
    close(forward(scanned, config, TOKENS, valid=valid)[valid], forward(params, config, TOKENS, valid=valid)[valid])


# --- each component against NumPy --------------------------------------------------------------------------


def applied(own, weights, x, valid=None):
    """The update of a sequence, and what else the component gives."""
    places = jnp.arange(x.shape[-2])
    context = Context(query_positions=places, key_positions=places, valid=valid)
    return with_aux(jax.jit(own.apply)(jax.tree.map(jnp.asarray, weights), jnp.asarray(x, jnp.float32), context))


X = np.random.default_rng(2).standard_normal((T, 6))
LOGITS = np.random.default_rng(3).standard_normal((4, T, T))
MASK = np.broadcast_to(np.tri(T, dtype=bool) & (np.arange(T) != 0), LOGITS.shape)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def normal(x):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)


def softmax(logits, further=0.0):
    exponentials = np.exp(logits) * MASK
    total = exponentials.sum(-1, keepdims=True) + further
    return exponentials / np.where(total > 0, total, 1)


def test_sigmoid_attention_is_its_formula():
    own, weights = component("sigmoid_attention", "SigmoidAttention", heads=2)
    expected = sigmoid(LOGITS - np.log(np.maximum(MASK.sum(-1, keepdims=True), 1))) * MASK
    close(own.normalize(weights, jnp.asarray(LOGITS), jnp.asarray(MASK)), expected)


def test_a_sink_is_a_term_of_the_denominator():
    own, weights = component("attention_sinks", "SinkAttention", heads=4, d_head=3)
    weights = weights.replace(sink=jnp.array([0.5, -1.0, 2.0, 0.0]))
    expected = softmax(LOGITS, np.exp(weights.sink).reshape(4, 1, 1))
    close(own.normalize(weights, jnp.asarray(LOGITS), jnp.asarray(MASK)), expected)


def test_differential_attention_is_its_formula():
    own, weights = component("differential_attention", "DifferentialAttention", heads=4, d_head=3)
    maps, value = softmax(LOGITS), np.random.default_rng(4).standard_normal((T, 4, 3))
    q, k = weights.lambda_query, weights.lambda_key
    factor = np.exp(q[0] @ k[0]) - np.exp(q[1] @ k[1]) + 0.8
    found = own.normalize(weights, jnp.asarray(LOGITS), jnp.asarray(MASK))
    mixed = own.combine(weights, found, jnp.asarray(value), None)
    for head in range(2):
        attention = maps[2 * head] - factor * maps[2 * head + 1]
        close(found[head], attention)
        y = normal(attention @ np.concatenate([value[:, 2 * head], value[:, 2 * head + 1]], axis=-1)) * (1 - 0.8)
        close(mixed[:, 2 * head : 2 * head + 2].reshape(T, 6), y, 1e-4)


def test_a_mixture_of_experts_is_its_formula():
    own, weights = component("mixture_of_experts", "MixtureOfExperts", experts=4, active=2, d_ff=5, balance=0.5)
    valid = np.arange(T) < T - 1
    y, aux = applied(own, weights, X, jnp.asarray(valid))
    exponentials = np.exp(X @ weights.router)
    probability, counts = exponentials / exponentials.sum(-1, keepdims=True), np.zeros(4)
    for t in np.flatnonzero(valid):
        chosen = probability[t].argsort()[-2:]
        counts[chosen] += 1
        outputs = [np.maximum(X[t] @ weights.up[e], 0) @ weights.down[e] * probability[t, e] for e in chosen]
        close(y[t], sum(outputs) / probability[t, chosen].sum())
    load = counts / counts.sum()
    close(aux.statistics["load"], load)
    close(aux.losses["balance"], 0.5 * 4 * (load * probability[valid].mean(0)).sum())


def test_experts_are_initialised_and_orthogonalised_one_by_one():
    config, params = model_of("mixture_of_experts")
    up, down = specs(config).blocks[0].feed_forward.up, specs(config).blocks[0].feed_forward.down
    assert (up.fan_in, up.fan_out, down.fan_in, down.fan_out) == (16, 64, 64, 16)
    for layout, places in {"unrolled": (1, 2), "scanned": (2, 3)}.items():
        blocks = matrix_dimensions(with_layout(params, layout)).blocks
        own = (blocks[0] if layout == "unrolled" else blocks).feed_forward.up
        assert (own.reduction_axis, own.output_axis) == ((places[0],), (places[1],))


def recurrent(weights, x, next_state, heads, d_key, d_value):
    """y_t = (norm(q_t S_t) ⊙ silu(x_t W_g)) W_O, token by token."""
    states, found = np.zeros((heads, d_key, d_value)), []
    for token in x:
        y = np.zeros((heads, d_value))
        for head in range(heads):
            maps = {name: token @ np.asarray(own)[:, head] for name, own in vars(weights).items()
                    if name not in ("out", "decay_bias")}  # fmt: skip
            query, states[head] = next_state(head, maps, states[head])
            y[head] = normal(query @ states[head]) * silu(maps["gate"])
        found.append(np.einsum("nv,nvd->d", y, weights.out))
    return np.stack(found)


def test_gated_linear_attention_is_its_recurrence():
    own, weights = component("gated_linear_attention", "GatedLinearAttention", heads=2, d_key=3, d_value=4)

    def next_state(head, maps, state):
        decay = sigmoid(maps["decay"] + weights.decay_bias[head]) ** (1 / 16)
        return maps["query"], decay[:, None] * state + np.outer(maps["key"], maps["value"])

    close(applied(own, weights, X)[0], recurrent(weights, X, next_state, 2, 3, 4), 1e-3)


@pytest.mark.parametrize("delta", [True, False])
def test_the_gated_delta_rule_is_its_recurrence(delta):
    own, weights = component("gated_delta_rule", "GatedDeltaRule", heads=2, d_key=3, d_value=4, delta=delta)

    def next_state(head, maps, state):
        query, key = (silu(maps[name]) / np.linalg.norm(silu(maps[name])) for name in ("query", "key"))
        state = sigmoid(maps["decay"] + weights.decay_bias[head]) * state
        old = key @ state if delta else 0
        return query, state + np.outer(key, sigmoid(maps["strength"]) * (maps["value"] - old))

    close(applied(own, weights, X)[0], recurrent(weights, X, next_state, 2, 3, 4), 1e-3)


def test_a_short_convolution_is_its_sum_and_skips_padding():
    own, weights = component("short_convolution", "ShortConvolution", width=3)
    valid = np.array([True, True, False, True, False, True, True])
    x = np.concatenate([np.zeros((2, 6)), X[valid]])
    expected = [sum(weights.kernel[i] * x[t + i] for i in range(3)) for t in range(valid.sum())]
    close(applied(own, weights, np.where(valid[:, None], X, np.nan), jnp.asarray(valid))[0][valid], np.stack(expected))
