"""Norms in a model: running statistics change only in training, and padding does not reach shared statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import (
    NO_NORM,
    POST,
    PRE,
    SANDWICH,
    Attention,
    BatchNorm,
    Dense,
    LayerNorm,
    NoHead,
)
from flaxformer.components.component import Context, replace_weights
from flaxformer.config import Block, ModelConfig
from flaxformer.model import apply, init, run
from flaxformer.model.norm import normalise
from flaxformer.model.weights import with_layout

B, T, D = 2, 5, 7
VALID = jnp.arange(T)[None] < jnp.array([[3], [T]])
SHARED = {"batch": BatchNorm(), "sequence": LayerNorm(over="sequence")}


TRAINING = Context(query_positions=jnp.arange(T), key_positions=jnp.arange(T), valid=VALID, training=True)


def norm_weights(kind):
    config = ModelConfig(layers=0, d_model=D, attention=Attention(heads=1), norm_kind=kind)
    return init(jax.random.key(0), config).final_norm


@pytest.mark.every(2)
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


@pytest.mark.every(2)
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


PLACEMENTS = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "none": NO_NORM}
BASE = ModelConfig(vocabulary=11, layers=2, d_model=D, attention=Attention(heads=1), feed_forward=Dense(d_ff=9))
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, 11, (B, T)))


def drawn(config):
    shapes, dice = jax.eval_shape(lambda: init(jax.random.key(0), config)), np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * dice.standard_normal(x.shape), jnp.float32), shapes)


@pytest.mark.every(2)
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_the_norms_of_attention_that_are_those_of_the_block_change_nothing(placement):
    config = BASE.replace(norm=placement)
    params = drawn(config)
    for other in (config.replace(attention_norm=placement), config.replace(pattern=(Block(attention_norm=placement),))):
        assert jax.tree.structure(params) == jax.tree.structure(drawn(other))
        np.testing.assert_array_equal(apply(params, other, TOKENS), apply(params, config, TOKENS))


def branch(placement, around, x, update):
    """One residual branch, whose update is a function of its input."""

    def norm(place, y):
        if getattr(placement, place) is None:
            return y
        gain, bias = (np.asarray(getattr(getattr(around, place), name), np.float64) for name in ("gain", "bias"))
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias

    return norm("post_residual", x + norm("post_branch", update(norm("pre", x))))


@pytest.mark.every(4)
@pytest.mark.parametrize("others", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("attention", PLACEMENTS.values(), ids=PLACEMENTS)
def test_attention_has_the_norms_of_its_placement_and_other_branches_those_of_the_block(attention, others):
    pattern = (Block(attention_norm=attention), Block())
    config = BASE.replace(norm=others, pattern=pattern, mask_pattern="bidirectional", head=NoHead())
    params = drawn(config)
    outcome = run(params, config, TOKENS, {}, return_intermediates=True)
    x = np.asarray(outcome.intermediates.embedded, np.float64)
    for layer, block in enumerate(params.blocks):
        weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (block.attention, block.feed_forward))
        first, second = weights
        placed = attention if layer == 0 else others

        def attend(y, first=first):
            query, key, value = (
                np.einsum("btd,dnh->btnh", y, getattr(first, name)) + getattr(first, f"{name}_bias")
                for name in ("query", "key", "value")
            )
            logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1])
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            mixed = np.einsum("bnts,bsnh->btnh", shares / shares.sum(-1, keepdims=True), value)
            return np.einsum("btnh,nhd->btd", mixed, first.out) + first.out_bias

        def feed(y, second=second):
            return np.maximum(y @ second.up + second.up_bias, 0) @ second.down + second.down_bias

        x = branch(placed, block.attention_connection, x, attend)
        x = branch(others, block.feed_forward_connection, x, feed)
    np.testing.assert_allclose(outcome.intermediates.blocks[-1].feed_forward.stream, x, rtol=1e-4, atol=1e-4)
