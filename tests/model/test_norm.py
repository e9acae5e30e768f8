"""Norms in a model: running statistics move in training alone, and padding does not poison what tokens share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.config import BatchNorm, LayerNorm, ModelConfig
from flaxformer.model import init, run
from flaxformer.model.call import Call
from flaxformer.model.norm import Norm, normalise
from flaxformer.params import declare, initialise

B, T, D = 2, 5, 7
VALID = jnp.arange(T)[None] < jnp.array([[3], [T]])
SHARED = {"batch": BatchNorm(), "sequence": LayerNorm(over="sequence")}


def norm_and_config(kind):
    config = ModelConfig(d_model=D, heads=1, norm_kind=kind)
    return initialise(jax.random.key(0), declare(Norm, config), config.initial_constants, config.initial_std), config


def call(**changes):
    return Call(query_positions=jnp.arange(T), key_positions=jnp.arange(T), valid=VALID, training=True, **changes)


@pytest.mark.parametrize("kind", SHARED.values(), ids=SHARED)
def test_nan_in_the_padding_reaches_neither_the_real_tokens_nor_their_gradient(kind):
    norm, config = norm_and_config(kind)
    x = jax.random.normal(jax.random.key(1), (B, T, D))
    cotangent = jax.random.normal(jax.random.key(2), (B, T, D))

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(x):
        y, after = normalise(norm, config, x, call())
        return jnp.where(VALID[..., None], y * cotangent, 0).sum(), after

    (clean, moved), gradient = loss(x)
    (rotten, same), other = loss(jnp.where(VALID[..., None], x, jnp.nan))
    np.testing.assert_allclose(rotten, clean, rtol=1e-6)
    np.testing.assert_allclose(other[VALID], gradient[VALID], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, same, moved)


def test_running_statistics_move_by_the_momentum_in_training_and_stay_in_evaluation():
    config = ModelConfig(vocabulary=11, layers=2, d_model=D, heads=1, norm_kind=BatchNorm(momentum=0.25))
    params = init(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (B, T), 0, 11)
    assert jax.tree.all(jax.tree.map(np.array_equal, run(params, config, tokens, {}).params, params))
    outcome = run(params, config, tokens, {}, dropout_key=jax.random.key(2), keep=True)
    first = outcome.params.blocks[0].attention_connection.pre.running
    x = np.asarray(outcome.intermediates.embedded, np.float64).reshape(-1, D)
    np.testing.assert_allclose(first.mean, 0.25 * x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.variance, 0.75 + 0.25 * x.var(0, ddof=1), rtol=1e-5)
    for connection in (outcome.params.blocks[1].feed_forward_connection.pre, outcome.params.final_norm):
        assert np.abs(connection.running.mean).max() > 0
