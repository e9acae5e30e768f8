"""Talking heads equal a loop over queries, keys and heads."""

import numpy as np
from mechanisms import applied, weights_of
from naive import D, N, T, assert_attention, attention_loop, output, projected, sequence, softmax

from flaxformer.catalog import TalkingHeads
from flaxformer.nn import Causal


def loop(weights, x):
    query, key, value = (projected(weights, x, name) for name in ("query", "key", "value"))
    before, after = np.eye(N) + weights.logit_mix, np.eye(N) + weights.weight_mix
    mixed = np.zeros_like(value)
    for t in range(len(x)):
        plain = np.array([[query[t, n] @ key[s, n] / np.sqrt(D // N) for s in range(t + 1)] for n in range(N)])
        attention = [softmax(sum(plain[n] * before[n, m] for n in range(N))) for m in range(N)]
        for n in range(N):
            weight = sum(attention[m] * after[m, n] for m in range(N))
            mixed[t, n] = sum(weight[s] * value[s, n] for s in range(t + 1))
    return output(weights, mixed)


def test_talking_heads_equal_their_equations():
    component = TalkingHeads(heads=N)
    assert_attention(component, loop, weights_of(component, D), sequence())


def test_a_bias_is_added_to_the_mixed_logits():
    """With P_L = 0, the logits are the bias alone."""
    component, bias = TalkingHeads(heads=N), np.random.default_rng(3).standard_normal((N, T, T))
    weights = weights_of(component, D)
    weights = weights.replace(logit_mix=-np.eye(N), weight_mix=np.zeros((N, N)))

    found, _ = applied(component, weights, sequence(), mask=Causal(), bias=bias)
    heads = attention_loop(weights, sequence(), lambda t, s, n: bias[n, t, s], query=np.zeros((T, N, D // N)))
    np.testing.assert_allclose(found, output(weights, heads), rtol=1e-9)
