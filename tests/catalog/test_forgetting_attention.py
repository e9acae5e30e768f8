"""Forgetting attention equals a loop over queries, keys and the gates between them."""

import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, assert_attention, attention_loop, output, sequence, sigmoid

from flaxformer.catalog import ForgettingAttention


@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_forgetting_attention_equals_its_equation(key_value_heads):
    component = ForgettingAttention(heads=N, key_value_heads=key_value_heads)

    def loop(weights, x):
        gates = sigmoid(x @ weights.forget + weights.forget_bias)

        def logit(t, s, head):
            return sum(np.log(gates[r, head]) for r in range(s + 1, t + 1))

        return output(weights, attention_loop(weights, x, logit))

    assert_attention(component, loop, weights_of(component, D), sequence())


def test_without_forgetting_it_is_attention():
    component = ForgettingAttention(heads=N)
    weights = weights_of(component, D)
    weights = weights.replace(forget=np.zeros((D, N)), forget_bias=np.full(N, 1e3))
    assert_attention(component, lambda weights, x: output(weights, attention_loop(weights, x)), weights, sequence())
