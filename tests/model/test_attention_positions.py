"""Position schemes of single blocks, and scalings of rotary positions, against loops and definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import (
    Alibi,
    Attention,
    Block,
    Dense,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    NoPositions,
    NTKScaling,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
    TokenMixer,
    YaRN,
)
from flaxformer.core.paths import replace_at
from flaxformer.model import apply, extend, init, new_cache, specs
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

T, HEADS = 9, 2
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, 12, (2, T)))
BASE = ModelConfig(vocabulary=12, layers=2, d_model=16, attention=Attention(heads=HEADS), feed_forward=Dense(d_ff=8))


def drawn(config):
    shapes, dice = jax.eval_shape(lambda: init(jax.random.key(0), config)), np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * dice.standard_normal(x.shape), jnp.float32), shapes)


SCHEMES = [Rotary(base=100.0), Alibi(), RelativeBuckets(buckets=4, max_distance=8), NoPositions()]


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: type(scheme).__name__)
def test_a_scheme_of_every_block_is_that_of_the_model(scheme, layout):
    config = BASE.replace(positions=scheme)
    by_block = BASE.replace(positions=NoPositions(), pattern=(Block(positions=scheme),))
    params = drawn(config)
    blocks = tuple(block.replace(positions=params.positions) for block in params.blocks)
    other = params.replace(positions=NoPositions.Weights(), blocks=blocks)
    expected = apply(params, config, TOKENS)
    assert jax.tree.structure(other) == jax.tree.structure(specs(by_block))
    np.testing.assert_array_equal(apply(other, by_block, TOKENS), expected)
    found = apply(with_layout(other, layout), by_block, TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES[:3], ids=lambda scheme: type(scheme).__name__)
def test_a_block_alone_has_its_scheme_also_in_decoding(scheme):
    """The first layer has the scheme, and the second has none: the second is the same with the model's NoPositions."""
    config = BASE.replace(positions=NoPositions(), pattern=(Block(positions=scheme), Block()))
    params = drawn(config)
    whole = apply(params, config, TOKENS)
    first_alone = config.replace(layers=1, pattern=(Block(positions=scheme),))
    everywhere = config.replace(pattern=(Block(positions=scheme),))
    assert np.abs(whole - apply(params, config.replace(pattern=()), TOKENS)).max() > 1e-3
    blocks = (params.blocks[0], params.blocks[1].replace(positions=params.blocks[0].positions))
    assert np.abs(whole - apply(params.replace(blocks=blocks), everywhere, TOKENS)).max() > 1e-3
    assert [block.positions is None for block in specs(config).blocks] == [False, True]
    assert specs(first_alone).blocks[0] == specs(config).blocks[0]
    cache, found = new_cache(params, config, (2,), T), []
    for part in (TOKENS[:, :3], *jnp.split(TOKENS[:, 3:], T - 3, axis=1)):
        outputs, cache = extend(params, config, part, cache)
        found.append(outputs)
    np.testing.assert_allclose(jnp.concatenate(found, 1), whole, rtol=2e-5, atol=2e-5)


class MeanOfPrefix(TokenMixer):
    """A mixer without a decoding state, beside an attention."""

    def apply(self, weights, x, context):
        allowed = context.mask.matrix(x.shape[-2], x.shape[-2])
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        bias = 0 if context.bias is None else context.bias[..., 0, :, :]
        share = jax.nn.softmax(jnp.where(allowed, bias, -jnp.inf))
        return (share @ jnp.where(allowed.any(-1)[..., None], x, 0)).astype(x.dtype)


def test_a_mixer_without_a_state_reads_the_scheme_of_its_block():
    block = Block(attention=MeanOfPrefix(), positions=Alibi())
    config = BASE.replace(positions=NoPositions(), pattern=(block, Block()))
    params = drawn(config)
    expected = apply(params, config, TOKENS)
    assert (
        np.abs(expected - apply(params, replace_at(config, {"pattern.0.positions": NoPositions()}), TOKENS)).max()
        > 1e-3
    )
    cache, found = new_cache(params, config, (2,), T), []
    for part in jnp.split(TOKENS, T, axis=1):
        outputs, cache = extend(params, config, part, cache)
        found.append(outputs)
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, rtol=2e-5, atol=2e-5)


