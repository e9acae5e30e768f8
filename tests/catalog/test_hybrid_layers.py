"""Hybrids: the layers of each arm, with the sizes of the baseline."""

import jax
import numpy as np
import pytest

from flaxformer import (
    Attention,
    Embeddings,
    ModelConfig,
    NoHead,
    NoPositions,
    NormPlacement,
    Run,
    replace_at,
)
from flaxformer.catalog import KimiDeltaAttention, Mamba, variants
from flaxformer.model import apply, init

MODEL = ModelConfig(layers=4, d_model=16, attention=Attention(heads=8))


@pytest.mark.long
@pytest.mark.parametrize("label", variants("hybrid_layers"))
def test_a_hybrid_is_its_blocks_one_after_another(label):
    model = replace_at(
        Run(), {"model": MODEL.replace(positions=NoPositions())} | variants("hybrid_layers")[label]
    ).model
    kinds = [type(layer.attention) for layer in model.layer_configs]
    expected = {
        "1 Mamba, 1 window": [Mamba, Attention] * 2,
        "3 KDA, 1 attention": [KimiDeltaAttention] * 3 + [Attention],
    }
    assert kinds == expected.get(label, kinds)
    assert all(getattr(layer.attention, "heads", 8) == 8 for layer in model.layer_configs)
    model = model.replace(inputs=Embeddings(), head=NoHead(), norm=NormPlacement(pre=True))
    x = jax.random.normal(jax.random.key(1), (7, 16))
    params = init(jax.random.key(0), model)
    whole = apply(params, model, x)
    for layer, weights in zip(model.layer_configs, params.blocks, strict=True):
        single = layer.replace(layers=1)
        x = apply(init(jax.random.key(0), single).replace(blocks=(weights,)), single, x)
    np.testing.assert_allclose(x, whole, rtol=1e-5, atol=1e-5)
