"""Residual rules of the catalog equal loops over their equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_equal, context_of, drawn, through

from flaxformer.catalog import (
    AttentionResiduals,
    DenseFormer,
    DynamicHyperConnections,
    InputInjection,
    ManifoldHyperConnections,
    StochasticDepth,
    UNetSkips,
)

T, D, LAYERS, N = 3, 5, 2, 3
B = 2 * LAYERS
X, MAPS = drawn(x=(T, D))["x"], drawn(maps=(B, D, D))["maps"]


def of_branches(rule, **shapes):
    return [rule.Weights(**drawn(**shapes)) for _ in range(B)]


def rms(v):
    return v / jnp.sqrt((v**2).mean() + 1e-6)


def check(rule, weights, token):
    """Compare with a loop over tokens, each of which is computed alone."""

    def reference(weights, maps, x):
        return jnp.stack([token(weights, maps, x[t]) for t in range(T)])

    assert_equal(lambda weights, maps, x: through(rule, weights, maps, x, LAYERS), reference, weights, MAPS, X)


def test_dense_former_equals_its_equation():
    rule = DenseFormer()

    def token(weights, maps, x):
        former, y = [x], x
        for i in range(1, B + 1):
            former.append(y + jnp.tanh(y @ maps[i - 1]))
            y = former[i] + sum(weights[i - 1].average[j] * former[j] for j in range(i + 1))
        return y

    check(rule, of_branches(rule, average=B + 1), token)
    assert rule.axis_sizes({"layers": LAYERS})["places"] == B + 1


def test_attention_residuals_equal_their_equation():
    rule = AttentionResiduals()

    def token(weights, maps, x):
        values, h = [x], x
        for i in range(B):
            values.append(jnp.tanh(h @ maps[i]))
            scores = [jnp.exp(weights[i].query @ (weights[i].gain * rms(v))) for v in values]
            h = sum(score * v for score, v in zip(scores, values, strict=True)) / sum(scores)
        return h

    check(rule, of_branches(rule, query=D, gain=D), token)


def test_dynamic_hyper_connections_equal_their_equation():
    rule = DynamicHyperConnections(streams=N)

    def token(weights, maps, x):
        streams = [x] * N
        for i in range(B):
            w, centred = weights[i], [h - h.mean() for h in streams]
            normal = [c / jnp.sqrt((c**2).mean() + 1e-5) for c in centred]
            alpha = [w.read[n] + w.read_scale * jnp.tanh(normal[n] @ w.read_map) + (n == i // 2 % N) for n in range(N)]
            update = jnp.tanh(sum(a * h for a, h in zip(alpha, streams, strict=True)) @ maps[i])
            mix = [w.mix[m] + w.read_scale * jnp.tanh(normal[m] @ w.mix_map) for m in range(N)]
            beta = [w.write[n] + w.write_scale * jnp.tanh(normal[n] @ w.write_map) for n in range(N)]
            streams = [streams[n] + sum(mix[m][n] * streams[m] for m in range(N)) + beta[n] * update for n in range(N)]
        return sum(streams)

    shapes = {"read": N, "mix": (N, N), "write": N, "read_map": D, "mix_map": (D, N), "write_map": D}
    check(rule, of_branches(rule, **shapes, read_scale=(), write_scale=()), token)


def manifold_weights(rule):
    maps = {"pre_map": (N, D, N), "post_map": (N, D, N), "mix_map": (N, D, N, N)}
    biases = {"pre_bias": N, "post_bias": N, "mix_bias": (N, N)}
    return of_branches(rule, **maps, **biases, pre_scale=(), post_scale=(), mix_scale=())


@pytest.mark.long
def test_manifold_hyper_connections_equal_their_equation():
    rule = ManifoldHyperConnections(streams=N, iterations=3)

    def token(weights, maps, x):
        streams = jnp.stack([x] * N)
        for i in range(B):
            w, v = weights[i], rms(streams.reshape(-1))
            pre = 1 / (1 + jnp.exp(-(w.pre_scale * v @ w.pre_map.reshape(-1, N) + w.pre_bias)))
            post = 2 / (1 + jnp.exp(-(w.post_scale * v @ w.post_map.reshape(-1, N) + w.post_bias)))
            mix = jnp.exp(w.mix_scale * (v @ w.mix_map.reshape(-1, N * N)).reshape(N, N) + w.mix_bias)
            for _ in range(3):
                mix = mix / mix.sum(1, keepdims=True)
                mix = mix / mix.sum(0, keepdims=True)
            update = jnp.tanh(pre @ streams @ maps[i])
            streams = jnp.stack([mix[n] @ streams + post[n] * update for n in range(N)])
        return streams.sum(0)

    check(rule, manifold_weights(rule), token)


def test_manifold_hyper_connections_keep_the_sum_of_the_streams():
    rule = ManifoldHyperConnections(streams=N, iterations=200)
    weights, stream = jax.tree.map(jnp.asarray, (manifold_weights(rule)[0], drawn(stream=(T, N, D))["stream"]))
    mixed = rule.join(weights, stream, jnp.zeros((T, D)), context_of(X, layer=0, layers=LAYERS))
    np.testing.assert_allclose(mixed.sum(1), stream.sum(1), rtol=1e-3, atol=1e-4)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("layers", [1, 4, 5])
def test_unet_skips_equal_their_equation(layers):
    rule, maps = UNetSkips(), drawn(maps=(2 * layers, D, D))["maps"]
    weights = [rule.Weights(**drawn(skip=())) for _ in range(2 * layers)]

    def reference(weights, maps, x):
        saved = []
        for layer in range(layers):
            if layer >= layers - layers // 2:
                x = x + weights[2 * layer].skip * saved.pop()
            for matrix in maps[2 * layer : 2 * layer + 2]:
                x = x + jnp.tanh(x @ matrix)
            saved += [x] if layer < layers // 2 else []
        return x

    assert_equal(lambda weights, maps, x: through(rule, weights, maps, x, layers), reference, weights, maps, X)


@pytest.mark.parametrize("every", [1, 2])
def test_input_injection_equals_its_equation(every):
    rule = InputInjection(every=every)

    def token(weights, maps, x):
        y = 0
        for i in range(B):
            y = y + x if i % (2 * every) == 0 else y
            y = y + jnp.tanh(y @ maps[i])
        return y

    check(rule, [rule.Weights()] * B, token)


def test_stochastic_depth_scales_branches_in_evaluation():
    rule = StochasticDepth(survival=0.4)

    def token(weights, maps, x):
        for i in range(B):
            x = x + (1 - (i // 2 + 1) / LAYERS * 0.6) * jnp.tanh(x @ maps[i])
        return x

    check(rule, [rule.Weights()] * B, token)


@pytest.mark.parametrize(("layer", "probability"), [(0, 0.7), (1, 0.4)])
def test_stochastic_depth_keeps_a_share_of_the_branches(layer, probability):
    rule, update = StochasticDepth(survival=0.4), jnp.ones((T, D))

    def join(key):
        context = context_of(X, layer=layer, layers=LAYERS, training=True, key=key)
        return rule.join(rule.Weights(), jnp.zeros((T, D)), update, context)

    results = np.array(jax.vmap(join)(jax.random.split(jax.random.key(0), 4000)))
    assert set(np.unique(results)) == {0, 1}
    assert (results == results[:, :1, :1]).all()
    assert abs(results[:, 0, 0].mean() - probability) < 4 * np.sqrt(probability * (1 - probability) / 4000)


@pytest.mark.parametrize(
    "rule", [DenseFormer(), DynamicHyperConnections(streams=1)], ids=lambda rule: type(rule).__name__
)
def test_initially_the_rule_is_the_plain_residual_connection(rule):
    zeros = {"average": np.zeros(B + 1)}
    if isinstance(rule, DynamicHyperConnections):
        zeros = {"read": [0.0], "mix": [[0.0]], "write": [1.0], "read_map": np.zeros(D), "write_map": np.zeros(D)}
        zeros |= {"mix_map": np.zeros((D, 1)), "read_scale": 0.01, "write_scale": 0.01}
    weights = jax.tree.map(np.asarray, rule.Weights(**zeros), is_leaf=lambda x: isinstance(x, list))
    expected = X
    for matrix in MAPS:
        expected = expected + np.tanh(expected @ matrix)
    with jax.enable_x64(True):
        np.testing.assert_allclose(through(rule, [weights] * B, MAPS, jnp.asarray(X), LAYERS), expected, rtol=1e-12)
