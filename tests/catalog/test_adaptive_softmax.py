"""Adaptive input and softmax equal loops over tokens and bands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_equal, dice

from flaxformer import Attention, ModelConfig, NoPositions
from flaxformer.catalog import AdaptiveInput, AdaptiveSoftmax
from flaxformer.core.params import count
from flaxformer.model import specs

V, D = 13, 16
BANDS = {"first": 4, "second": 3, "third": 6}
STARTS = {"first": 0, "second": 4, "third": 7}
SHARES = {"frequent": 0.3, "medium": 0.25}
MODEL = ModelConfig(
    vocabulary=V,
    layers=0,
    d_model=D,
    attention=Attention(heads=2),
    positions=NoPositions(),
    inputs=AdaptiveInput(**SHARES),
    head=AdaptiveSoftmax(**SHARES),
)


def drawn(part):
    return jax.tree.map(lambda spec: dice.standard_normal(spec.shape), getattr(specs(MODEL), part))


def test_a_token_has_the_vector_of_its_band():
    tokens = np.array([0, 3, 4, 6, 7, 12, 3])

    def reference(weights):
        rows = []
        for token in tokens:
            (name,) = [name for name, start in STARTS.items() if 0 <= token - start < BANDS[name]]
            rows.append(getattr(weights, f"{name}_rows")[token - STARTS[name]] @ getattr(weights, f"{name}_map"))
        return jnp.stack(rows)

    def function(weights):
        return MODEL.inputs.apply(weights, jnp.asarray(tokens), None, None, MODEL.sizes)

    assert_equal(function, reference, drawn("embedding"))


def test_a_token_has_the_probability_of_its_band_times_its_own_within():
    x = dice.standard_normal((5, D))

    def reference(weights, x):
        rows = []
        for t in range(5):
            entries = jnp.exp(x[t] @ weights.first)
            entries = entries / entries.sum()
            numbers = [entries[v] for v in range(4)]
            for band, name in ((4, "second"), (5, "third")):
                scores = jnp.exp((x[t] @ getattr(weights, f"{name}_map")) @ getattr(weights, name))
                numbers += [entries[band] * scores[v] / scores.sum() for v in range(BANDS[name])]
            rows.append(jnp.log(jnp.stack(numbers)))
        return jnp.stack(rows)

    weights = drawn("head")
    assert_equal(lambda weights, x: MODEL.head.project(weights, x, None), reference, weights, x)
    with jax.enable_x64(True):
        log_p = MODEL.head.project(jax.tree.map(jnp.asarray, weights), jnp.asarray(x), None)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, rtol=1e-12)
    assert log_p.shape == (5, V)
    assert MODEL.head.can_split


def test_the_published_bands_and_weights():
    model = MODEL.replace(vocabulary=260_000, d_model=1024, inputs=AdaptiveInput(), head=AdaptiveSoftmax())
    rows = 20_000 * 1024 + 40_000 * 256 + 200_000 * 64
    maps = 1024 * (1024 + 256 + 64)
    assert count(specs(model).embedding) == rows + maps
    assert count(specs(model).head) == rows + 2 * 1024 + 1024 * (256 + 64)


@pytest.mark.parametrize("vocabulary", [3, 12, 100])
def test_the_bands_cover_every_vocabulary(vocabulary):
    sizes = AdaptiveInput().sizes({"vocabulary": vocabulary, "d_model": 16})
    assert sum(sizes[name] for name in BANDS) == vocabulary
