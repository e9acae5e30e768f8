"""The attention scale as a factor of the map of the queries, as accelerators have it, against a scale of the logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, grid, model_and_tokens

from flaxformer.components import Attention, RMSNorm
from flaxformer.components import attention as module
from flaxformer.core.paths import replace_at
from flaxformer.model import apply, generate
from flaxformer.nn.formulations import compiling_for


def values(platform, params, config, tokens, given):
    """Return the output and the gradients of a sum over it, traced for a platform; a CPU can run all of them."""

    def total(params):
        y = apply(params, config, tokens, **given)
        return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum(), y

    with compiling_for(platform):
        return jax.jit(jax.grad(total, has_aux=True, allow_int=True))(params)


@pytest.mark.long
@pytest.mark.every(3)
@grid
def test_values_and_gradients_are_those_of_scaled_logits(config):
    params, tokens, given = model_and_tokens(config)
    own, other = (jax.tree.leaves(values(name, params, config, tokens, given)) for name in ("gpu", "cpu"))
    for found, expected in zip(own, other, strict=True):
        if found.dtype != jax.dtypes.float0:
            size = 1 + float(jnp.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * size)


@pytest.fixture
def scales(monkeypatch):
    """The scales that `dot_product_attention` is called with."""
    seen, original = [], module.dot_product_attention

    def recorded(*arguments, scale, **options):
        seen.append(scale)
        return original(*arguments, scale=scale, **options)

    monkeypatch.setattr(module, "dot_product_attention", recorded)
    return seen


@pytest.mark.parametrize(
    ("platform", "changes", "edit", "is_in_map"),
    [
        ("gpu", {}, {}, True),
        ("tpu", {}, {}, True),
        ("cpu", {}, {}, False),
        ("gpu", {"attention.query_key_norm": RMSNorm()}, {}, False),
        ("gpu", {}, {"blocks/*/attention/query": lambda x: x + 1}, False),
        ("gpu", {}, {"blocks/*/attention/key": lambda x: x + 1}, True),
    ],
)
def test_the_map_is_scaled_where_nothing_else_sees_the_queries(platform, changes, edit, is_in_map, scales):
    config = replace_at(BASE, {"attention": Attention(heads=2)} | changes)
    params, tokens, given = model_and_tokens(config)
    with compiling_for(platform):
        jax.eval_shape(lambda params: apply(params, config, tokens, edit=edit, **given), params)
    assert {type(scale) is float and scale == 1.0 for scale in scales} == {is_in_map}


@pytest.mark.long
def test_a_cached_token_has_its_logits_scaled():
    params, tokens, _ = model_and_tokens(BASE)
    with compiling_for("gpu"):
        own = generate(params, BASE, tokens[:, :3], steps=4)
    np.testing.assert_array_equal(own.tokens, generate(params, BASE, tokens[:, :3], steps=4).tokens)
