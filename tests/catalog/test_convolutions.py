"""Lightweight and dynamic convolutions, Canon layers and Hyena equal their sums over earlier tokens."""

import numpy as np
import pytest
from recurrences import D, T, assert_equals, convolved, into, sigmoid

from flaxformer.catalog import CanonAttention, CanonDense, CanonHeads, DynamicConvolution, Hyena, LightweightConvolution
from flaxformer.nn import Causal

N, WIDTH = 2, 3


def softmax(x):
    return np.exp(x) / np.exp(x).sum(0)


def convolution(kernel_of):
    def reference(weights, x):
        gate = sigmoid(into(x, weights.gate) + weights.gate_bias)
        heads, outputs = (into(x, weights.input) + weights.input_bias) * gate, np.zeros((T, D))
        for t in range(T):
            for head in range(N):
                kernel = softmax(kernel_of(weights, heads[t])[:, head])
                y = sum(kernel[WIDTH - 1 - i] * heads[t - i, head] for i in range(WIDTH) if i <= t)
                outputs[t] += y @ weights.out[head]
        return outputs + weights.out_bias

    return reference


def test_a_lightweight_convolution_equals_its_sum():
    assert_equals(LightweightConvolution(heads=N, width=WIDTH), convolution(lambda weights, x: weights.kernel))


def test_a_dynamic_convolution_equals_its_sum_with_the_kernel_of_the_token():
    assert_equals(
        DynamicConvolution(heads=N, width=WIDTH),
        convolution(lambda weights, x: np.tensordot(x, weights.kernel, 2)),
    )


def attention(weights, x):
    query, key, value = (
        into(x, getattr(weights, name)) + getattr(weights, f"{name}_bias") for name in ("query", "key", "value")
    )
    return attention_of(weights, query, key, value)


def attention_of(weights, query, key, value):
    outputs = np.zeros((T, D))
    for t in range(T):
        for head in range(N):
            shares = softmax(key[: t + 1, head] @ query[t, head] / np.sqrt(D // N))
            outputs[t] += shares @ value[: t + 1, head] @ weights.out[head]
    return outputs + weights.out_bias


@pytest.mark.parametrize("bias", [True, False])
def test_canon_heads_are_attention_of_queries_keys_and_values_with_their_convolutions(bias):
    def reference(weights, x):
        x = x + convolved(x, weights.kernel)
        heads = []
        for name in ("query", "key", "value"):
            plain = into(x, getattr(weights, name)) + (getattr(weights, f"{name}_bias") if bias else 0)
            heads.append(plain + convolved(plain, getattr(weights, f"{name}_kernel")))
        return attention_of(weights, *heads)

    assert_equals(CanonHeads(heads=N, width=4, bias=bias), reference, mask=Causal())


def test_canon_attention_is_attention_of_the_input_and_its_convolution():
    assert_equals(
        CanonAttention(heads=N, width=4),
        lambda weights, x: attention(weights, x + convolved(x, weights.kernel)),
        mask=Causal(),
    )


def test_a_canon_network_convolves_its_input_and_its_hidden_layer():
    def reference(weights, x):
        x = x + convolved(x, weights.kernel)
        hidden = x @ weights.up + weights.up_bias
        hidden = np.maximum(hidden + convolved(hidden, weights.hidden_kernel), 0)
        return hidden @ weights.down + weights.down_bias

    assert_equals(CanonDense(d_ff=8), reference)


def test_hyena_equals_its_sum_over_distances():
    component = Hyena(hidden=5, bands=2, length=16, frequency=2.0)

    def reference(weights, x):
        u = convolved(into(x, weights.input) + weights.input_bias, weights.kernel)
        rate, h = -np.log(0.01) / np.linspace(1.5, 0.3, D), []
        for distance in range(T):
            t = distance / 15
            time = [t, *(np.cos(2 * np.pi * k * t) for k in (1, 2)), *(np.sin(2 * np.pi * k * t) for k in (1, 2))]
            hidden = np.sin(2 * (np.array(time) @ weights.first + weights.first_bias))
            hidden = np.sin(2 * (hidden @ weights.second + weights.second_bias))
            h.append(into(hidden, weights.last) * np.exp(-rate * t))
        z = u[:, 0]
        for n in range(2):
            mixed = [sum(h[t - s][n] * z[s] for s in range(t + 1)) + weights.skip[n] * z[t] for t in range(T)]
            z = u[:, n + 1] * np.stack(mixed)
        return z @ weights.out + weights.out_bias

    assert_equals(component, reference)
