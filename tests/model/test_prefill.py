"""Prompts that are read in parts give what one call gives, for every kind of mixer and with padding on either side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import LSTM, Attention, Dense, LearnedPositions, RMSNorm, Rotary
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.model import init
from flaxformer.model.decoding import generate, stream
from flaxformer.model.prefill import read_prompt
from flaxformer.system.errors import UserError

B, T, V, STEPS = 3, 11, 17, 5
BASE = ModelConfig(
    vocabulary=V,
    layers=2,
    d_model=12,
    attention=Attention(heads=3),
    feed_forward=Dense(d_ff=19),
    positions=LearnedPositions(max_length=T + STEPS, std=0.5),
)
MODELS = {
    "learned positions": BASE,
    "rotary, shared keys": BASE.replace(
        positions=Rotary(base=5.0), attention=Attention(heads=6, key_value_heads=3, query_key_norm=RMSNorm())
    ),
    "window": BASE.replace(attention=Attention(heads=3, window=3)),
    "recurrent": recurrent_model(LSTM(), layers=2, d_model=12).replace(vocabulary=V),
}
VALID = {
    "none": np.ones((B, T), bool),
    "left": np.arange(T)[None] >= np.array([[0], [4], [T - 1]]),
    "right": np.arange(T)[None] < np.array([[T], [4], [1]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("padding", VALID)
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_parts_gives_the_same_logits_cache_and_tokens(name, padding):
    config, valid = MODELS[name], VALID[padding]
    params = jax.tree.map(lambda x: x * 3, init(jax.random.key(4), config))
    prompt = jax.random.randint(jax.random.key(1), (B, T), 0, V)
    whole, parts, single = (
        jax.jit(read_prompt, static_argnums=(1, 5, 6))(params, config, prompt, valid, {}, T + STEPS, chunk)
        for chunk in (None, 4, 1)
    )
    for other in (parts, single):
        jax.tree.map(lambda own, one: np.testing.assert_allclose(own, one, rtol=1e-4, atol=1e-5), whole, other)
    assert jnp.abs(whole[1] - whole[1][:1]).max() > 0.1  # rows differ
    expected, found = (
        generate(params, config, prompt, valid=valid, steps=STEPS, prompt_chunk=chunk) for chunk in (None, 3)
    )
    np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_memory_of_a_long_prompt_is_that_of_a_part():
    config = BASE.replace(positions=Rotary(), feed_forward=Dense(d_ff=1024))
    params = jax.eval_shape(lambda: init(jax.random.key(0), config))
    length = 4096
    prompt = jax.ShapeDtypeStruct((B, length), jnp.int32)
    valid = jax.ShapeDtypeStruct((B, length), bool)

    def temporary(chunk):
        read = jax.jit(lambda *given: read_prompt(given[0], config, given[1], given[2], {}, length, chunk))
        return read.lower(params, prompt, valid).compile().memory_analysis().temp_size_in_bytes

    assert temporary(256) < temporary(None) / 2


def test_a_prefix_model_reads_its_prompt_whole():
    config = BASE.replace(mask_pattern="prefix")
    with pytest.raises(UserError, match='prompt_chunk is 4 with mask_pattern "prefix"'):
        stream(init(jax.random.key(0), config), config, np.zeros((1, 5), int), steps=2, prompt_chunk=4)
