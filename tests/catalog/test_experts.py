"""Experts and memories of the catalog equal loops over tokens, experts and keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import weights_of
from references import assert_equal, context_of, drawn

from flaxformer.catalog import (
    BigramEmbedding,
    ClippedExperts,
    ExpertChoice,
    LatentExperts,
    LossFreeBalancing,
    ProductKeyMemory,
    SharedExperts,
    SwitchRouting,
)
from flaxformer.components.component import with_aux

T, D, F, E = 7, 6, 4, 4
X = drawn(x=(T, D))["x"]


def check(component, reference, **fields):
    """Compare the update with a loop, and return the `Aux`."""
    weights = weights_of(component, D)

    def function(weights, x):
        return with_aux(component.apply(weights, x, context_of(x, **fields)))[0]

    assert_equal(function, reference, weights, X)
    with jax.enable_x64(True):
        arguments = jax.tree.map(jnp.asarray, (weights, X))
        return weights, with_aux(jax.jit(component.apply)(*arguments, context_of(X, **fields)))[1]


def expert(up, down, x):
    return jnp.maximum(x @ up, 0) @ down


def probabilities(weights, x):
    exponentials = jnp.exp(x @ weights.router)
    return exponentials / exponentials.sum(-1, keepdims=True)


def largest(scores, count):
    """True at the largest numbers of a vector."""
    return scores >= jnp.sort(scores)[-count]


@pytest.mark.long
def test_shared_experts_equal_their_equation():
    component = SharedExperts(experts=E, active=2, shared=2, d_ff=F)

    def reference(weights, x):
        rows = []
        for t in range(T):
            p = probabilities(weights, x[t])
            y = sum(expert(weights.shared_up[i], weights.shared_down[i], x[t]) for i in range(2))
            gates = jnp.where(largest(p, 2), p, 0)
            rows.append(y + sum(gates[e] * expert(weights.up[e], weights.down[e], x[t]) for e in range(E)))
        return jnp.stack(rows)

    weights, aux = check(component, reference)
    p = np.array([probabilities(weights, X[t]) for t in range(T)])
    f = np.array([largest(row, 2) for row in p]).sum(0) * E / (2 * T)
    np.testing.assert_allclose(aux.losses["balance"], 0.01 * (f * p.mean(0)).sum(), rtol=1e-5)


@pytest.mark.long
def test_clipped_experts_equal_their_equation():
    component = ClippedExperts(experts=E, active=2, d_ff=F, alpha=1.3, limit=0.8)

    def reference(weights, x):
        rows = []
        for t in range(T):
            logits = x[t] @ weights.router + weights.router_bias
            chosen = largest(logits, 2)
            gates = jnp.where(chosen, jnp.exp(logits), 0)
            row = 0
            for e in range(E):
                h = jnp.minimum(x[t] @ weights.gate[e] + weights.gate_bias[e], 0.8)
                u = jnp.clip(x[t] @ weights.up[e] + weights.up_bias[e], -0.8, 0.8)
                y = (h / (1 + jnp.exp(-1.3 * h)) * (u + 1)) @ weights.down[e] + weights.down_bias[e]
                row = row + gates[e] / gates.sum() * y
            rows.append(row)
        return jnp.stack(rows)

    check(component, reference)


def test_switch_routing_equals_its_equation():
    component = SwitchRouting(experts=E, d_ff=F, capacity=0.6)

    def reference(weights, x):
        rows, taken, limit = [], jnp.zeros(E), np.ceil(0.6 * T / E)
        for t in range(T):
            p = probabilities(weights, x[t])
            chosen = largest(p, 1)
            fits = chosen & (taken < limit)
            taken = taken + chosen
            rows.append(
                sum(jnp.where(fits[e], p[e], 0) * expert(weights.up[e], weights.down[e], x[t]) for e in range(E))
            )
        return jnp.stack(rows)

    weights, aux = check(component, reference)
    assert float(aux.statistics["dropped"]) > 0
    p = np.array([probabilities(weights, X[t]) for t in range(T)])
    f = np.array([largest(row, 1) for row in p]).mean(0)
    np.testing.assert_allclose(aux.losses["balance"], 0.01 * E * (f * p.mean(0)).sum(), rtol=1e-5)


def test_expert_choice_equals_its_equation():
    component = ExpertChoice(experts=E, d_ff=F, capacity=2)

    def reference(weights, x):
        p, y = probabilities(weights, x), jnp.zeros((T, D))
        for e in range(E):
            chosen = largest(p[:, e], 2 * T // E)
            for t in range(T):
                y = y.at[t].add(jnp.where(chosen[t], p[t, e], 0) * expert(weights.up[e], weights.down[e], x[t]))
        return y

    check(component, reference)


def test_loss_free_balancing_equals_its_equation():
    component = LossFreeBalancing(experts=E, active=2, d_ff=F, rate=0.1)

    def reference(weights, x):
        rows = []
        for t in range(T):
            s = 1 / (1 + jnp.exp(-x[t] @ weights.router))
            gates = jnp.where(largest(s + weights.bias, 2), s, 0)
            rows.append(sum(gates[e] * expert(weights.up[e], weights.down[e], x[t]) for e in range(E)))
        return jnp.stack(rows)

    weights, aux = check(component, reference, training=True)
    scores = 1 / (1 + np.exp(-X @ weights.router)) + weights.bias
    loads = np.array([largest(row, 2) for row in scores]).sum(0)
    expected = weights.bias + 0.1 * np.sign(2 * T / E - loads)
    np.testing.assert_allclose(aux.weights["bias"], expected, rtol=1e-6)


@pytest.mark.long
def test_product_key_memory_equals_a_loop_over_all_keys():
    component = ProductKeyMemory(queries=2, keys=5, active=3, half=2)

    def reference(weights, x):
        rows = []
        for t in range(T):
            y = 0
            for h in range(2):
                q = jnp.einsum("d,dsk->sk", x[t], weights.query[:, h]) + weights.query_bias[h]
                scores = [
                    q[0] @ weights.key[h, 0, :, i] + q[1] @ weights.key[h, 1, :, j] for i in range(5) for j in range(5)
                ]
                scores = jnp.stack(scores)
                shares = jnp.where(largest(scores, 3), jnp.exp(scores), 0)
                y = y + shares / shares.sum() @ weights.values
            rows.append(y)
        return jnp.stack(rows)

    check(component, reference)


def test_bigram_embedding_equals_a_loop_with_padding():
    component = BigramEmbedding(rows=13, d_ff=F)
    tokens, valid = np.array([5, 0, 2, 7, 0, 0, 3]), np.array([1, 0, 1, 1, 0, 0, 1], bool)
    weights, x = weights_of(component, D), np.where(valid[:, None], X, 0)
    context = context_of(x, tokens=jnp.asarray(tokens), valid=jnp.asarray(valid))
    actual = component.apply(jax.tree.map(jnp.asarray, weights), jnp.asarray(x, jnp.float32), context)
    before = -1
    for t in np.flatnonzero(valid):
        row = ((int(tokens[t]) * 36313 % 2**32) ^ (before * 27191 % 2**32)) % 13
        dense = np.maximum(x[t] @ weights.up + weights.up_bias, 0) @ weights.down + weights.down_bias
        np.testing.assert_allclose(actual[t], dense + weights.scale * weights.pairs[row], rtol=1e-5, atol=1e-5)
        before = int(tokens[t])


@pytest.mark.long
def test_latent_experts_equal_their_equation():
    component = LatentExperts(experts=E, active=2, d_ff=F, d_latent=3)

    def reference(weights, x):
        rows = []
        for t in range(T):
            p, z = probabilities(weights, x[t]), x[t] @ weights.enter
            gates = jnp.where(largest(p, 2), p, 0)
            gates = gates / gates.sum()
            rows.append(sum(gates[e] * expert(weights.up[e], weights.down[e], z) for e in range(E)) @ weights.leave)
        return jnp.stack(rows)

    weights, aux = check(component, reference)
    assert set(aux.losses) == {"balance"}
    assert weights.up.shape == (E, 3, F)
    assert LatentExperts().axis_sizes({"d_model": 64})["d_latent"] == 16
