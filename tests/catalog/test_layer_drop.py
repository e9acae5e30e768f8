"""LayerDrop leaves out whole layers, branches together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import context_of, drawn, through

from flaxformer import AssociativeRecall, Attention, Dense, ModelConfig, NoPositions
from flaxformer.catalog import LayerDrop
from flaxformer.model import apply_with_intermediates, init

T, D, LAYERS = 3, 5, 6
X, MAPS = drawn(x=(T, D))["x"], drawn(maps=(2 * LAYERS, D, D))["maps"]
TASK = AssociativeRecall(pairs=3, queries=2, keys=6, values=6, batch_size=2)


@pytest.mark.parametrize(("every", "used"), [(None, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4]), (3, [0, 1, 3, 4])])
def test_in_evaluation_every_nth_layer_is_left_out(every, used):
    rule, expected = LayerDrop(every=every), X
    for layer in used:
        for matrix in MAPS[2 * layer : 2 * layer + 2]:
            expected = expected + np.tanh(expected @ matrix)
    with jax.enable_x64(True):
        actual = through(rule, [rule.Weights()] * (2 * LAYERS), MAPS, jnp.asarray(X), LAYERS)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_in_training_a_share_of_the_layers_is_kept():
    rule, update = LayerDrop(rate=0.3), jnp.ones((T, D))

    def join(key):
        context = context_of(X, layer=1, layers=LAYERS, training=True, key=jax.random.key(5), layer_key=key)
        return rule.join(rule.Weights(), jnp.zeros((T, D)), update, context)

    results = np.array(jax.vmap(join)(jax.random.split(jax.random.key(0), 4000)))
    assert set(np.unique(results)) == {0, 1}
    assert (results == results[:, :1, :1]).all()
    assert abs(results[:, 0, 0].mean() - 0.7) < 4 * np.sqrt(0.21 / 4000)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_the_branches_of_a_layer_are_left_out_together(layout):
    config = ModelConfig(
        layers=LAYERS, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=8), positions=NoPositions(),
        residual=LayerDrop(rate=0.5), vocabulary=TASK.vocabulary,
    )  # fmt: skip
    params = init(jax.random.key(0), config, layout)
    tokens = TASK.load().evaluation().inputs[0]
    kept = []
    for seed in range(6):
        _, activations = apply_with_intermediates(params, config, tokens, dropout_key=jax.random.key(seed))
        for block in activations.blocks:
            kept.append([bool(np.any(branch.update)) for branch in (block.attention, block.feed_forward)])
    assert all(attention == network for attention, network in kept)
    assert {attention for attention, _ in kept} == {True, False}
