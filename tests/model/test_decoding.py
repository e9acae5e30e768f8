"""Decoding with a cache equals full forward passes, for many architectures, with padding and in chunks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from flaxformer.components import (
    POST,
    PRE,
    SANDWICH,
    Alibi,
    Attention,
    BatchNorm,
    Classifier,
    ConcatenatedIndex,
    DeepNorm,
    Dense,
    Gated,
    LanguageModel,
    LayerNorm,
    LearnedPositions,
    NoPositions,
    RelativeBuckets,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Vectors,
)
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.model import apply, decoding, extend, new_cache, prefill, specs
from flaxformer.model.decoding import generate, stream
from flaxformer.model.sampling import Sampling, filter_logits, most_probable, sample
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

B, T, V = 2, 7, 13
BASE = ModelConfig(vocabulary=V, layers=2, d_model=12, attention=Attention(heads=3), feed_forward=Dense(d_ff=17))

POSITIONS = {
    "none": NoPositions(),
    "sinusoidal": Sinusoidal(),
    "sinusoidal, split": Sinusoidal(layout="split"),
    "learned": LearnedPositions(max_length=T, std=0.5),
    "index": ConcatenatedIndex(scale=0.3),
    "rotary": Rotary(base=5.0),
    "rotary, interleaved": Rotary(base=5.0, layout="interleaved"),
    "alibi": Alibi(),
    "buckets": RelativeBuckets(buckets=4, max_distance=5, std=0.5),
}
SEEN = {"causal": {}, "window": {"attention.window": 3}, "prefix": {"mask_pattern": "prefix"}}
PLACES = {"pre": PRE, "post": POST, "sandwich": SANDWICH}
KINDS = {"layer": LayerNorm(), "rms": RMSNorm(), "batch": BatchNorm()}
FAMILIES = {
    "decoder": {},
    "encoder-decoder": {"encoder": True},
    "shared keys": {"attention.key_value_heads": 1},
    "full values": {"attention.value_form": "full"},
    "parallel": {"parallel": True},
    "frozen": {"attention.frozen_pattern": T},
    "further": {
        "attention.query_key_norm": RMSNorm(),
        "attention.share_query_key": True,
        "feed_forward": Gated(d_ff=17),
        "residual": DeepNorm(),
        "attention.logit_cap": 2.0,
        "head": LanguageModel(transform="relu", bias=True),
    },
}
# Every pair of choices, of which every second is slow; the whole product is exhaustive.
COVER = [
    (positions, list(SEEN)[(i + j) % 3], list(PLACES)[(i // 3 + j) % 3], list(KINDS)[(i + 2 * j) % 3], family)
    for (i, positions), (j, family) in itertools.product(enumerate(POSITIONS), enumerate(FAMILIES))
]


def config_of(positions, seen, place, kind, family, **more):
    changes = FAMILIES[family] | SEEN[seen] | {"norm": PLACES[place], "norm_kind": KINDS[kind]} | more
    encoder = changes.pop("encoder", False)
    config = replace_at(BASE, {"positions": POSITIONS[positions]} | changes)
    return config.with_encoder(attention=config.attention.replace(window=None)) if encoder else config


def weights(config, seed=0, gain=1.0):
    """Return random weights without zeros or ones, so that biases and gains have an effect."""
    random, constants = np.random.default_rng(seed), {"ones": 1.0, "constant": 1.0}

    def draw(spec):
        std = 0.1 if spec.init in constants else gain * max(spec.fan_in, 9) ** -0.5
        return jnp.asarray(constants.get(spec.init, 0) + random.normal(0, std, spec.shape), jnp.float32)

    return jax.tree.map(draw, specs(config))


def given_to(config, rows=B):
    """Return a source with padding, for an encoder-decoder."""
    if config.encoder is None:
        return {}
    source = jax.random.randint(jax.random.key(2), (rows, T), 0, V)
    return {"source": source, "source_valid": jnp.arange(T)[None] < jnp.array([[T], [3]])[:rows]}


def cached_equals_full(config, layout="unrolled"):
    params, given = with_layout(weights(config), layout), given_to(config)
    tokens = jax.random.randint(jax.random.key(1), (B, T), 0, V)
    prefix = jnp.array([3, 2]) if config.mask_pattern == "prefix" else None
    full = apply(params, config, tokens, prefix=prefix, **given)
    cache, said = new_cache(params, config, (B,), T, **given), []
    for piece, seen in ((tokens[:, :3], prefix), (tokens[:, 3:4], None), (tokens[:, 4:], None)):
        logits, cache = extend(params, config, piece, cache, prefix=seen)
        said.append(logits)
    # A BatchNorm's running statistics bound nothing: rounding is that of the largest logit.
    np.testing.assert_allclose(jnp.concatenate(said, 1), full, rtol=1e-5, atol=1e-5 * max(1, jnp.abs(full).max()))


@pytest.mark.long
@pytest.mark.every(36)
@pytest.mark.parametrize(
    ("positions", "seen", "place", "kind", "family"),
    [pytest.param(*cell, marks=pytest.mark.slow if i % 2 else ()) for i, cell in enumerate(COVER)],
)
def test_cached_logits_equal_full_logits(positions, seen, place, kind, family):
    cached_equals_full(config_of(positions, seen, place, kind, family))


def test_cached_logits_equal_full_logits_of_scanned_layers():
    cached_equals_full(config_of("rotary", "causal", "post", "batch", "shared keys"), "scanned")


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_logits_equal_full_logits_in_every_combination(positions, family):
    for seen, place, kind in itertools.product(SEEN, PLACES, KINDS):
        cached_equals_full(config_of(positions, seen, place, kind, family))
    cached_equals_full(config_of(positions, "window", "sandwich", "layer", family, layers=3), "scanned")


def test_the_covering_array_contains_every_pair():
    axes = list(enumerate((POSITIONS, SEEN, PLACES, KINDS, FAMILIES)))
    for (i, first), (j, second) in itertools.combinations(axes, 2):
        assert {(cell[i], cell[j]) for cell in COVER} == set(itertools.product(first, second))


# --- padding -------------------------------------------------------------------------------------------

PADDED = np.array([[0, 1, 1], [1, 1, 0]], bool)
FURTHER = [("none", "causal", "encoder-decoder"), ("rotary", "window", "decoder"), ("buckets", "prefix", "decoder")]


@pytest.mark.every(4, "long")
@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("positions", "seen", "family"),
    [(positions, "causal", "decoder") for positions in POSITIONS] + [*FURTHER, ("none", "causal", "frozen")],
)
def test_padding_of_a_prompt_does_not_change_its_continuation(positions, seen, family):
    config = config_of(positions, seen, "pre", "layer", family)
    params, given = weights(config), given_to(config)
    real = jax.random.randint(jax.random.key(1), (B, T), 0, V)
    prompt = np.full(PADDED.shape, 5)
    prompt[PADDED] = np.asarray(real[:, :2]).ravel()
    seen_whole = (lambda n: jnp.full(B, n)) if seen == "prefix" else lambda n: None
    cache = new_cache(params, config, (B,), T, **given)
    logits, cache = extend(params, config, jnp.asarray(prompt), cache, valid=PADDED, prefix=seen_whole(3))
    said = [logits[PADDED].reshape(B, 2, V)]
    for piece in (real[:, 2:3], real[:, 3:6]):
        logits, cache = extend(params, config, piece, cache)
        said.append(logits)
    whole = apply(params, config, real, prefix=seen_whole(2), **given)
    np.testing.assert_allclose(jnp.concatenate(said, 1), whole[:, :6], rtol=1e-5, atol=1e-5)


def test_decoding_does_not_read_padding_of_the_memory():
    config = BASE.replace(d_memory=5, layers=1)
    params, valid = weights(config), jnp.arange(T)[None] < jnp.array([[T], [3]])
    memory = jnp.where(valid[..., None], jax.random.normal(jax.random.key(3), (B, T, 5)), jnp.nan)
    given, tokens = {"memory": memory, "memory_valid": valid}, jnp.array([[1], [2]])
    logits, _ = jax.jit(extend)(params, config, tokens, new_cache(params, config, (B,), T, **given))
    np.testing.assert_allclose(logits, forward(params, config, tokens, **given), rtol=1e-5, atol=1e-5)
    assert np.isfinite(logits).all()


# --- generation: one small model, whose cache is exactly as long as its positions ----------------------

ROWS, PROMPT, STEPS, WORDS = 3, 4, 7, 11
SMALL = ModelConfig(
    vocabulary=WORDS,
    layers=1,
    d_model=12,
    attention=Attention(heads=3),
    feed_forward=Dense(d_ff=17),
    positions=LearnedPositions(max_length=PROMPT + STEPS - 1),
)
DRAWN = Sampling(temperature=1.3, top_k=7, top_p=0.9)
forward = jax.jit(apply)


@pytest.fixture(scope="module")
def params():
    return weights(SMALL, 6, 2.0)


@pytest.fixture(scope="module")
def prompt():
    return jax.random.randint(jax.random.key(1), (ROWS, PROMPT), 0, WORDS)


def log_softmax(logits):
    return scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)


def greedy(params, config, prompt, steps, **given):
    """Return the most probable tokens, each computed by a forward pass over the whole sequence."""
    # What is not said yet is 0, and after all that is read.
    tokens = np.pad(np.asarray(prompt), ((0, 0), (0, steps - 1)))
    said, numbers = [], []
    for step in range(steps):
        at = prompt.shape[1] - 1 + step
        logits = log_softmax(forward(params, config, jnp.asarray(tokens), **given)[:, at])
        said.append(logits.argmax(-1))
        numbers.append(logits.max(-1))
        if step < steps - 1:
            tokens[:, at + 1] = said[-1]
    return np.stack(said, 1), np.stack(numbers, 1)


def cut(tokens, numbers, end):
    """Return tokens and numbers of each row up to its first `end`."""
    ends = tokens == end
    lengths = np.where(ends.any(-1), ends.argmax(-1) + 1, tokens.shape[1])
    real = np.arange(tokens.shape[1])[None] < lengths[:, None]
    return np.where(real, tokens, end), lengths, np.where(real, numbers, 0)


def test_greedy_generation_equals_the_argmax_of_full_forward_passes(params, prompt):
    tokens, numbers = greedy(params, SMALL, prompt, STEPS)
    assert len(set(tokens.ravel())) > 3
    for end in np.unique(tokens):
        result = generate(params, SMALL, prompt, steps=STEPS, end=int(end), chunk=3)
        expected = cut(tokens, numbers, end)
        np.testing.assert_array_equal(result.tokens, expected[0])
        np.testing.assert_array_equal(result.lengths, expected[1])
        np.testing.assert_allclose(result.log_probabilities, expected[2], rtol=1e-5, atol=1e-5)


def test_generation_without_end_has_full_length(params, prompt):
    result = generate(params, SMALL, prompt, steps=STEPS)
    np.testing.assert_array_equal(result.tokens, greedy(params, SMALL, prompt, STEPS)[0])
    assert result.lengths.tolist() == [STEPS] * ROWS
    assert (np.asarray(result.log_probabilities) < 0).all()


def test_the_chunk_size_does_not_change_the_tokens(params, prompt):
    key = jax.random.key(5)
    whole, pieces = (
        generate(params, SMALL, prompt, steps=STEPS, sampling=DRAWN, end=2, key=key, chunk=chunk) for chunk in (32, 3)
    )
    jax.tree.map(np.testing.assert_array_equal, whole, pieces)
    other = generate(params, SMALL, prompt, steps=STEPS, sampling=DRAWN, end=2, key=jax.random.key(6), chunk=3)
    assert (whole.tokens != other.tokens).any()


def test_steps_and_rows_have_independent_random_numbers(params, prompt):
    sampling = DRAWN.replace(temperature=1e6, top_p=1.0)  # seven tokens, as probable as each other
    result = generate(params, SMALL, prompt, steps=STEPS, sampling=sampling, end=2, key=jax.random.key(7), chunk=3)
    assert all(len(set(row[:length])) > 2 for row, length in zip(result.tokens.tolist(), result.lengths, strict=True))
    assert len(set(result.tokens[:, 0].tolist())) > 1


def test_log_probabilities_do_not_depend_on_sampling(params, prompt):
    result = generate(params, SMALL, prompt, steps=STEPS, sampling=DRAWN, end=2, key=jax.random.key(5), chunk=3)
    tokens = jnp.concatenate([prompt, result.tokens[:, :-1]], 1)
    logits = log_softmax(forward(params, SMALL, tokens)[:, PROMPT - 1 :])
    numbers = np.take_along_axis(logits, np.asarray(result.tokens)[..., None], -1)[..., 0]
    _, lengths, numbers = cut(np.asarray(result.tokens), numbers, 2)
    np.testing.assert_allclose(result.log_probabilities, numbers, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.lengths, lengths)


def test_stream_yields_parts_and_stops_when_all_rows_have_ended(params, prompt):
    tokens, _ = greedy(params, SMALL, prompt, STEPS)
    same = jnp.broadcast_to(prompt[:1], prompt.shape)
    pieces = list(stream(params, SMALL, same, steps=STEPS, end=int(tokens[0, 0]), chunk=3))
    assert [piece.tokens.shape for piece in pieces] == [(ROWS, 3)]
    assert pieces[0].lengths.tolist() == [1] * ROWS
    never = next(word for word in range(WORDS) if word not in tokens)
    pieces = list(stream(params, SMALL, prompt, steps=STEPS, end=never, chunk=3))
    assert [piece.tokens.shape[1] for piece in pieces] == [3, 3, 1]
    np.testing.assert_array_equal(jnp.concatenate([piece.tokens for piece in pieces], 1), tokens)


def test_rows_of_a_padded_batch_are_continued_independently(params, prompt):
    tokens, numbers = greedy(params, SMALL, prompt[:, 1:3], STEPS)
    valid = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]], bool)
    padded = np.full(valid.shape, -100)
    padded[valid] = np.asarray(prompt[:, 1:3]).ravel()
    result = generate(params, SMALL, padded, valid=valid, steps=STEPS)
    np.testing.assert_array_equal(result.tokens, tokens)
    np.testing.assert_allclose(result.log_probabilities, numbers, rtol=1e-5, atol=1e-5)


def test_an_encoder_decoder_starts_from_one_token():
    config = SMALL.replace(positions=Rotary()).with_encoder()
    params = weights(config, 4, 2.0)
    given = {"source": jax.random.randint(jax.random.key(2), (ROWS, 5), 0, WORDS)}
    given["source_valid"] = jnp.arange(5)[None] < jnp.array([[2], [5], [4]])
    start = jnp.zeros((ROWS, 1), int)
    tokens, numbers = greedy(params, config, start, STEPS, **given)
    assert len({tuple(row) for row in tokens.tolist()}) == ROWS  # each row of its own source
    result = generate(params, config, start, steps=STEPS, **given)
    np.testing.assert_array_equal(result.tokens, tokens)
    np.testing.assert_allclose(result.log_probabilities, numbers, rtol=1e-5, atol=1e-5)


def test_generation_does_not_donate_the_callers_arrays():
    config = SMALL.replace(positions=Rotary()).with_encoder()
    source = jax.random.randint(jax.random.key(2), (ROWS, 5), 0, WORDS)
    given = {"source": source, "source_valid": jnp.arange(5)[None] < jnp.array([[2], [5], [4]])}
    params, start = weights(config, 4, 2.0), jnp.zeros((ROWS, 1), int)
    # Twice, in chunks: what a chunk takes over from the one before is gone afterwards.
    first, second = (generate(params, config, start, steps=STEPS, chunk=3, **given).tokens for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_prompt_tokens_of_a_prefix_model_attend_to_the_whole_prompt():
    config = SMALL.replace(layers=2, mask_pattern="prefix", positions=NoPositions())
    params = weights(config, 4, 2.0)
    prompt = jax.random.randint(jax.random.key(1), (ROWS, PROMPT), 0, WORDS)
    tokens, numbers = greedy(params, config, prompt, 2, prefix=jnp.full(ROWS, PROMPT))
    result = generate(params, config, prompt, steps=2)
    np.testing.assert_array_equal(result.tokens, tokens)
    np.testing.assert_allclose(result.log_probabilities, numbers, rtol=1e-5, atol=1e-5)


def test_the_same_shapes_are_compiled_once(params, prompt, monkeypatch):
    def call(prompt, seed, temperature, end, slope):
        sampling, key = DRAWN.replace(temperature=temperature, top_p=temperature / 2), jax.random.key(seed)
        config = replace_at(SMALL, {"attention.scale_exponent": slope})
        return generate(params, config, prompt, steps=STEPS, sampling=sampling, end=end, key=key, chunk=3)

    first = call(prompt, 5, 1.3, 2, 0.5)

    def refused(*_, **__):
        raise AssertionError("traced anew")

    monkeypatch.setattr(decoding, "extend_edited", refused)
    monkeypatch.setattr(prefill, "extend_edited", refused)
    again = call((prompt + 1) % WORDS, 6, 0.7, 3, 0.4)
    assert (first.tokens != again.tokens).any()
    with pytest.raises(AssertionError, match="traced anew"):
        call(prompt[:, 1:], 5, 1.3, 2, 0.5)


# --- choice of a token ---------------------------------------------------------------------------------


def kept(logits, temperature=1.0, top_k=None, top_p=None):
    """Return the ids that may be drawn, by sorting and summing probabilities."""
    scaled = [x / temperature for x in np.asarray(logits, np.float64)]
    alive = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if top_k is not None:
        alive = [i for i in alive if scaled[i] >= scaled[alive[min(top_k, len(alive)) - 1]]]
    if top_p is not None:
        total, mass, last = sum(np.exp(scaled[i]) for i in alive), 0.0, 0
        while last < len(alive) and mass < top_p:
            mass += np.exp(scaled[alive[last]]) / total
            last += 1
        alive = [i for i in alive if scaled[i] >= scaled[alive[last - 1]]]
    return set(alive)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5, "top_k": 4},
        {"temperature": 0.7, "top_k": 50},
        {"temperature": 0.7, "top_p": 0.83},
        {"temperature": 2.0, "top_p": 0.31},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.6, "top_k": 5, "top_p": 0.77},
        {"temperature": 3.0, "top_k": 3, "top_p": 0.5},
    ],
    ids=str,
)
def test_filter_logits_equals_the_definition(how):
    logits = np.random.default_rng(0).normal(0, 2, (17, V))
    logits[:, 3] = logits[:, 8]  # equal probabilities stay or go together
    filtered = np.asarray(filter_logits(jnp.asarray(logits, jnp.float32), Sampling(**how)))
    for row, left in zip(logits, filtered, strict=True):
        alive = kept(np.float32(row), **how)
        assert {i for i in range(V) if np.isfinite(left[i])} == alive
        scaled = np.array([row[i] / how["temperature"] if i in alive else -np.inf for i in range(V)])
        np.testing.assert_allclose(scipy.special.softmax(left), scipy.special.softmax(scaled), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", [{"temperature": 1.7}, {"temperature": 0.8, "top_k": 6, "top_p": 0.95}], ids=str)
def test_draws_have_their_probabilities(how):
    logits = jnp.asarray(np.random.default_rng(1).normal(0, 1, V), jnp.float32)
    count = 20_000
    drawn = np.asarray(sample(jax.random.key(0), jnp.broadcast_to(logits, (count, V)), Sampling(**how)))
    alive = sorted(kept(logits, **how))
    assert set(drawn) == set(alive)
    expected = scipy.special.softmax(np.asarray(logits, np.float64)[alive] / how["temperature"])
    observed = np.bincount(drawn, minlength=V)[alive]
    assert scipy.stats.chisquare(observed, count * expected).pvalue > 0.01


def test_low_temperature_approaches_greedy():
    logits = 1e3 * jnp.asarray(np.random.default_rng(2).normal(0, 1, (17, V)), jnp.float32)
    best = sample(jax.random.key(0), logits, Sampling())
    np.testing.assert_array_equal(best, np.asarray(logits).argmax(-1))
    for temperature in (1e-3, 1e-37):
        np.testing.assert_array_equal(sample(jax.random.key(0), logits, Sampling(temperature=temperature)), best)
    np.testing.assert_array_equal(np.isfinite(filter_logits(logits, Sampling())).argmax(-1), best)


def test_most_probable_returns_the_first_of_ties():
    logits = np.round(np.random.default_rng(0).normal(size=(5, 7, 3)), 1)
    np.testing.assert_array_equal(most_probable(jnp.asarray(logits)), logits.argmax(-1))
    assert most_probable(jnp.asarray([[0.0, -0.0, -jnp.inf], [-jnp.inf] * 3])).tolist() == [0, 0]
    assert 0 <= int(most_probable(jnp.asarray([1.0, jnp.nan, 3.0]))) < 3


def test_random_numbers_of_a_row_depend_only_on_key_and_row_number():
    logits = jnp.zeros((40, V))
    drawn = sample(jax.random.key(0), logits, Sampling(temperature=1.0))
    np.testing.assert_array_equal(sample(jax.random.key(0), logits[:7], Sampling(temperature=1.0)), drawn[:7])
    assert len(set(drawn.tolist())) > 5
    assert (sample(jax.random.key(1), logits, Sampling(temperature=1.0)) != drawn).any()


# --- invalid arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"prompt": np.zeros((2, 0), int)}, r"prompt has shape \(2, 0\); expected .* at least one token"),
        ({"prompt": np.zeros(4, int)}, r"prompt has shape \(4,\); expected \[batch, length\]"),
        ({"prompt": np.zeros((2, 4))}, "prompt has dtype float64; expected integers"),
        ({"prompt": np.array([[1, 2], [11, 3]])}, r"token 11 at \(1, 0\); expected ids from 0 to 10"),
        ({"prompt": np.array([[1, -1], [1, 3]])}, r"token -1 at \(0, 1\)"),
        ({"valid": np.array([[1, 1, 0, 1], [0, 0, 0, 0]], bool)}, "row 1 of the prompt is only padding"),
        ({"valid": np.ones((2, 3), bool)}, r"valid has dtype bool and shape \(2, 3\); expected bool and \(2, 4\)"),
        ({"valid": np.ones((2, 4), int)}, "valid has dtype int64"),
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"steps": 1.5}, "steps is 1.5; expected a whole number, at least 1"),
        ({"steps": True}, "steps is True; expected a whole number"),
        ({"chunk": "8"}, "chunk is '8'; expected a whole number"),
        ({"end": 1.5}, "end is 1.5; expected an id from 0 to 10"),
        ({"sampling": None}, r"sampling is None; expected Sampling\(...\), or to be left out"),
        ({"steps": 8}, "prompt of 4 tokens and 8 steps need 11 positions; expected at most .* max_length 10"),
        ({"end": 11}, "end is 11; expected an id from 0 to 10"),
        ({"chunk": 0}, "chunk is 0"),
        ({"prompt_chunk": 0}, "prompt_chunk is 0; expected at least 1"),
        ({"sampling": Sampling(temperature=0.5)}, "key is None with temperature 0.5"),
        ({"mask": None}, "unknown argument 'mask'; it has: source, .*valid, end"),
        ({"prompt_chunks": 2}, "unknown argument 'prompt_chunks'; did you mean 'prompt_chunk'"),
        ({"temperature": 0.5}, r"unknown argument 'temperature'; expected sampling=Sampling\(temperature=…\)"),
        ({"memory": np.zeros((3, 2, 5))}, r"memory has shape \(3, 2, 5\); expected 2 rows"),
    ],
    ids=str,
)
def test_invalid_arguments_of_generate_are_named_before_compilation(params, how, message):
    how = {"prompt": np.zeros((2, 4), int), "steps": 2} | how
    with pytest.raises(UserError, match=message):
        stream(params, SMALL, how.pop("prompt"), **how)


def test_a_source_outside_the_vocabulary_is_rejected():
    config = SMALL.with_encoder()
    with pytest.raises(UserError, match=r"source has token 12 at \(0, 1\); expected ids from 0 to 10"):
        generate(None, config, np.zeros((1, 1), int), steps=2, source=np.array([[1, 12]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_pattern": "bidirectional"}, 'mask_pattern is "bidirectional".*expected a causal model'),
        ({"norm_kind": LayerNorm(over="sequence")}, 'norm_kind.over is "sequence".*expected a causal model'),
        ({"head": Classifier(classes=3)}, r"head is Classifier.*expected Tokens\(\) and LanguageModel\(\)"),
        ({"inputs": Vectors(width=3)}, r"inputs are Vectors.*expected Tokens\(\) and LanguageModel\(\)"),
    ],
)
def test_a_model_that_cannot_decode_is_rejected(params, prompt, change, message):
    with pytest.raises(UserError, match=message):
        generate(params, SMALL.replace(**change), prompt, steps=2)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; expected a number above 0"),
        ({"temperature": float("inf")}, "temperature is inf; expected a number below inf"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0; expected a number at least 1"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is 1.1; expected a number at most 1"),
        ({"top_k": 3}, "top_k is 3 with temperature None, which is greedy"),
        ({"top_p": 0.5}, "top_p is 0.5 with temperature None, which is greedy"),
    ],
)
def test_contradictory_sampling_is_rejected(how, message):
    with pytest.raises(UserError, match=message):
        Sampling(**how)
