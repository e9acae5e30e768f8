"""What stands between the heads and the output matrix equals loops over its equations: exclusion, gates, scales."""

import numpy as np
import pytest
from mechanisms import applied, weights_of
from naive import D, N, assert_attention, attention_loop, output, projected, sequence, sigmoid

from flaxformer import Attention
from flaxformer.catalog import ElementGates, ExclusiveAttention, HeadGates, HeadScales
from flaxformer.nn import Causal

KEY_VALUE_HEADS = [None, 1]


@pytest.mark.parametrize("key_value_heads", KEY_VALUE_HEADS)
@pytest.mark.parametrize("learned", [False, True])
def test_exclusive_attention_equals_its_equation(learned, key_value_heads):
    component = ExclusiveAttention(heads=N, learned=learned, key_value_heads=key_value_heads)

    def loop(weights, x):
        heads, value = attention_loop(weights, x), projected(weights, x, "value")
        for t in range(len(x)):
            for head in range(N):
                v = value[t, head * value.shape[1] // N]
                strength = np.tanh(weights.strength[head]) if learned else 1
                heads[t, head] -= strength * (heads[t, head] @ v) / (v @ v) * v
        return output(weights, heads)

    assert_attention(component, loop, weights_of(component, D), sequence())


def test_the_first_token_has_no_exclusive_output():
    """It reads its own value alone, so that nothing is left."""
    component = ExclusiveAttention(heads=N)
    weights = weights_of(component, D)
    heads = attention_loop(weights, sequence())[0]
    np.testing.assert_allclose(heads, projected(weights, sequence(), "value")[0], rtol=1e-12)
    assert_attention(component, lambda weights, x: weights.out_bias[None], weights, sequence()[:1])


@pytest.mark.parametrize("kind", [HeadGates, ElementGates])
def test_output_gates_equal_their_equation(kind):
    component = kind(heads=N)

    def loop(weights, x):
        heads = attention_loop(weights, x)
        for t in range(len(x)):
            for head in range(N):
                heads[t, head] *= sigmoid(x[t] @ weights.gate[:, head] + weights.gate_bias[head])
        return output(weights, heads)

    weights = weights_of(component, D)
    assert weights.gate.size == D * N * (1 if kind is HeadGates else D // N)
    assert_attention(component, loop, weights, sequence())


def test_head_scales_equal_their_equation():
    component = HeadScales(heads=N)

    def loop(weights, x):
        heads = attention_loop(weights, x)
        for head in range(N):
            heads[:, head] *= weights.head_scale[head]
        return output(weights, heads)

    weights = weights_of(component, D)
    assert_attention(component, loop, weights, sequence())
    plain = applied(Attention(heads=N), weights, sequence(), mask=Causal())[0]
    np.testing.assert_allclose(loop(weights.replace(head_scale=np.ones(N)), sequence()), plain, rtol=1e-9)
