"""TTT-Linear equals its mini-batches in the dual form, in which no map of a token within a mini-batch is computed."""

import numpy as np
import pytest
from recurrences import D, T, assert_equals, into, layer_normal, sigmoid

from flaxformer.catalog import TTTLinear

N, SIZE = 3, 3
H = D // N


def rotated(x, place):
    """A head of two entries, turned by the angle `place`."""
    return np.array([x[0] * np.cos(place) - x[1] * np.sin(place), x[0] * np.sin(place) + x[1] * np.cos(place)])


def gradient_of_loss(z, target, gain, bias):
    """Gradient of ½ |gain ⊙ normal(z) + bias − target|², by the derivative of each entry of a LayerNorm."""
    deviation = np.sqrt(z.var() + 1e-6)
    normal = (z - z.mean()) / deviation
    jacobian = (np.eye(H) - 1 / H - np.outer(normal, normal) / H) / deviation
    return jacobian @ (gain * (gain * normal + bias - target))


@pytest.mark.long
def test_ttt_linear_equals_its_dual_form():
    def reference(weights, x):
        query, key, value = (into(x, getattr(weights, name)) for name in ("query", "key", "value"))
        rate, results = sigmoid(x @ weights.rate + weights.rate_bias) / H, np.zeros((T, N, H))
        for head in range(N):
            w, b = weights.first[head], weights.first_bias[head]
            gain, bias = weights.inner_gain[head], weights.inner_bias[head]
            for start in range(0, T, SIZE):
                tokens = range(start, min(start + SIZE, T))
                q, k = ({t: rotated(z[t, head], t - start) for t in tokens} for z in (query, key))
                gradient = {t: gradient_of_loss(k[t] @ w + b, value[t, head] - k[t], gain, bias) for t in tokens}
                share = {t: max(1 / (t - start + 1) + weights.place[t - start], 0) for t in tokens}
                for t in tokens:
                    past = [s for s in tokens if s <= t]
                    z = q[t] @ w + b
                    for s in past:
                        z = z - share[t] * rate[s, head] * (q[t] @ k[s] + 1) * gradient[s]
                    results[t, head] = q[t] + gain * layer_normal(z, 1e-6) + bias
                last = tokens[-1]
                w = w - share[last] * sum(rate[s, head] * np.outer(k[s], gradient[s]) for s in tokens)
                b = b - share[last] * sum(rate[s, head] * gradient[s] for s in tokens)
        normal = layer_normal(results.reshape(T, -1), 1e-6).reshape(T, N, H) * weights.gain + weights.bias
        return sum(normal[:, head] @ weights.out[head] for head in range(N))

    assert_equals(TTTLinear(heads=N, mini_batch=SIZE), reference)
