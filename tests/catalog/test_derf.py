"""Derf and the shapes of a cool-down equal their equations."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_equal, context_of, drawn

from flaxformer import WarmupStableDecay
from flaxformer.catalog import DynamicErf

T, D = 4, 5


def test_derf_equals_its_equation():
    norm, x = DynamicErf(), drawn(x=(T, D))["x"]
    weights = norm.Weights(**drawn(slope=(), shift=(), gain=D, bias=D))

    def reference(weights, x):
        # erf(z) = 2/√π ∫_0^z exp(−u²) du, by Gauss and Legendre's rule
        nodes, shares = np.polynomial.legendre.leggauss(60)
        z = weights.slope * x + weights.shift
        inside = sum(share * jnp.exp(-((z * (node + 1) / 2) ** 2)) for node, share in zip(nodes, shares, strict=True))
        return weights.gain * z * inside / math.sqrt(math.pi) + weights.bias

    assert_equal(lambda weights, x: norm.apply(weights, x, context_of(x)), reference, weights, x)


@pytest.mark.parametrize(
    ("kind", "middle"), [("sqrt", 1 - math.sqrt(0.25)), ("linear", 0.75), ("cosine", 0.8535533905932737)]
)
def test_cool_downs_begin_late_and_have_their_shape(kind, middle):
    schedule = WarmupStableDecay(share=0.4, cool_down=kind)
    values = [float(schedule.fraction(jnp.float32(progress), jnp.float32(1))) for progress in (0, 0.6, 0.7, 1)]
    np.testing.assert_allclose(values, [1, 1, middle, 0], atol=1e-6)
