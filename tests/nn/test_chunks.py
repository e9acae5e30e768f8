"""Sums over chunks of tokens equal sums over all tokens, in value and gradient, for any division."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.formulations import chunks
from flaxformer.nn.formulations.chunks import Division
from flaxformer.nn.losses import cross_entropy

D, V = 5, 11
SUMS = {"once": chunks.sum_chunks_once, "again": chunks.sum_chunks}


def loss_of_chunk(shared, x, rows):
    table, scale = shared["table"], shared["scale"]
    return cross_entropy(scale * (x @ table.T), *rows, label_smoothing=0.1)[0]


def numbers(*batch):
    random = np.random.default_rng(len(batch))
    shared = {"table": jnp.asarray(random.normal(size=(V, D)), jnp.float32), "scale": 1.3, "unused": jnp.int32(3)}
    weights = jnp.asarray(random.integers(0, 2, batch), jnp.float32)
    return (
        shared,
        jnp.asarray(random.normal(size=(*batch, D)), jnp.float32),
        (jnp.asarray(random.integers(0, V, batch)), weights),
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("how", SUMS)
@pytest.mark.parametrize(("batch", "shards", "count"), [((7,), 1, 1), ((7,), 1, 3), ((6, 5), 2, 4), ((6, 5), 3, 10)])
def test_loss_and_gradient_do_not_depend_on_the_chunks(how, batch, shards, count):
    shared, x, rows = numbers(*batch)

    def whole(floats, x):
        return 0.7 * loss_of_chunk(shared | floats, x.reshape(-1, D), [one.reshape(-1) for one in rows])

    def in_chunks(floats, x):
        return 0.7 * SUMS[how](loss_of_chunk, shared | floats, x, rows, Division(batch, shards, count))

    floats = {"table": shared["table"], "scale": jnp.float32(1.3)}
    expected, found = (jax.jit(jax.value_and_grad(one, argnums=(0, 1)))(floats, x) for one in (whole, in_chunks))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-6), expected, found)


@pytest.mark.parametrize(("batch", "shards", "count"), [((7,), 1, 3), ((6, 5), 3, 4), ((2, 3, 5), 2, 4)])
def test_merging_restores_what_was_split(batch, shards, count):
    x = jnp.arange(np.prod(batch) * 2).reshape(*batch, 2)
    division = Division(batch, shards, count)
    np.testing.assert_array_equal(division.merge(division.split(x)), x)


@pytest.mark.parametrize("tokens", [1, 7, 48, 1009, 32768])
@pytest.mark.parametrize("width", [1, 13, 50304])
def test_a_chunk_has_at_most_the_stated_size(tokens, width):
    large = 2**20
    count = chunks.chunk_count(tokens, width, large)
    assert 1 <= count <= tokens
    assert -(-tokens // count) * width <= large + count * width
    assert tokens * width > large or count == 1


def test_gradient_of_a_narrow_table_is_summed_in_float32():
    # 2,048 equal terms: in bfloat16, a sum of them would stop growing at 256 times a term.
    table, x = jnp.ones((1, 1), jnp.bfloat16), jnp.ones((2048, 1), jnp.bfloat16)

    def total(table):
        division = Division((2048,), 1, 2048)
        return chunks.sum_chunks(lambda table, x, rows: (x @ table).astype(jnp.float32).sum(), table, x, (), division)

    assert jax.grad(total)(table) == 2048
