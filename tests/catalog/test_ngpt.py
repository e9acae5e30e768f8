"""The parts of nGPT equal their equations, token by token, and its rows have length 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import model_of, run_of, weights_of
from naive import D, N, assert_attention, attention_loop, output, projected, sequence
from references import assert_equal, context_of, drawn, through

from flaxformer.catalog import NormalizedAttention, NormalizedGated, NormalizedHead, SphereStep
from flaxformer.model import init
from flaxformer.training import start, train_step

T, LAYERS = 3, 2
H = D // N


def unit(v):
    return v / np.sqrt((v * v).sum(-1, keepdims=True))


@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_attention_compares_queries_and_keys_of_length_one(key_value_heads):
    component = NormalizedAttention(heads=N, key_value_heads=key_value_heads)

    def loop(weights, x):
        s = 1 + np.sqrt(D) * weights.logit_scale
        query, key = unit(projected(weights, x, "query")), unit(projected(weights, x, "key"))
        key = np.repeat(key, N // key.shape[1], axis=1)
        # the loop divides by √H
        query, key = H * s * query, s * key
        value = np.repeat(projected(weights, x, "value"), N // weights.value.shape[1], axis=1)
        return output(weights, attention_loop(weights, x, query=query, key=key, value=value))

    assert_attention(component, loop, weights_of(component, D), sequence())


def test_the_gated_network_equals_its_equation():
    component = NormalizedGated(d_ff=5, activation="silu", bias=False)
    weights, x = weights_of(component, D), drawn(x=(T, D))["x"]

    def token(weights, x):
        up = (1 + weights.up_scale) * (x @ weights.up) * D**0.5
        gate = D**0.5 * (1 + weights.gate_scale) * (x @ weights.gate)
        return (up * gate / (1 + jnp.exp(-gate))) @ weights.down

    assert_equal(
        lambda weights, x: component.apply(weights, x, context_of(x)),
        lambda weights, x: jnp.stack([token(weights, x[t]) for t in range(T)]),
        weights,
        x,
    )


def test_a_branch_is_a_step_on_the_sphere():
    rule, maps, x = SphereStep(), drawn(maps=(2 * LAYERS, D, D))["maps"], drawn(x=(T, D))["x"]
    weights = [rule.Weights(**drawn(step=D)) for _ in range(2 * LAYERS)]

    def norm(v):
        return v / jnp.sqrt(v @ v)

    def token(weights, maps, h):
        for of_branch, matrix in zip(weights, maps, strict=True):
            alpha = jnp.abs(0.05 + 0.05 * D**0.5 * of_branch.step)
            branch = norm(jnp.tanh(h @ matrix))
            h = norm((1 - alpha) * norm(h) + alpha * branch)
        return h

    assert_equal(
        lambda weights, maps, x: through(rule, weights, maps, x, LAYERS),
        lambda weights, maps, x: jnp.stack([token(weights, maps, x[t]) for t in range(T)]),
        weights,
        maps,
        x,
    )


def test_logits_of_tokens_have_a_scale_each():
    head = NormalizedHead()
    weights = head.Weights(**drawn(matrix=(D, 5), logit_scale=5), bias=None, transform=None)
    x = drawn(x=(T, D))["x"]
    expected = [[(1 + np.sqrt(D) * weights.logit_scale[v]) * (x[t] @ weights.matrix[:, v]) for v in range(5)]
                for t in range(T)]  # fmt: skip
    with jax.enable_x64(True):
        actual = head.project(*jax.tree.map(jnp.asarray, (weights, x)), None)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_after_a_step_all_rows_have_length_one_and_scales_are_free(layout):
    run = run_of("ngpt:nGPT")
    state = start(run, layout)
    state, _ = train_step(state, run, run.task.load().batch(run.data_key, 0))
    lengths = {}
    for path, w in jax.tree_util.tree_leaves_with_path(state.params):
        name, lead = path[-1].name, int(layout == "scanned" and path[0].name == "blocks")
        along = {"query": lead, "key": lead, "value": lead, "up": lead, "gate": lead, "matrix": 0}
        axis = along.get(name, -1)
        if name in (*along, "out", "down", "tokens"):
            lengths[name] = np.sqrt(np.square(np.asarray(w)).sum(axis))
    assert set(lengths) == {"query", "key", "value", "out", "up", "gate", "down", "tokens", "matrix"}
    for name, length in lengths.items():
        np.testing.assert_allclose(length, 1, rtol=1e-5, err_msg=name)


def test_the_first_scales_are_those_of_the_authors():
    config, _ = model_of("ngpt:nGPT")
    params = init(jax.random.key(0), config)
    scales = [w for path, w in jax.tree_util.tree_leaves_with_path(params) if path[-1].name.endswith(("scale", "step"))]
    assert len(scales) == 2 * (1 + 2 + 2) + 1
    assert all(not np.any(w) for w in scales)
