"""Decoding, compiled for TPUs and GPUs that are not there: the cache is updated in place, without the host."""

import importlib.util
import math
import re

import jax
import jax.numpy as jnp
import pytest

from flaxformer.components import Attention, Dense, Rotary
from flaxformer.config import ModelConfig
from flaxformer.model import Sampling, decoding, init
from flaxformer.targets.program import Placement
from flaxformer.targets.texts import host_transfers
from flaxformer.targets.topology import PACKAGES, parse_target

pytestmark = pytest.mark.compile
CONFIG = ModelConfig(
    vocabulary=257,
    layers=3,
    d_model=256,
    attention=Attention(heads=4, key_value_heads=2),
    feed_forward=Dense(d_ff=512),
    positions=Rotary(),
)
ROWS, PROMPT, CAPACITY = 8, 4096, 4224
CACHE = 2 * CONFIG.layers * ROWS * CAPACITY * 2 * 64 * 4
"""Bytes of keys and values."""


def compiled(target, function, *arguments, donate=()):
    """A function compiled for one device of a target, with its text."""
    target = parse_target(target)
    if importlib.util.find_spec(PACKAGES[target.device.platform][0]) is None:
        pytest.skip(f"no compiler for {target}")
    placement = Placement.of(target, None)
    with placement.compiling():
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement.whole), arguments)
        found = jax.jit(lambda *own: function(*own), donate_argnums=donate).lower(*shapes).compile()
    return found.memory_analysis(), found.as_text()


def begin(parts):
    def function(params, prompt, valid):
        return decoding.begin_decoding(decoding.Decoder(params, CONFIG), prompt, valid, {}, CAPACITY, parts, None)

    return function


def arguments():
    params = jax.eval_shape(lambda: init(jax.random.key(0), CONFIG))
    tokens = jax.ShapeDtypeStruct((ROWS, PROMPT), jnp.int32)
    return params, tokens, jax.ShapeDtypeStruct((ROWS, PROMPT), jnp.bool_)


@pytest.mark.parametrize("target", ["v5e", "h200"])
@pytest.mark.parametrize("parts", [pytest.param(None, marks=pytest.mark.slow), 512])
def test_a_prompt_is_read_without_logits_of_the_whole_sequence(target, parts):
    memory, text = compiled(target, begin(parts), *arguments())
    shapes = {tuple(map(int, match.split(","))) for match in re.findall(r"\[([\d,]+)\]", text)}
    width = PROMPT if parts is None else parts
    assert {shape for shape in shapes if PROMPT in shape and math.prod(shape) > ROWS * PROMPT * 1024} == set()
    assert memory.output_size_in_bytes >= CACHE
    assert memory.temp_size_in_bytes < CACHE + 4 * ROWS * width * (4 * 256 + 2 * 512) * 4
    assert host_transfers(text) == {}


@pytest.mark.parametrize("target", ["v5e", "h200"])
@pytest.mark.parametrize("temperature", [pytest.param(None, marks=pytest.mark.slow), 0.8])
def test_a_chunk_of_tokens_updates_the_cache_in_place_without_the_host(target, temperature):
    params, prompt, valid = arguments()
    state = jax.eval_shape(begin(None), params, prompt, valid)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def function(params, state, key):
        decoder = decoding.Decoder(params, CONFIG, sampling=Sampling(temperature=temperature), end=0, key=key)
        return decoding.decode_chunk(decoder, state, 32, None)

    memory, text = compiled(target, function, params, state, key, donate=1)
    assert memory.alias_size_in_bytes >= CACHE
    assert memory.temp_size_in_bytes < 0.5 * CACHE
    assert host_transfers(text) == {}
