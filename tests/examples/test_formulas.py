"""Every example component equals its formula, written a second time in NumPy or from the package's own parts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from studies import VOCABULARY, class_of, model_of, study_of

from flaxformer.components import Attention, Dense, FeedForward, Residual
from flaxformer.components.component import Aux, Context, with_aux
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.model import apply, specs
from flaxformer.model.weights import with_layout
from flaxformer.training import evaluate, start
from flaxformer.training.per_layer import matrix_dimensions

T = 7
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, VOCABULARY, (2, T)))
forward = jax.jit(apply)


def component(name, kind, **fields):
    """A component that a study's file defines, and weights of it, for a model of width 6."""
    own, dice = class_of(name, kind)(**fields), np.random.default_rng(0)
    place = "feed_forward" if isinstance(own, FeedForward) else "attention"
    model = ModelConfig(layers=1, d_model=6, **({"attention": Attention(heads=2)} | {place: own}))
    declared = getattr(specs(model).blocks[0], place)
    return own, jax.tree.map(lambda spec: np.float32(dice.standard_normal(spec.shape)), declared)


def close(x, y, tolerance=2e-5):
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max()))


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


def test_a_looped_block_is_a_stack_of_equal_blocks():
    config, params = model_of("looped_block")
    assert len(params.blocks) == 1
    close(
        forward(params, config, TOKENS),
        forward(params.replace(blocks=params.blocks * 2), config.replace(distinct_blocks=None), TOKENS),
    )


def test_a_value_residual_of_1_reads_the_values_of_the_first_layer_alone():
    config, params = model_of("value_residual")

    def without_value(layer, share):
        own = params.blocks[layer]
        attention = own.attention.replace(value=jnp.zeros_like(own.attention.value))
        blocks = (*params.blocks[:layer], own.replace(attention=attention), *params.blocks[layer + 1 :])
        changed = replace_at(config, {"attention.share": share})
        return forward(params.replace(blocks=blocks), changed, TOKENS)

    whole = forward(params, replace_at(config, {"attention.share": 1.0}), TOKENS)
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
        return forward(params.replace(blocks=blocks), config.replace(residual=residual), TOKENS)

    # Equal but for the last norm's ε, for the sum of n streams is n times the one.
    np.testing.assert_allclose(output(config.residual, initial), output(plain, plain.Weights()), atol=1e-4)


def test_contextual_positions_count_the_gates_between_query_and_key():
    scheme = class_of("contextual_positions", "ContextualPositions")(farthest=2)
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
    norm = class_of("dynamic_tanh", "DynamicTanh")()
    x, weights = np.linspace(-3, 3, 12).reshape(2, 3, 2), norm.Weights(slope=0.7, gain=jnp.ones(2), bias=jnp.zeros(2))
    context = Context(query_positions=jnp.arange(3), key_positions=jnp.arange(3))
    np.testing.assert_allclose(norm.apply(weights, jnp.asarray(x), context), np.tanh(0.7 * x), rtol=1e-5)


def test_a_head_for_several_tokens_is_trained_on_all_and_judged_by_the_next():
    head, vocabulary = class_of("multi_token_prediction", "MultiToken")(horizon=3), 5
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
    optimizer = class_of("own_optimizer", "Signum")(momentum=0.5)
    chain, params = optimizer.transformation(0.1), jnp.array([1.0, 1.0, 1.0])
    state = chain.init(params)
    for gradient in ([3.0, -0.1, 1.0], [-1.0, 0.2, 1.0]):
        update, state = chain.update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, update)
    # The mean of the first number's gradients is 3/4 − 1/2, of the second's −1/40 + 1/10.
    np.testing.assert_allclose(params, [0.8, 1.0, 0.8], rtol=1e-6)


def test_wsd_is_flat_and_then_falls_to_0():
    schedule = class_of("wsd_schedule", "WarmupStableDecay")(share=0.25)
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
    task = class_of("own_task", "Parity")(bits=5, written=written, batch_size=8)
    batch = jax.device_get(task.load().batch(jax.random.key(0), 0))
    assert batch.inputs.shape == (8, task.sequence_length)
    for tokens, target, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
        scored = np.flatnonzero(weights)
        assert len(scored) == (5 if written else 1)
        for place in scored:
            before = tokens[: place + 1]
            assert target[place] == 2 + before[before < 2].sum() % 2
