"""Weights drawn together have the bits of each weight drawn alone, whatever else is drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from flaxformer.core import normal_blocks
from flaxformer.core.normal_blocks import NormalArray, draw
from flaxformer.core.params import fold_in_name

KEY = jax.random.key(7)
SHAPES = {"a": (5, 7), "blocks/0/b": (61, 83), "blocks/1/b": (61, 83), "blocks/10/b": (61, 83), "c": (1,), "d": (4099,)}
ARRAYS = [NormalArray(name, shape, 0.1 * n + 0.3) for n, (name, shape) in enumerate(SHAPES.items())]


def expected(array, key=KEY):
    """Independent route: JAX's own normal numbers of one array."""
    return _normal(array.shape)(fold_in_name(key, array.name), array.std)


@functools.cache
def _normal(shape):
    return jax.jit(lambda key, std: std * jax.random.normal(key, shape, jnp.float32))


def test_arrays_have_the_bits_of_jax_random_normal():
    for array, found in zip(ARRAYS, jax.jit(lambda key: draw(key, ARRAYS))(KEY), strict=True):
        np.testing.assert_array_equal(found, expected(array))


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("numbers", [(1,), (3, 0), (4, 1, 2), (5, 3)])
def test_an_array_does_not_depend_on_the_others(numbers):
    chosen = [ARRAYS[number] for number in numbers]
    for array, found in zip(chosen, draw(KEY, chosen), strict=True):
        np.testing.assert_array_equal(found, expected(array))


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("size", [2**7, 2**16])
def test_the_size_of_a_block_changes_no_bit(size, monkeypatch):
    monkeypatch.setattr(normal_blocks, "block_size", lambda total: size)
    for array, found in zip(ARRAYS, draw(KEY, ARRAYS), strict=True):
        np.testing.assert_array_equal(found, expected(array))


def test_there_are_few_blocks_for_any_total():
    for total in (1, 2**12, 10**6, 10**9):
        size = normal_blocks.block_size(total)
        assert size & (size - 1) == 0
        assert total / size <= normal_blocks.MOST_BLOCKS


def test_keys_mapped_by_lax_map_keep_their_bits():
    """As `start` maps them over the trials of a group, one at a time."""
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    stacked = jax.jit(lambda keys: jax.lax.map(lambda key: draw(key, ARRAYS[:2]), keys))(keys)
    for place, key in enumerate(keys):
        for array, found in zip(ARRAYS[:2], stacked, strict=True):
            np.testing.assert_array_equal(found[place], expected(array, key))


def test_keys_mapped_by_vmap_agree_up_to_rounding():
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    stacked = jax.vmap(lambda key: draw(key, ARRAYS[:2]))(keys)
    for place, key in enumerate(keys):
        for array, found in zip(ARRAYS[:2], stacked, strict=True):
            np.testing.assert_allclose(found[place], expected(array, key), rtol=1e-6, atol=1e-7)


def test_other_arrays_and_keys_are_drawn_one_by_one(monkeypatch):
    """Standard deviations with axes, arrays without entries, other generators, and meshes that divide weights."""
    together = []
    monkeypatch.setattr(
        normal_blocks,
        "draw_together",
        lambda key, arrays: together.extend(arrays) or [jnp.zeros(a.shape) for a in arrays],
    )
    rows = NormalArray("rows", (5, 7), jnp.arange(5.0)[:, None])
    empty = NormalArray("empty", (0, 7), 1.0)
    found = draw(KEY, [rows, empty])
    assert not together
    np.testing.assert_array_equal(found[0], rows.std * jax.random.normal(fold_in_name(KEY, "rows"), (5, 7)))
    assert found[1].shape == (0, 7)
    draw(jax.random.key(7, impl="rbg"), ARRAYS[:1])
    assert not together
    for shape, is_together in (((1, 2), False), ((2, 1), True)):
        mesh = jax.sharding.AbstractMesh(shape, ("data", "fsdp"), (AxisType.Auto,) * 2)
        with jax.sharding.use_abstract_mesh(mesh):
            jax.eval_shape(lambda key: draw(key, ARRAYS[:1]), KEY)
        assert bool(together) is is_together


def test_a_further_stacked_layer_adds_slices_alone_to_the_compiled_code():
    """The random numbers are code of one loop; with some versions of XLA, the layers of a stack are one slice."""

    def code(layers):
        arrays = [NormalArray(f"blocks/{n}/{name}", (61, 83), 1.0) for n in range(layers) for name in "qk"]

        def stacks(key):
            drawn = draw(key, arrays)
            return jnp.stack(drawn[::2]), jnp.stack(drawn[1::2])

        return len(jax.jit(stacks).lower(KEY).compile().as_text().splitlines())

    more_weights = 2 * (23 - 3)  # at 8.3 lines each with jax 0.11, after which the bound was set
    assert code(23) - code(3) <= 10 * more_weights
    assert code(3) > 500


def test_moments_are_those_of_the_normal_distribution():
    [x] = draw(KEY, [NormalArray("x", (499, 401), 1.0)])
    x = np.asarray(x, np.float64)
    error = x.size**-0.5
    assert abs(x.mean()) < 4 * error
    assert abs(x.var() - 1) < 4 * 2**0.5 * error
    assert abs((x**3).mean()) < 4 * 15**0.5 * error
    assert abs((x**4).mean() - 3) < 4 * 96**0.5 * error
    assert abs((x[1:] * x[:-1]).mean()) < 4 * error