def test_a_model_adds_sines_and_turns_in_its_attention():
    config = BASE.replace(positions=Sinusoidal(), attention_positions=Rotary())
    params = drawn(config)
    for changes in ({"positions": NoPositions()}, {"attention_positions": NoPositions()}):
        assert np.abs(apply(params, config, TOKENS) - apply(params, config.replace(**changes), TOKENS)).max() > 1e-3


@pytest.mark.parametrize("scheme", [LearnedPositions(max_length=9), Sinusoidal()])
def test_a_scheme_of_embeddings_is_refused_in_a_block(scheme):
    with pytest.raises(UserError, match=f"pattern.0: positions of attention are {type(scheme).__name__}, which"):
        BASE.replace(pattern=(Block(positions=scheme),))


def angles_of(scaling, width=8, base=10_000.0):
    """The angle per position of each pair and the length of a rotated unit vector, read off a rotation."""
    x = jnp.zeros((2, 1, width)).at[:, 0, : width // 2].set(1.0)
    with jax.enable_x64(True):
        turned = np.asarray(Rotary(base=base, scaling=scaling).rotate(jnp.asarray(x, jnp.float64), jnp.array([0, 1])))
    pairs = turned[:, 0, : width // 2] + 1j * turned[:, 0, width // 2 :]
    return np.angle(pairs[1] / pairs[0]), np.abs(pairs[0])


THETA = 10_000.0 ** (-np.arange(0, 8, 2) / 8)


def yarn(theta, s, length, fast, slow):
    """Angles of YaRN, pair by pair."""
    first, last = (8 * np.log(length / (2 * np.pi * turns)) / (2 * np.log(10_000.0)) for turns in (fast, slow))
    first, last = max(np.floor(first), 0), min(np.ceil(last), 7)
    ramp = [min(max((i - first) / (last - first), 0), 1) for i in range(4)]
    return [t * (1 - r) + t / s * r for t, r in zip(theta, ramp, strict=True)]


def llama3(theta, s, length, low, high):
    found = []
    for t in theta:
        wavelength = 2 * np.pi / t
        if wavelength < length / high:
            found.append(t)
        elif wavelength > length / low:
            found.append(t / s)
        else:
            smooth = (length / wavelength - low) / (high - low)
            found.append((1 - smooth) * t / s + smooth * t)
    return found


@pytest.mark.parametrize(
    ("scaling", "angles", "magnitude"),
    [
        (LinearScaling(factor=4.0), THETA / 4, 1),
        (NTKScaling(factor=4.0), (10_000.0 * 4 ** (8 / 6)) ** (-np.arange(0, 8, 2) / 8), 1),
        (YaRN(factor=4.0, original_length=64), yarn(THETA, 4, 64, 32, 1), 0.1 * np.log(4) + 1),
        (YaRN(factor=8.0, original_length=512, fast=16.0, slow=2.0), yarn(THETA, 8, 512, 16, 2), 0.1 * np.log(8) + 1),
        (Llama3Scaling(original_length=64.0), llama3(THETA, 8, 64, 1, 4), 1),
        (Llama3Scaling(factor=2.0, original_length=512.0, high=8.0), llama3(THETA, 2, 512, 1, 8), 1),
    ],
)
def test_a_scaling_turns_by_its_angles(scaling, angles, magnitude):
    found, length = angles_of(scaling)
    np.testing.assert_allclose(found, angles, rtol=1e-9)
    np.testing.assert_allclose(length, magnitude, rtol=1e-12)


def test_ntk_scaling_keeps_the_highest_frequency_and_divides_the_lowest():
    found, _ = angles_of(NTKScaling(factor=4.0))
    np.testing.assert_allclose(found[[0, -1]], THETA[[0, -1]] / [1, 4], rtol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearScaling(factor=0.5),
        lambda: YaRN(factor=2.0, original_length=8, fast=1.0),
        lambda: Llama3Scaling(low=5.0),
        lambda: LinearScaling(),
    ],
)
def test_a_wrong_scaling_is_one_message(make):
    with pytest.raises(UserError, match=r"factor|fast|high"):
        make()
