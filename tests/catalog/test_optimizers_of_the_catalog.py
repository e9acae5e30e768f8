"""Optimizers of the catalog equal loops over steps in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer import AdamW, Attention, Dense, Lion, ModelConfig, Muon, NoPositions
from flaxformer.catalog import AdEMAMix, NorMuon
from flaxformer.model import init

dice = np.random.default_rng(0)
GRADIENTS = dice.standard_normal((5, 3, 4))


@pytest.mark.parametrize("rise", [0, 3])
def test_ademamix_equals_its_equation(rise):
    b1, b2, b3, alpha = 0.9, 0.99, 0.999, 4.0
    with jax.enable_x64(True):
        transform = AdEMAMix(beta1=b1, beta2=b2, beta3=b3, alpha=alpha, rise=float(rise)).direction()
        state = transform.init({"w": jnp.zeros((3, 4))})
        fast = slow = square = np.zeros((3, 4))
        for t, g in enumerate(GRADIENTS):
            u, state = transform.update({"w": jnp.asarray(g)}, state)
            share = min(t / rise, 1) if rise else 1
            life = (1 - share) * np.log(0.5) / np.log(b1) + share * np.log(0.5) / np.log(b3)
            slow_decay = 0.5 ** (1 / life)
            fast, slow = b1 * fast + (1 - b1) * g, slow_decay * slow + (1 - slow_decay) * g
            square = b2 * square + (1 - b2) * g**2
            top = fast / (1 - b1 ** (t + 1)) + share * alpha * slow
            np.testing.assert_allclose(u["w"], top / (np.sqrt(square / (1 - b2 ** (t + 1))) + 1e-8), rtol=1e-5)


def model():
    config = ModelConfig(
        layers=2,
        d_model=6,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=4),
        positions=NoPositions(),
        vocabulary=5,
    )
    return init(jax.random.key(0), config)


def random_like(tree):
    return jax.tree.map(lambda x: jnp.asarray(dice.standard_normal(x.shape), jnp.float32), tree)


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("kind", [AdamW, Lion, Muon, NorMuon])
def test_cautious_weight_decay_equals_its_equation(kind):
    params = random_like(model())
    optimizer = kind(weight_decay=0.1, cautious_decay=True)
    plain = optimizer.direction()
    both = optax.chain(*optimizer.decayed_direction(None))
    gradient = random_like(params)
    direction, _ = plain.update(gradient, plain.init(params), params)
    decayed, _ = both.update(gradient, both.init(params), params)
    u, w = (np.array(tree.blocks[1].feed_forward.up) for tree in (direction, params))
    expected = [
        [a + 0.1 * b if a * b >= 0 else a for a, b in zip(*rows, strict=True)] for rows in zip(u, w, strict=True)
    ]
    np.testing.assert_allclose(decayed.blocks[1].feed_forward.up, expected, rtol=1e-6)
    np.testing.assert_array_equal(decayed.blocks[1].feed_forward.up_bias, direction.blocks[1].feed_forward.up_bias)


@pytest.mark.long
def test_nor_muon_equals_its_equation():
    params = random_like(model())
    muon, normalised = Muon().direction(), NorMuon().direction()
    states, v = [muon.init(params), normalised.init(params)], np.zeros(4)
    for _ in range(3):
        gradient = random_like(params)
        plain, states[0] = muon.update(gradient, states[0], params)
        actual, states[1] = normalised.update(gradient, states[1], params)
        o = np.array(plain.blocks[1].feed_forward.up, np.float64)  # [inputs, neurons]
        v = np.array([0.95 * v[n] + 0.05 * (o[:, n] ** 2).mean() for n in range(4)])
        even = np.stack([o[:, n] / (np.sqrt(v[n]) + 1e-8) for n in range(4)], axis=1)
        expected = 0.2 * np.sqrt(o.size) * even / np.linalg.norm(even)
        np.testing.assert_allclose(actual.blocks[1].feed_forward.up, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(actual.blocks[1].feed_forward.up_bias, plain.blocks[1].feed_forward.up_bias)
