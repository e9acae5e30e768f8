"""Pairs of bfloat16 elements, and the functions that are computed by them on a GPU, against the plain ones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import cross_entropy
from flaxformer.nn.activations import ACTIVATIONS, activate
from flaxformer.nn.formulations import compiling_for, recording
from flaxformer.nn.formulations import element_pairs as pairs

BF16 = jnp.bfloat16


@pytest.fixture
def gpu(monkeypatch):
    """Functions are traced as for a GPU, which a CPU can run too, and small arrays count as large."""
    monkeypatch.setattr(pairs, "FEWEST", 0)
    with compiling_for("gpu"):
        yield


def numbers(*shape, seed=0, scale=3.0):
    return jnp.asarray(np.random.default_rng(seed).normal(scale=scale, size=shape), BF16)


def bits(x):
    return np.asarray(jax.lax.bitcast_convert_type(x, jnp.uint16))


def test_every_number_of_sixteen_bits_comes_back():
    x = jax.lax.bitcast_convert_type(jnp.arange(2**16, dtype=jnp.uint16), BF16).reshape(16, -1)
    even, odd = pairs.split_pairs(x)
    assert even.dtype == odd.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(even), np.asarray(x[:, ::2], np.float32))
    np.testing.assert_array_equal(np.asarray(odd), np.asarray(x[:, 1::2], np.float32))
    number = ~np.isnan(np.asarray(x, np.float32))
    np.testing.assert_array_equal(bits(pairs.join_pairs(even, odd))[number], bits(x)[number])


def test_elements_are_rounded_as_by_a_conversion():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(5, 8)), jnp.float32)
    np.testing.assert_array_equal(bits(pairs.join_pairs(x[:, ::2], x[:, 1::2])), bits(x.astype(BF16)))


@pytest.mark.long
def test_pairs_are_for_large_rows_of_even_length_in_bfloat16_on_a_gpu(monkeypatch):
    monkeypatch.setattr(pairs, "FEWEST", 6)
    shapes, platforms = {(1, 6): True, (2, 3): False, (1, 4): False, (6,): True}, {"gpu": True, "cpu": False}
    platforms["tpu"] = False
    for (shape, fits), dtype, (name, is_gpu) in itertools.product(
        shapes.items(), (BF16, jnp.float16, jnp.float32), platforms.items()
    ):
        with compiling_for(name), recording() as choices:
            activate("tanh", jnp.zeros(shape, dtype), None)
        uses_pairs = [choice.formulation == "pairs" for choice in choices]
        assert uses_pairs == [fits and is_gpu and dtype == BF16], (shape, dtype, name)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_the_plain_ones(name, biased, gpu):
    # Sums of such numbers are exact; others, a CPU rounds or not.
    x, bias = (jnp.round(8 * numbers(*shape).clip(-6, 6)) / 8 for shape in [(4, 6, 32), (32,)])
    gradient, bias = numbers(4, 6, 32, seed=1, scale=1.0), bias if biased else None

    def both(x, bias):
        y, pull = jax.vjp(lambda x, bias: activate(name, x, bias), x, bias)
        return y, *pull(gradient)

    own = jax.jit(both)(x, bias)
    with compiling_for("cpu"):
        plain = jax.jit(lambda x, bias: both(x, bias))(x, bias)
    for found, expected in zip(own[:2], plain[:2], strict=True):
        assert found.dtype == BF16
        # One unit in the last place; where a slope is close to 0, the rounding of tanh in float32.
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), 2**-7, 1e-5)
    if biased:
        total = np.asarray(own[1], np.float64).sum((0, 1))
        np.testing.assert_allclose(np.asarray(own[2], np.float64), total, 2**-8, 1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations_of_pairs_store_their_arguments_alone(name, biased, gpu):
    bias = numbers(8) if biased else None
    _, pull = jax.vjp(lambda x: activate(name, x, bias), numbers(4, 8))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(pull)) == 2 * (4 * 8 + 8 * biased)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_activations_of_pairs_map_over_stacked_runs(name, gpu):
    x = numbers(3, 4, 8)
    one = jax.grad(lambda x: activate(name, x, None).astype(jnp.float32).sum())
    np.testing.assert_array_equal(bits(jax.vmap(one)(x)), bits(jnp.stack([one(row) for row in x])))


def test_an_activation_of_a_user_is_given_whole_rows(gpu, monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "mine", lambda x: x - x.max(-1, keepdims=True))
    x = numbers(4, 8)
    np.testing.assert_array_equal(bits(activate("mine", x, None)), bits(x - x.max(-1, keepdims=True)))


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("smoothing", [None, 0.1])
@pytest.mark.parametrize("batch", [(7,), (3, 5)])
def test_cross_entropy_equals_the_plain_one(smoothing, batch, gpu):
    random, V = np.random.default_rng(2), 64
    logits, targets = numbers(*batch, V), random.integers(0, V, batch)
    weights = random.uniform(0.1, 2, batch).astype(np.float32)
    weights.flat[1] = 0
    logits = jnp.where(weights[..., None] > 0, logits, jnp.nan)
    targets[weights == 0] = -100

    def loss(logits):
        return cross_entropy(logits, jnp.asarray(targets), jnp.asarray(weights), label_smoothing=smoothing)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(logits)
    with compiling_for("cpu"):
        plain, slope = jax.value_and_grad(loss)(logits.astype(jnp.float32))
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    assert gradient.dtype == BF16
    np.testing.assert_allclose(np.asarray(gradient, np.float64), slope, rtol=2**-7, atol=1e-6)
    assert not np.asarray(gradient, np.float64)[weights == 0].any()


def test_cross_entropy_is_finite_for_large_logits(gpu):
    logits = jnp.asarray([[3e38, -3e38, 0, 0], [-8192, -8192, -8192, -8192]], BF16)
    value, gradient = jax.value_and_grad(lambda z: cross_entropy(z, jnp.asarray([0, 1]))[0])(logits)
    np.testing.assert_allclose(value, np.log(4), rtol=1e-3)
    assert jnp.isfinite(gradient.astype(jnp.float32)).all()
