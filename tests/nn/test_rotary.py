"""Rotary positions against complex numbers in float64, and dependence of products on distances only."""

import cmath
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, Rotary
from flaxformer.config import ModelConfig
from flaxformer.nn.positions import rotate, sinusoidal
from flaxformer.system.errors import UserError

B, T, S, N, H = 2, 5, 7, 3, 10
SPLIT = [*range(0, H, 2), *range(1, H, 2)]
"""Column SPLIT[j] of the interleaved layout is column j of the split one."""
layouts = pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "split"])
turn = jax.jit(rotate, static_argnames="interleaved")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def expected(x, positions, base=10_000.0, interleaved=False):
    """Return the rotation of each pair, as a complex number times e^(i n θ)."""
    y = np.zeros(x.shape)
    positions = np.broadcast_to(positions, x.shape[:-2])
    for place in np.ndindex(x.shape[:-1]):
        for i in range(x.shape[-1] // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + x.shape[-1] // 2)
            angle = positions[place[:-1]] * base ** (-2 * i / x.shape[-1])
            turned = complex(x[place][a], x[place][b]) * cmath.exp(1j * angle)
            y[place][a], y[place][b] = turned.real, turned.imag
    return y


@pytest.mark.every(2)
@layouts
@pytest.mark.parametrize("width", [2, H])
@pytest.mark.parametrize("base", [10_000.0, 17.0])
def test_equals_multiplication_by_unit_complex_numbers(interleaved, width, base):
    x, positions = numbers(B, T, N, width), np.array([[0, 1, 2, 3, 4], [40, 7, 0, 7, 19]])
    result = rotate(jnp.asarray(x), jnp.asarray(positions), base=base, interleaved=interleaved)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected(x, positions, base, interleaved), atol=2e-5)


def test_the_defaults_are_split_halves_and_base_ten_thousand():
    x = jnp.asarray(numbers(T, N, H))
    explicit = rotate(x, jnp.arange(T), base=10_000.0, interleaved=False)
    np.testing.assert_array_equal(rotate(x, jnp.arange(T)), explicit)


