"""Attention of one token to a cache against a loop in float64."""

import jax
import numpy as np
import pytest

from flaxformer.nn.dot_product import cached_attention
from flaxformer.nn.masks import Explicit, Padding

B, N, K, S, WIDTH, VALUE = 2, 6, 3, 7, 5, 4
attended = jax.jit(cached_attention)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


QUERY, KEY, VALUES = drawn(0, B, 1, N, WIDTH), drawn(1, B * K, S, WIDTH), drawn(2, B * K, S, VALUE)
REAL = np.array([[1, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 1, 1]], bool)
BY_HEAD = np.random.default_rng(3).random((B, N, 1, S)) < 0.6
BY_HEAD[1, 4] = False


def loop(allowed, bias, scale, cap):
    """Head by head; nothing where nothing is allowed."""
    query, key, value = (np.asarray(x, np.float64) for x in (QUERY, KEY, VALUES))
    y = np.zeros((B, 1, N, VALUE))
    for b in range(B):
        for n in range(N):
            row = b * K + n // (N // K)
            logits = key[row] @ query[b, 0, n] * scale
            logits = logits if cap is None else cap * np.tanh(logits / cap)
            weights = np.exp(logits + bias[b, n, 0]) * allowed[b, n, 0]
            if weights.any():
                y[b, 0, n] = weights @ value[row] / weights.sum()
    return y


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize(
    ("mask", "allowed"),
    [(None, np.ones((B, N, 1, S))), (Padding(REAL), REAL[:, None, None]), (Explicit(BY_HEAD), BY_HEAD)],
    ids=["all", "padding", "by head"],
)
def test_equals_a_loop_over_heads(mask, allowed, cap):
    allowed, bias = np.broadcast_to(allowed, (B, N, 1, S)), drawn(4, B, N, 1, S)
    y = attended(QUERY, KEY, VALUES, mask=mask, bias=bias, scale=0.7, logit_cap=cap)
    np.testing.assert_allclose(y, loop(allowed, np.asarray(bias, np.float64), 0.7, cap), rtol=1e-5, atol=1e-6)


def test_large_logits_are_finite():
    y = attended(QUERY * 1e4, KEY, VALUES, mask=Padding(REAL), scale=1.0)
    assert np.isfinite(y).all()
    assert (np.asarray(y) != 0).all()
