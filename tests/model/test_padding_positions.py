"""Padding before, between and behind the tokens of a sequence: the result for real tokens is that without padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import (
    LSTM,
    Alibi,
    Attention,
    ConcatenatedIndex,
    Dense,
    LearnedPositions,
    NoPositions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from flaxformer.config import ModelConfig
from flaxformer.model import ArrayIndex, apply, extend, generate, init, new_cache
from flaxformer.nn.masks import Segments
from flaxformer.nn.positions import token_positions
from flaxformer.tasks import Batch

V, REAL = 13, 5
SEQUENCE = np.array([3, 1, 4, 1, 5])
PLACES = {
    "before": [False] * 3 + [True] * 5,
    "between": [True, True, False, True, False, False, True, True],
    "behind": [True] * 5 + [False] * 3,
    "everywhere": [False, True, True, False, True, True, True, False],
}
SCHEMES = {
    "none": {"positions": NoPositions()},
    "sinusoidal": {"positions": Sinusoidal()},
    "learned": {"positions": LearnedPositions(max_length=17)},
    "index": {"positions": ConcatenatedIndex(scale=0.2)},
    "rotary": {"positions": Rotary()},
    "partly rotary": {"positions": Rotary(layout="interleaved", rotated_width=2)},
    "alibi": {"positions": Alibi()},
    "buckets": {"positions": RelativeBuckets(buckets=4, max_distance=5, std=1.0)},
    "window": {"attention": Attention(heads=3, window=2), "positions": Rotary()},
    "frozen pattern": {"attention": Attention(heads=3, frozen_pattern=17)},
    "recurrent": {"attention": LSTM()},
}
VALID = jnp.asarray(list(PLACES.values()))
PADDED = jnp.asarray(np.where(VALID, SEQUENCE[np.maximum(np.cumsum(VALID, -1) - 1, 0)], 7))


def model(**changes):
    fields = {
        "vocabulary": V,
        "layers": 2,
        "d_model": 12,
        "attention": Attention(heads=3),
        "feed_forward": Dense(d_ff=7),
    }
    return ModelConfig(**(fields | changes))


def weights_of(config):
    dice = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: x + jnp.asarray(0.3 * dice.standard_normal(x.shape), x.dtype), init(jax.random.key(0), config)
    )


def check(found, expected):
    for row, place in enumerate(PLACES):
        np.testing.assert_allclose(found[row][np.asarray(VALID[row])], expected, atol=3e-5, err_msg=place)


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("pattern", ["causal", "bidirectional"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_real_tokens_have_the_output_of_the_sequence_alone(scheme, pattern):
    if scheme == "recurrent" and pattern == "bidirectional":
        return
    config = model(mask_pattern=pattern, **SCHEMES[scheme])
    params = weights_of(config)
    expected = jax.jit(apply)(params, config, SEQUENCE[None])[0]
    check(jax.jit(apply)(params, config, PADDED, valid=VALID), expected)
    if pattern == "causal":
        cache, parts = new_cache(params, config, (4,), 8), []
        for first, last in ((0, 3), (3, 8)):
            here = slice(first, last)
            output, cache = jax.jit(extend)(params, config, PADDED[:, here], cache, valid=VALID[:, here])
            parts.append(output)
        check(jnp.concatenate(parts, 1), expected)


@pytest.mark.every(2, "long")
@pytest.mark.every(3)
@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "index", "buckets", "window"])
def test_padding_of_a_source_and_of_the_target(scheme):
    config = model(layers=1, **SCHEMES[scheme]).with_encoder()
    params = weights_of(config)
    target = np.array([2, 9, 6, 5, 3])
    padded = np.where(VALID, target[np.maximum(np.cumsum(VALID, -1) - 1, 0)], 0)
    expected = jax.jit(apply)(params, config, target[None], source=SEQUENCE[None])[0]
    found = jax.jit(apply)(params, config, padded, valid=VALID, source=PADDED[::-1], source_valid=VALID[::-1])
    check(found, expected)


@pytest.mark.long
def test_given_positions_replace_the_counted_ones():
    config = model(positions=LearnedPositions(max_length=17))
    params = weights_of(config)
    by_index = apply(params, config, PADDED, valid=VALID, positions=jnp.arange(8))
    np.testing.assert_allclose(by_index, apply(params, config, PADDED, valid=VALID, positions=ArrayIndex()), atol=1e-6)
    counted = apply(params, config, PADDED, valid=VALID)
    assert float(jnp.abs(counted - by_index)[0, 3:].max()) > 1e-2
    np.testing.assert_array_equal(counted, apply(params, config, PADDED, valid=VALID, positions=token_positions(VALID)))


@pytest.mark.long
def test_packed_documents_with_padding_between_them():
    config = model(positions=LearnedPositions(max_length=17))
    params = weights_of(config)
    segments = jnp.asarray([[0, 0, 0, 0, 1, 1, 1, 1]])
    valid = jnp.asarray([[False, True, True, False, True, True, True, False]])
    positions = jnp.asarray([[0, 0, 1, 1, 0, 1, 2, 2]])
    tokens = jnp.asarray([[0, 3, 1, 0, 4, 1, 5, 0]])
    found = apply(params, config, tokens, valid=valid, positions=positions, mask=Segments(segments, segments))[0]
    np.testing.assert_allclose(found[1:3], apply(params, config, jnp.asarray([[3, 1]]))[0], atol=1e-5)
    np.testing.assert_allclose(found[4:7], apply(params, config, jnp.asarray([[4, 1, 5]]))[0], atol=1e-5)


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("scheme", ["learned", "window"])
def test_tokens_that_follow_a_padded_prompt(scheme):
    config = model(**SCHEMES[scheme])
    params = weights_of(config)
    found = generate(params, config, PADDED, steps=4, valid=np.asarray(VALID)).tokens
    expected = generate(params, config, SEQUENCE[None], steps=4).tokens[0].tolist()
    assert found.tolist() == [expected] * 4
    whole = jnp.concatenate([PADDED, found], -1)
    valid = jnp.concatenate([VALID, jnp.ones((4, 4), bool)], -1)
    logits = apply(params, config, whole, valid=valid)[:, 7:-1]
    assert logits.argmax(-1).tolist() == [expected] * 4


@pytest.mark.long
def test_padding_behind_a_batch_needs_no_position_per_sequence():
    config = model(positions=Alibi())
    params = weights_of(config)
    valid = VALID[2:3]
    batch = Batch(
        inputs=PADDED[2:3], targets=PADDED[2:3], weights=valid.astype(float), valid=valid, padding_is_behind=True
    )
    given = batch.arguments
    assert isinstance(given["positions"], ArrayIndex)
    assert batch.replace(positions=jnp.arange(8)).arguments["positions"].tolist() == list(range(8))
    found = apply(params, config, batch.inputs, **given)
    np.testing.assert_allclose(found[0, :REAL], apply(params, config, batch.inputs, valid=valid)[0, :REAL], atol=1e-6)


def test_positions_count_the_tokens_before():
    assert token_positions(VALID).tolist() == [
        [0, 0, 0, 0, 1, 2, 3, 4],
        [0, 1, 1, 2, 2, 2, 3, 4],
        [0, 1, 2, 3, 4, 4, 4, 4],
        [0, 0, 1, 1, 2, 3, 4, 4],
    ]
    assert token_positions(VALID[:2], jnp.array([2, 0])).tolist() == [
        [1, 1, 1, 2, 3, 4, 5, 6],
        [0, 1, 1, 2, 2, 2, 3, 4],
    ]