@layouts
def test_equals_the_real_form_with_cosine_and_sine(interleaved):
    """The real form of Llama (split) and of Su et al. 2021, equation 34 (interleaved)."""
    x = numbers(T, N, H).astype(np.float64)
    i = np.arange(H) // 2 if interleaved else np.arange(H) % (H // 2)
    angles = np.arange(T)[:, None, None] / 10_000 ** (2 * i / H)
    if interleaved:
        quarter = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    else:
        quarter = np.concatenate([-x[..., H // 2 :], x[..., : H // 2]], axis=-1)
    result = turn(jnp.asarray(x, jnp.float32), jnp.arange(T), interleaved=interleaved)
    np.testing.assert_allclose(result, x * np.cos(angles) + quarter * np.sin(angles), atol=1e-5)


@layouts
def test_rotary_products_depend_only_on_the_distance(interleaved):
    """Queries are equal at all positions, and so are keys."""
    query, key = (np.broadcast_to(numbers(N, H, seed=seed), (29, N, H)) for seed in (1, 2))
    q, k = (np.asarray(turn(jnp.asarray(x), jnp.arange(29), interleaved=interleaved)) for x in (query, key))
    products = np.einsum("tnh,snh->nts", q.astype(np.float64), k)
    for head in products:
        for distance in range(-28, 29):
            diagonal = np.diag(head, distance)
            np.testing.assert_allclose(diagonal, np.full_like(diagonal, diagonal[0]), atol=2e-5)
        assert np.ptp(head[0]) > 1
    # Which of the two comes first matters: m − n, not |m − n|.
    assert np.abs(products[:, 0, 5] - products[:, 5, 0]).max() > 0.1


@layouts
@pytest.mark.parametrize("shift", [1, 13, 1000])
def test_shifting_all_positions_does_not_change_rotary_products(interleaved, shift):
    q, k, at, there = numbers(T, N, H), numbers(S, N, H, seed=1), np.array([3, 0, 9, 4, 1]), np.arange(S) * 2

    def products(shift):
        query, key = (
            np.asarray(turn(jnp.asarray(x), jnp.asarray(p + shift), interleaved=interleaved), np.float64)
            for x, p in ((q, at), (k, there))
        )
        return np.einsum("tnh,snh->nts", query, key)

    np.testing.assert_allclose(products(shift), products(0), atol=1e-3 if shift == 1000 else 2e-5)


@layouts
def test_rotation_preserves_the_norm_of_every_pair(interleaved):
    x = jnp.asarray(numbers(B, T, N, H))
    y = turn(x, jnp.array([[0, 1, 50, 3, 4]]), interleaved=interleaved)
    pairs = [np.asarray(z).reshape(B, T, N, *((-1, 2) if interleaved else (2, -1))) for z in (x, y)]
    before, after = (np.square(z).sum(-1 if interleaved else -2) for z in pairs)
    np.testing.assert_allclose(after, before, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)


def test_interleaved_is_split_with_its_columns_permuted():
    x = numbers(B, T, N, H)
    positions = jnp.asarray([[0, 1, 2, 3, 4], [5, 9, 2, 0, 1]])
    interleaved = np.asarray(turn(jnp.asarray(x), positions, interleaved=True))
    np.testing.assert_allclose(turn(jnp.asarray(x[..., SPLIT]), positions), interleaved[..., SPLIT], atol=1e-6)


@layouts
def test_rotations_compose_and_position_zero_is_the_identity(interleaved):
    x = jnp.asarray(numbers(T, N, H))
    call = functools.partial(turn, interleaved=interleaved)
    first, second = jnp.array([4, 0, 7, 1, 3]), jnp.array([1, 9, 2, 6, -5])
    np.testing.assert_allclose(call(call(x, first), second), call(x, first + second), atol=2e-6)
    np.testing.assert_allclose(call(call(x, first), -first), x, atol=2e-6)
    np.testing.assert_array_equal(call(x, jnp.zeros(T, int)), x)


@layouts
def test_the_gradient_is_the_inverse_rotation(interleaved):
    x, cotangent = jnp.asarray(numbers(T, N, H)), jnp.asarray(numbers(T, N, H, seed=1))
    call = functools.partial(turn, interleaved=interleaved)
    (gradient,) = jax.vjp(lambda x: call(x, jnp.arange(T)), x)[1](cotangent)
    np.testing.assert_allclose(gradient, call(cotangent, -jnp.arange(T)), atol=1e-6)


@layouts
def test_rotating_a_sinusoidal_encoding_gives_that_of_a_later_position(interleaved):
    """PE(p + k) = R_k PE(p): each (cos, sin) pair of the encoding is a unit vector at the angle p θ_i."""
    shift, width = 11, 12
    encoding = sinusoidal(jnp.arange(29), width, interleaved=interleaved)
    sines, cosines = (0, 1) if interleaved else (slice(None, width // 2), slice(width // 2, None))
    if interleaved:
        pairs = encoding.reshape(29, -1, 2)[..., (cosines, sines)].reshape(29, 1, width)
    else:
        pairs = jnp.concatenate([encoding[:, cosines], encoding[:, sines]], axis=-1)[:, None]
    turned = turn(pairs, jnp.full(29, shift), interleaved=interleaved)
    np.testing.assert_allclose(turned[:-shift], pairs[shift:], atol=1e-5)
    assert np.abs(np.asarray(turned - pairs)).max() > 1


@pytest.mark.parametrize("batch", [(), (B,), (B, 3)])
def test_positions_broadcast_over_batch_axes(batch):
    x = numbers(*batch, T, N, H)
    for shape in sorted({(), (1,) * len(batch), batch}):
        positions = np.random.default_rng(5).integers(0, 30, (*shape, T))
        wanted = expected(x, positions.reshape((1,) * (len(batch) - len(shape)) + positions.shape))
        np.testing.assert_allclose(rotate(jnp.asarray(x), jnp.asarray(positions)), wanted, atol=1e-5)


def test_heads_rotate_equally_and_tokens_independently():
    x = jnp.asarray(numbers(T, N, H))
    np.testing.assert_allclose(turn(x, jnp.arange(T))[:, 1:2], turn(x[:, 1:2], jnp.arange(T)), atol=1e-6)
    changed = turn(x.at[3, 1].multiply(-5.0), jnp.arange(T)) != turn(x, jnp.arange(T))
    assert np.argwhere(np.asarray(changed).any(-1)).tolist() == [[3, 1]]


@layouts
def test_the_base_may_be_traced(interleaved):
    x, positions = numbers(T, N, H), np.arange(T)
    result = jax.vmap(lambda base: rotate(jnp.asarray(x), jnp.asarray(positions), base=base, interleaved=interleaved))(
        jnp.array([17.0, 10_000.0])
    )
    wanted = [expected(x, positions, base, interleaved) for base in (17.0, 10_000.0)]
    np.testing.assert_allclose(result, wanted, atol=1e-5)


@layouts
def test_bfloat16_is_the_float32_result_rounded_once(interleaved):
    x = jnp.asarray(numbers(T, N, H), jnp.bfloat16)
    positions = np.array([0, 4093, 17, 255, 257])
    result = turn(x, jnp.asarray(positions), interleaved=interleaved)
    assert result.dtype == jnp.bfloat16
    wanted = expected(np.asarray(x.astype(jnp.float32)), positions, interleaved=interleaved)
    # Half a unit in the last place: 8 significant bits.
    np.testing.assert_allclose(result.astype(jnp.float32), wanted, rtol=2.0**-8, atol=2e-3)


@pytest.mark.parametrize("width", [1, 7])
def test_rotary_rejects_an_odd_head_width(width):
    with pytest.raises(ValueError, match=f"head width is {width}; expected an even number"):
        rotate(jnp.ones((T, N, width)), jnp.arange(T))


def test_the_wavelength_of_the_last_pair():
    """The last pair of a head of width H has the period 2π · base^((H − 2)/H)."""
    wave = 2 * math.pi * 17.0 ** ((H - 2) / H)
    x = jnp.zeros((1, 1, H)).at[0, 0, H // 2 - 1].set(1.0)
    y = rotate(x, jnp.array([round(wave / 2)]), base=17.0)
    np.testing.assert_allclose(y[0, 0, H // 2 - 1], math.cos(2 * math.pi * round(wave / 2) / wave), atol=1e-5)
    assert y[0, 0, H // 2 - 1] < -0.99


@pytest.mark.parametrize("layout", ["split", "interleaved"])
@pytest.mark.parametrize("width", [2, 4, 10])
def test_partial_rotation_changes_the_first_entries_of_each_head_alone(layout, width):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3, 10)), jnp.float32)
    positions = jnp.arange(5)
    found = Rotary(layout=layout, rotated_width=width).rotate(x, positions)
    np.testing.assert_array_equal(found[..., width:], x[..., width:])
    np.testing.assert_array_equal(found[..., :width], Rotary(layout=layout).rotate(x[..., :width], positions))
    if width == 10:
        np.testing.assert_array_equal(found, Rotary(layout=layout).rotate(x, positions))


def test_rotated_widths_are_even_and_at_most_a_head():
    with pytest.raises(UserError, match="rotated_width is 3; expected an even number"):
        Rotary(rotated_width=3)
    with pytest.raises(UserError, match=r"positions.rotated_width is 6; expected at most d_head 4"):
        ModelConfig(d_model=8, attention=Attention(heads=2), positions=Rotary(rotated_width=6))
    ModelConfig(d_model=6, attention=Attention(heads=2), positions=Rotary(rotated_width=2))  # of heads of 3
