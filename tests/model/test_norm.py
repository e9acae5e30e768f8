"""Norms in a model: running statistics change only in training, and padding does not reach shared statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, BatchNorm, LayerNorm
from flaxformer.components.component import Context, replace_weights
from flaxformer.config import ModelConfig
from flaxformer.model import init, run
from flaxformer.model.norm import normalise
from flaxformer.model.weights import with_layout

B, T, D = 2, 5, 7
VALID = jnp.arange(T)[None] < jnp.array([[3], [T]])
SHARED = {"batch": BatchNorm(), "sequence": LayerNorm(over="sequence")}


TRAINING = Context(query_positions=jnp.arange(T), key_positions=jnp.arange(T), valid=VALID, training=True)


def norm_weights(kind):
    config = ModelConfig(layers=0, d_model=D, attention=Attention(heads=1), norm_kind=kind)
    return init(jax.random.key(0), config).final_norm


@pytest.mark.parametrize("kind", SHARED.values(), ids=SHARED)
def test_nan_in_padding_reaches_no_output_and_no_gradient(kind):
    weights = norm_weights(kind)
    x = jax.random.normal(jax.random.key(1), (B, T, D))
    cotangent = jax.random.normal(jax.random.key(2), (B, T, D))

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(x):
        y, aux = normalise(weights, kind, x, TRAINING)
        return jnp.where(VALID[..., None], y * cotangent, 0).sum(), replace_weights(weights, aux.weights)

    (clean, moved), gradient = loss(x)
    (rotten, same), other = loss(jnp.where(VALID[..., None], x, jnp.nan))
    np.testing.assert_allclose(rotten, clean, rtol=1e-6)
    np.testing.assert_allclose(other[VALID], gradient[VALID], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, same, moved)


@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_running_statistics_change_only_in_training(layout):
    norm = BatchNorm(momentum=0.25)
    config = ModelConfig(vocabulary=11, layers=2, d_model=D, attention=Attention(heads=1), norm_kind=norm)
    params = init(jax.random.key(0), config, layout)
    tokens = jax.random.randint(jax.random.key(1), (B, T), 0, 11)
    assert not run(params, config, tokens, {}).aux.weights
    outcome = run(params, config, tokens, {}, dropout_key=jax.random.key(2), return_intermediates=True)
    changed = with_layout(replace_weights(params, outcome.aux.weights), "unrolled")
    first = changed.blocks[0].attention_connection.pre.running
    x = np.asarray(outcome.intermediates.embedded, np.float64).reshape(-1, D)
    np.testing.assert_allclose(first.mean, 0.25 * x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.variance, 0.75 + 0.25 * x.var(0, ddof=1), rtol=1e-5)
    for norm in (changed.blocks[1].feed_forward_connection.pre, changed.final_norm):
        assert np.abs(norm.running.mean).max() > 0
