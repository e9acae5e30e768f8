"""Distance biases: ALiBi against the paper's slopes, relative buckets against integer arithmetic and torch."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn.positions import alibi, alibi_slopes, relative_buckets, relative_positions

DISTANCES = np.arange(-300, 301)
SIZES = [(32, 128), (8, 20), (16, 64), (10, 50), (7, 23), (64, 256), (4, 3), (6, 81), (32, 25), (8, 144)]
sizes = pytest.mark.parametrize(("buckets", "max_distance"), SIZES)
ways = pytest.mark.parametrize("bidirectional", [True, False], ids=["both ways", "backwards"])
bucketed = jax.jit(relative_buckets, static_argnames=("buckets", "max_distance", "bidirectional"))

EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
R = math.sqrt(0.5)
SIXTEEN = [R, 1 / 2, R / 2, 1 / 4, R / 4, 1 / 8, R / 8, 1 / 16, R / 16, 1 / 32, R / 32, 1 / 64, R / 64, 1 / 128]
SIXTEEN = [*SIXTEEN, R / 128, 1 / 256]
SLOPES = {
    1: [1 / 256],
    2: [1 / 16, 1 / 256],
    3: [1 / 16, 1 / 256, 1 / 4],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    5: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: EIGHT,
    12: [*EIGHT, R, R / 2, R / 4, R / 8],
    16: SIXTEEN,
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_equal_the_paper(heads):
    """Press et al. 2022, section 3: 1/2 to 1/256 for 8 heads; for 16, also the geometric means; others combine both."""
    np.testing.assert_allclose(alibi_slopes(heads), SLOPES[heads], rtol=1e-6)


@pytest.mark.parametrize("heads", range(1, 40))
def test_alibi_slopes_are_distinct_and_below_one(heads):
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,)
    assert len(set(slopes.tolist())) == heads
    assert (slopes > 0).all()
    assert (slopes < 1).all()
    if heads > 1 and heads & (heads - 1) == 0:
        np.testing.assert_allclose(slopes[1:] / slopes[:-1], slopes[0], rtol=1e-5)
        np.testing.assert_allclose(slopes[-1], 2**-8)


@pytest.mark.every(3)
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_alibi_is_minus_slope_times_distance(heads, batch):
    random = np.random.default_rng(0)
    query, key = random.integers(0, 50, (*batch, 5)), random.integers(0, 50, (*batch, 7))
    result = alibi(jnp.asarray(query), jnp.asarray(key), heads)
    assert result.shape == (*batch, heads, 5, 7)
    assert result.dtype == jnp.float32
    for *row, n, t, s in np.ndindex(result.shape):
        wanted = -SLOPES[heads][n] * abs(int(query[(*row, t)]) - int(key[(*row, s)]))
        assert math.isclose(result[(*row, n, t, s)], wanted, rel_tol=1e-6)


def test_alibi_depends_only_on_distance_and_is_symmetric():
    at = jnp.array([3, 0, 8, 5, 1])
    bias = alibi(at, at, 6)
    np.testing.assert_array_equal(alibi(at + 1000, at + 1000, 6), bias)
    np.testing.assert_array_equal(np.swapaxes(bias, 1, 2), bias)
    np.testing.assert_array_equal(np.diagonal(bias, axis1=1, axis2=2), np.zeros((6, 5)))


def test_relative_is_key_minus_query():
    query, key = np.array([[0, 4, 9], [1, 1, 2]]), np.array([[5, 0], [7, 3]])
    result = relative_positions(jnp.asarray(query), jnp.asarray(key))
    np.testing.assert_array_equal(result, [[[5, 0], [1, -4], [-4, -9]], [[6, 2], [6, 2], [5, 1]]])
    np.testing.assert_array_equal(relative_positions(jnp.asarray(query[0]), jnp.asarray(key[0])), result[0])


def expected(distance, buckets, max_distance, bidirectional):
    """Return the bucket in integer arithmetic: ⌊n ln(d/e) / ln(M/e)⌋ is the last k with (M/e)^k ≤ (d/e)^n.

    `distance` is key − query, M max_distance, e the number of buckets of one distance, n that of all others.
    """
    first, count = 0, buckets
    if bidirectional:
        count = buckets // 2
        first = count if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    near = count // 2
    if distance < near:
        return first + distance
    far, k = count - near, 0
    while k < far - 1 and max_distance ** (k + 1) * near**far <= distance**far * near ** (k + 1):
        k += 1
    return first + near + k


@sizes
@ways
def test_buckets_equal_the_formula_in_integer_arithmetic(buckets, max_distance, bidirectional):
    settings = {"buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    wanted = [expected(int(d), **settings) for d in DISTANCES]
    np.testing.assert_array_equal(relative_buckets(jnp.asarray(DISTANCES), **settings), wanted)
    np.testing.assert_array_equal(bucketed(jnp.asarray(DISTANCES), **settings), wanted)


@sizes
@ways
def test_buckets_equal_the_published_formula_in_torch(buckets, max_distance, bidirectional):
    """Logarithms in torch's float32, as in the published implementation, must give the same boundaries."""
    torch = pytest.importorskip("torch")
    distance = torch.from_numpy(DISTANCES)
    count = buckets // 2 if bidirectional else buckets
    first = torch.where(distance > 0, count, 0) if bidirectional else torch.zeros_like(distance)
    back = distance.abs() if bidirectional else (-distance).clamp(min=0)
    near = count // 2
    logarithms = torch.log(back.clamp(min=1).float() / near) / math.log(max_distance / near)
    far = (near + (logarithms * (count - near)).long()).clamp(max=count - 1)
    wanted = (first + torch.where(back < near, back, far)).numpy()
    result = bucketed(jnp.asarray(DISTANCES), buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    np.testing.assert_array_equal(result, wanted)


def test_buckets_equal_those_of_t5():
    """T5's 32 buckets up to 128, computed by hand: per direction, 8 exact ones, then two per octave."""
    call = functools.partial(bucketed, buckets=32, max_distance=128)
    distances = jnp.array([0, -1, -7, -8, -11, -12, -15, -16, -22, -23, -32, -64, -90, -91, -128, -4000])
    wanted = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 12, 14, 14, 15, 15, 15]
    np.testing.assert_array_equal(call(distances, bidirectional=True), wanted)
    later = [d if d == 0 else d + 16 for d in wanted]
    np.testing.assert_array_equal(call(-distances, bidirectional=True), later)
    # One way, 16 near ones, then 16 over three octaves.
    back = call(jnp.array([0, -1, -15, -16, -18, -19, -127, -128, -4000]), bidirectional=False)
    np.testing.assert_array_equal(back, [0, 1, 15, 16, 16, 17, 31, 31, 31])


@sizes
@ways
def test_buckets_are_in_range_and_monotonic_in_distance(buckets, max_distance, bidirectional):
    result = np.asarray(
        bucketed(jnp.asarray(DISTANCES), buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    )
    back, ahead = result[DISTANCES <= 0][::-1], result[DISTANCES >= 0]
    assert (np.diff(back) >= 0).all()
    assert back[0] == ahead[0] == 0
    count = buckets // 2 if bidirectional else buckets
    assert back[max_distance:].min() == back.max() == count - 1
    if bidirectional:
        np.testing.assert_array_equal(ahead[1:], back[1:] + count)
    else:
        assert (ahead == 0).all()


def test_buckets_take_any_shape():
    distances = DISTANCES[:595].reshape(5, 7, 17)
    call = functools.partial(bucketed, buckets=8, max_distance=20, bidirectional=True)
    flat = call(jnp.asarray(distances.reshape(-1)))
    np.testing.assert_array_equal(call(jnp.asarray(distances)), flat.reshape(5, 7, 17))
