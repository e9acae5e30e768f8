"""Attention dropout sets weights to 0 at its rate, and keeps their mean."""

import jax
import numpy as np
from mechanisms import applied, weights_of
from naive import D, N, assert_attention, attention_loop, output, sequence

from flaxformer import Context
from flaxformer.catalog import AttentionDropout
from flaxformer.nn import Causal

RATE = 0.3


def test_without_a_random_key_it_is_attention():
    component = AttentionDropout(heads=N, attention_rate=RATE)
    weights = weights_of(component, D)
    assert_attention(component, lambda weights, x: output(weights, attention_loop(weights, x)), weights, sequence())


def test_weights_are_dropped_at_the_rate_and_the_others_scaled():
    component = AttentionDropout(heads=N, attention_rate=RATE)
    weights, x, key = weights_of(component, D), np.random.default_rng(4).standard_normal((8, 32, D)), jax.random.key(0)
    options = {"mask": Causal(), "return_intermediates": True, "training": True}
    _, plain = applied(component, weights, x, **options)
    _, dropped = applied(component, weights, x, key=key, batch_key=key, **options)
    before, after = (np.asarray(aux.intermediates["weights"]) for aux in (plain, dropped))
    is_allowed = np.broadcast_to(np.tri(32, dtype=bool), before.shape)
    kept = after != 0
    np.testing.assert_allclose(after[kept], before[kept] / (1 - RATE), rtol=1e-9)
    count = is_allowed.sum()
    assert abs(kept.sum() / count - (1 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / count)


def test_the_mask_differs_between_heads_and_examples():
    component = AttentionDropout(heads=N, attention_rate=RATE)
    attention, key = np.ones((3, N, 16, 16)), jax.random.key(1)
    places = np.arange(16)
    context = Context(query_positions=places, key_positions=places, key=key, batch_key=key)
    masks = np.asarray(component.transform_weights(None, jax.numpy.asarray(attention), context)).reshape(3 * N, -1)
    assert len({mask.tobytes() for mask in masks}) == 3 * N
