"""The gated norm equals its equation, token by token."""

import jax.numpy as jnp
from references import assert_equal, context_of, drawn

from flaxformer.catalog import GatedNorm

T, D, RANK = 4, 5, 3


def test_gated_norm_equals_its_equation():
    norm, x = GatedNorm(rank=RANK), drawn(x=(T, D))["x"]
    weights = norm.Weights(**drawn(gain=D, down=(D, RANK), up=(RANK, D)), bias=None)

    def token(weights, x):
        y = weights.gain * x / jnp.sqrt(sum(v * v for v in x) / D + 1e-6)
        hidden = [sum(y[i] * weights.down[i, r] for i in range(D)) for r in range(RANK)]
        hidden = [h / (1 + jnp.exp(-h)) for h in hidden]
        return jnp.stack(
            [y[i] / (1 + jnp.exp(-sum(hidden[r] * weights.up[r, i] for r in range(RANK)))) for i in range(D)]
        )

    def reference(weights, x):
        return jnp.stack([token(weights, x[t]) for t in range(T)])

    assert_equal(lambda weights, x: norm.apply(weights, x, context_of(x)), reference, weights, x)
