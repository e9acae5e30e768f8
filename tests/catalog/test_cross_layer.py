"""Layers that read the keys and values of an earlier layer equal a loop over layers, heads and tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_equal, dice

from flaxformer import NO_NORM, Attention, Embeddings, ModelConfig, NoHead, NoPositions, replace_at
from flaxformer.catalog import KeysValuesForLayers, KeysValuesOfEarlierLayer, variants
from flaxformer.config import Block
from flaxformer.core.params import count
from flaxformer.model import apply, init, new_cache, specs

T, D, N, K, H = 5, 6, 2, 1, 3
MODEL = ModelConfig(
    layers=4,
    d_model=D,
    attention=Attention(heads=N, key_value_heads=K),
    feed_forward=None,
    inputs=Embeddings(),
    head=NoHead(),
    norm=NO_NORM,
    positions=NoPositions(),
)


def model_of(every):
    first, later = KeysValuesForLayers(heads=N, key_value_heads=K, every=every), KeysValuesOfEarlierLayer
    later = later(heads=N, key_value_heads=K, every=every)
    return MODEL.replace(pattern=(Block(attention=first),) + (Block(attention=later),) * (every - 1))


def reference(params, x, every):
    for number, block in enumerate(params.blocks):
        w = block.attention
        if number % every == 0:
            keys = jnp.einsum("td,dkh->tkh", x, w.key) + w.key_bias
            values = jnp.einsum("td,dkh->tkh", x, w.value) + w.value_bias
        rows = []
        for t in range(T):
            total = w.out_bias
            for n in range(N):
                q = x[t] @ w.query[:, n] + w.query_bias[n]
                e = [jnp.exp(q @ keys[s, 0] / H**0.5) for s in range(t + 1)]
                total = total + sum(a / sum(e) * values[s, 0] for s, a in enumerate(e)) @ w.out[n]
            rows.append(total)
        x = x + jnp.stack(rows)
    return x


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 2, 4])
def test_layers_of_a_group_read_the_keys_and_values_of_its_first(every):
    config = model_of(every)
    drawn = jax.tree.map(lambda spec: 0.5 * dice.standard_normal(spec.shape), specs(config))
    x = dice.standard_normal((T, D))
    assert_equal(lambda params, x: apply(params, config, x), lambda params, x: reference(params, x, every), drawn, x)


def test_with_one_layer_per_group_it_is_attention():
    config = model_of(1)
    params, x = init(jax.random.key(0), config), jnp.asarray(dice.standard_normal((T, D)), jnp.float32)
    plain = config.replace(pattern=())
    moved = jax.tree.unflatten(jax.tree.structure(init(jax.random.key(0), plain)), jax.tree.leaves(params))
    np.testing.assert_allclose(apply(params, config, x), apply(moved, plain, x), rtol=1e-5, atol=1e-6)


def test_the_arm_halves_the_cache_and_leaves_out_the_matrices():
    config = replace_at(
        MODEL, {k.removeprefix("model."): v for k, v in variants("cross_layer_keys_values")["pairs of layers"].items()}
    )
    assert count(specs(MODEL)) - count(specs(config)) == 2 * 2 * (D * K * H + K * H)
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(new_cache(init(jax.random.key(0), c), c, (2,), 16)) if leaf.size > 32)
        for c in (MODEL, config)
    ]
    assert sizes[1] * 2 == sizes[0] == 4 * 2 * 2 * 16 * K * H
