"""Halting and its loss equal a loop over tokens and passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import weights_of
from recurrences import sigmoid
from references import assert_equal, context_of, drawn

from flaxformer.catalog import AdaptiveDepth, HaltingAttention
from flaxformer.nn import Causal

T, D, PASSES = 6, 8, 5


def halting_loop(p, real, epsilon, ponder):
    """Weights [passes, T] of the passes of each token, as of Graves 2016, and the loss, summed over passes."""
    weights, cost = np.zeros((PASSES, T)), 0.0
    for t in range(T):
        total = 0.0
        for n in range(PASSES):
            cost += real[t] / real.sum()
            if total + p[n, t] > 1 - epsilon:
                weights[n, t] = 1 - total
                cost += real[t] * (1 - total) / real.sum()
                break
            weights[n, t] = p[n, t]
            total += p[n, t]
    return weights, ponder * cost


@pytest.mark.parametrize("padding", [False, True])
def test_weights_of_passes_and_their_loss_equal_a_loop(padding):
    component = HaltingAttention(heads=2, ponder=0.3)
    weights, xs = weights_of(component, D), drawn(xs=(PASSES, T, D))["xs"] * 0.3
    weights = weights.replace(halt_bias=np.float64(-0.5))
    real = np.array([1, 1, 1, 0, 1, 1], bool) if padding else np.ones(T, bool)
    p = sigmoid(xs @ weights.halt + weights.halt_bias)
    expected, cost = halting_loop(p, real, 0.01, 0.3)
    assert len({int((expected[:, t] > 0).sum()) for t in range(T)}) > 1  # tokens halt at different passes
    total = 0.0
    with jax.enable_x64(True):
        carried = component.initial_carry(jnp.asarray(xs[0]))
        for n in range(PASSES):
            context = context_of(xs[n], mask=Causal(), carried=carried, valid=jnp.asarray(real) if padding else None)
            _, aux = component.apply(jax.tree.map(jnp.asarray, weights), jnp.asarray(xs[n]), context)
            carried = aux.carried
            np.testing.assert_allclose(np.asarray(carried["pass_weight"])[real], expected[n][real], rtol=1e-10)
            total += aux.losses["ponder"]
    np.testing.assert_allclose(total, cost, rtol=1e-10)


def test_gradients_of_weights_of_passes_and_of_the_loss_equal_those_of_a_loop():
    component = HaltingAttention(heads=2, ponder=0.3)
    weights, xs = weights_of(component, D), np.random.default_rng(5).standard_normal((PASSES, T, D)) * 0.8
    halt, bias = weights.halt, np.float64(-0.1)
    passes = (halting_loop(sigmoid(xs @ halt + bias), np.ones(T), 0.01, 0.3)[0] > 0).sum(0)

    def by_component(halt, bias, xs):
        carried, results, total = component.initial_carry(xs[0]), [], 0.0
        for x in xs:
            aux = component.halted(weights.replace(halt=halt, halt_bias=bias), x, context_of(x, carried=carried))
            carried = aux.carried
            results.append(carried["pass_weight"])
            total += aux.losses["ponder"]
        return jnp.append(jnp.stack(results), total)

    def by_loop(halt, bias, xs):
        columns, total = [], 0.0
        for t, count in enumerate(passes):
            p = [1 / (1 + jnp.exp(-(xs[n, t] @ halt) - bias)) for n in range(count)]
            last = 1 - sum(p[:-1], jnp.zeros(()))
            columns.append(jnp.stack([*p[:-1], last, *[jnp.zeros(())] * (PASSES - count)]))
            total += 0.3 * (count + last) / T
        return jnp.append(jnp.stack(columns, axis=1), total)

    assert len(set(passes)) > 1
    assert max(passes) < PASSES
    assert_equal(by_component, by_loop, halt, bias, xs)


def test_the_output_moves_to_the_state_of_each_pass_by_its_weight():
    rule, x, maps = AdaptiveDepth(), drawn(x=(T, D))["x"], drawn(maps=(2 * PASSES, D, D))["maps"]
    u = np.random.default_rng(0).uniform(size=(PASSES, T))
    state, y = x, np.zeros((T, D))
    with jax.enable_x64(True):
        stream = rule.begin(jnp.asarray(x), PASSES)
        for number, matrix in enumerate(maps):
            state = state + np.tanh(state @ matrix)
            carried = {"pass_weight": jnp.asarray(u[number // 2])}
            context = context_of(x, branch=number % 2, carried=carried)
            update = jnp.tanh(rule.read(rule.Weights(), stream, context) @ matrix)
            stream = rule.join(rule.Weights(), stream, update, context)
            if number % 2:
                y = [(1 - u[number // 2, t]) * y[t] + u[number // 2, t] * state[t] for t in range(T)]
        np.testing.assert_allclose(rule.end(stream), y, rtol=1e-10)
