"""Devices that decode rows of their own say what one device says, and tell each other nothing."""

import itertools
import re

import jax
import numpy as np
import pytest

from flaxformer.components import LSTM, Attention, Dense, LearnedPositions, Rotary
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.devices.sharding import Devices, replicated
from flaxformer.model import Sampling, beam_search, generate, init, stream

V, ROWS, STEPS, END = 11, 4, 7, 2
DECODER = ModelConfig(
    vocabulary=V,
    layers=2,
    d_model=16,
    attention=Attention(heads=4, key_value_heads=2),
    feed_forward=Dense(d_ff=32),
    positions=Rotary(),
)
PROMPT = np.random.default_rng(0).integers(0, V, (ROWS, 5))
VALID = np.arange(5) >= np.array([0, 2, 1, 4])[:, None]
SOURCE = np.random.default_rng(1).integers(0, V, (ROWS, 6))
KINDS = {
    "decoder": (DECODER, "unrolled", {}),
    "scanned": (DECODER.replace(positions=LearnedPositions(max_length=32)), "scanned", {}),
    "encoder-decoder": (
        DECODER.with_encoder(),
        "unrolled",
        {"source": SOURCE, "source_valid": np.arange(6) < np.array([[6], [3], [1], [5]])},
    ),
    "recurrent": (recurrent_model(LSTM(), vocabulary=V, layers=2, d_model=16), "unrolled", {}),
}
DRAWN = {"sampling": Sampling(temperature=2.0, top_k=7), "key": jax.random.key(3), "chunk": 3}
HOW = {
    "greedy": (generate, {}),
    "drawn": (generate, DRAWN),
    "beams": (beam_search, {"beams": 3}),
}


@pytest.fixture(scope="module")
def mesh():
    return Devices(data=2).mesh()


def weights(name):
    """Weights large enough that rows differ in what they say."""
    config, layout, _ = KINDS[name]
    return jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim > 1 else leaf, init(jax.random.key(0), config, layout))


QUICK = {("scanned", "drawn"), ("encoder-decoder", "beams"), ("recurrent", "greedy")}


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(*both, marks=[] if both in QUICK else pytest.mark.slow) for both in itertools.product(KINDS, HOW)],
)
def test_each_decoded_row_equals_that_of_one_device(mesh, name, how):
    (config, _, given), (function, asked), params = KINDS[name], HOW[how], weights(name)
    asked = asked | given | {"valid": VALID, "steps": STEPS, "end": END}
    one = function(params, config, PROMPT, **asked)
    with jax.set_mesh(mesh):
        cut = function(jax.device_put(params, replicated(mesh)), config, PROMPT, **asked)
    assert [len(shard.data) for shard in cut.tokens.addressable_shards] == [ROWS // 2] * 2
    assert len(np.unique(one.tokens.reshape(ROWS, -1), axis=0)) > 1
    np.testing.assert_array_equal(cut.tokens, one.tokens)
    np.testing.assert_array_equal(cut.lengths, one.lengths)
    numbers = "scores" if how == "beams" else "log_probabilities"
    np.testing.assert_allclose(getattr(cut, numbers), getattr(one, numbers), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_batch_that_the_mesh_does_not_divide_is_decoded(mesh):
    params, asked = weights("decoder"), DRAWN | {"steps": STEPS}
    one = generate(params, DECODER, PROMPT[:3], **asked)
    with jax.set_mesh(mesh):
        three = generate(jax.device_put(params, replicated(mesh)), DECODER, PROMPT[:3], **asked)
    np.testing.assert_array_equal(three.tokens, one.tokens)


@pytest.mark.long
def test_a_stream_gives_the_tokens_of_generate(mesh):
    params, asked = weights("decoder"), DRAWN | {"steps": STEPS}
    one = generate(params, DECODER, PROMPT, **asked)
    with jax.set_mesh(mesh):
        pieces = stream(jax.device_put(params, replicated(mesh)), DECODER, PROMPT, **asked)
    np.testing.assert_array_equal(np.concatenate([piece.tokens for piece in pieces], 1), one.tokens)


def test_decoding_over_devices_exchanges_nothing(mesh):
    params = jax.device_put(weights("decoder"), replicated(mesh))
    with jax.set_mesh(mesh):
        text = jax.jit(lambda params: generate(params, DECODER, PROMPT, steps=STEPS)).lower(params).compile().as_text()
    assert "while" in text
    assert not re.search(r"all-|collective|send|recv", text)
