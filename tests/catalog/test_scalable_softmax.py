"""Scalable softmax equals a loop over its equation."""

import numpy as np
from mechanisms import applied, weights_of

from flaxformer.catalog import ScalableSoftmax
from flaxformer.nn import Causal

T, D, N = 7, 6, 2


def test_scalable_softmax_equals_its_equation():
    component, x = ScalableSoftmax(heads=N), np.random.default_rng(1).standard_normal((T, D))
    weights = weights_of(component, D)
    query, key, value = (
        np.einsum("td,dnh->tnh", x, getattr(weights, name)) + getattr(weights, f"{name}_bias")
        for name in ("query", "key", "value")
    )
    expected = np.zeros((T, D))
    for t in range(T):
        for head in range(N):
            logits = [
                weights.scale_per_head[head] * np.log(t + 1) * query[t, head] @ key[s, head] / np.sqrt(D // N)
                for s in range(t + 1)
            ]
            attention = np.exp(logits) / np.exp(logits).sum()
            expected[t] += sum(attention[s] * value[s, head] for s in range(t + 1)) @ weights.out[head]
        expected[t] += weights.out_bias
    found, _ = applied(component, weights, x, mask=Causal())
    np.testing.assert_allclose(found, expected, rtol=1e-9)
