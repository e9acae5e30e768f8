"""The two tests of paired differences against scipy, over grids of seeds and distributions, and their error rates."""

import itertools

import numpy as np
import pytest
from scipy import stats

from flaxformer.statistics.paired_tests import (
    distinct_values,
    effective_seeds,
    has_outlier,
    interval,
    is_above,
    is_below,
    p_above,
    p_below,
    sign_flip_p,
    skewness,
    skewness_factor,
)

SEEDS = (4, 5, 7, 11, 16, 23)
DRAWS = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "exponential": lambda random, shape: random.exponential(size=shape) - 1,
    "lognormal": lambda random, shape: random.lognormal(size=shape) - np.exp(0.5),
    "t": lambda random, shape: random.standard_t(3, shape),
    "bimodal": lambda random, shape: random.choice((-1.0, 1.0), shape) + 0.3 * random.standard_normal(shape),
}


def drawn(name, n, studies=50):
    return DRAWS[name](np.random.default_rng(n), (studies, n))


@pytest.mark.parametrize("n", [3, *SEEDS])
@pytest.mark.parametrize("name", DRAWS)
def test_skewness_is_the_adjusted_one_of_scipy(name, n):
    x = drawn(name, n)
    np.testing.assert_allclose(skewness(x), stats.skew(x, axis=-1, bias=False), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["difference", "equality"])
@pytest.mark.parametrize("bound", [-1.5, 0.0, 0.4])
@pytest.mark.parametrize("n", [2, 3, *SEEDS])
@pytest.mark.parametrize("name", DRAWS)
def test_the_t_test_is_that_of_scipy_with_a_wider_error_where_the_tail_points_to_the_bound(name, n, bound, kind):
    x = drawn(name, n)
    gap = x.mean(-1) - bound
    tails = np.maximum(-stats.skew(x, axis=-1, bias=False), 0) if n > 2 else np.zeros(len(x))
    widened = gap / (stats.sem(x, axis=-1) * (1 + skewness_factor(n, kind) * tails))
    np.testing.assert_allclose(p_above(x, bound, kind), stats.t.sf(widened, n - 1), rtol=1e-8)
    np.testing.assert_allclose(p_below(-x, -bound, kind), p_above(x, bound, kind), rtol=1e-12)
    plain = stats.ttest_1samp(x, bound, axis=-1, alternative="greater").pvalue
    assert np.all((p_above(x, bound, kind) >= plain - 1e-12) | (gap < 0))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("n", SEEDS)
def test_the_tests_do_not_depend_on_the_unit(n, scale):
    x = drawn("exponential", n)
    np.testing.assert_allclose(p_above(scale * x, 0.3 * scale), p_above(x, 0.3), rtol=1e-6)
    np.testing.assert_array_equal(has_outlier(scale * x), has_outlier(x))
    np.testing.assert_allclose(sign_flip_p(scale * x), sign_flip_p(x))


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", DRAWS)
def test_a_bound_that_is_farther_away_is_excluded_more_clearly(name, n):
    x = drawn(name, n)
    p = np.array([p_above(x, bound) for bound in (1.0, 0.0, -1.0, -10.0, -100.0)])
    assert np.all(np.diff(p, axis=0) <= 1e-12)
    assert np.all(p[-1] < 0.05)  # a clear effect is never hidden by skewness


@pytest.mark.parametrize("level", [0.05, 0.1, 0.01])
@pytest.mark.parametrize("n", SEEDS)
def test_the_interval_has_the_bounds_at_which_the_test_is_on_the_edge(n, level):
    x = drawn("lognormal", n)
    low, high = interval(x, level)
    for i, one in enumerate(x):
        np.testing.assert_allclose([p_above(one, low[i]), p_below(one, high[i])], level / 2, rtol=1e-8)


@pytest.mark.parametrize("n", [3, 4, 5, 7, 9])
@pytest.mark.parametrize("name", DRAWS)
def test_the_sign_flip_test_is_the_exact_one_of_scipy(name, n):
    for one in drawn(name, n, studies=5):
        theirs = stats.permutation_test(
            (one,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
        )
        assert sign_flip_p(one) == pytest.approx(theirs.pvalue)


def test_the_sign_flip_test_is_sampled_where_signs_are_too_many():
    x = np.random.default_rng(0).normal(0.3, 1.0, 20)
    assert sign_flip_p(x) == pytest.approx(stats.ttest_1samp(x, 0, alternative="greater").pvalue, rel=0.2)
    assert 0 < sign_flip_p(x + 100) <= 2**-16


@pytest.mark.parametrize("n", SEEDS)
def test_the_sign_flip_test_agrees_at_5_in_100_symmetric_studies_at_most(n):
    x = np.random.default_rng(n).standard_t(2, (2000 if n < 16 else 200, n))
    assert np.mean(is_above(x, 0.0)) < (0.09 if n == 4 else 0.07)
    assert np.mean(is_below(x, 0.0)) < (0.09 if n == 4 else 0.07)
    assert np.all(is_above(np.abs(x), 0.0))
    if n == 4:
        assert np.array_equal(is_above(x, 0.0), (x > 0).all(-1))


@pytest.mark.parametrize("n", [5, 6, 8, 11, 16])
def test_a_single_claim_is_decided_falsely_as_rarely_as_the_goal(n):
    """At most 6 % for normal, t, bimodal and exponential differences, and 8 % for lognormal ones; 0.5 % is noise."""
    for name in DRAWS:
        x = DRAWS[name](np.random.default_rng(7), (20_000, n))
        goal = 0.085 if name == "lognormal" else 0.065
        for kind, level in (("difference", 0.025), ("equality", 0.05)):
            wrong = (p_above(x, 0.0) < 0.025) | (p_below(x, 0.0, kind) < level)
            assert np.mean(wrong) < goal, (name, kind)
    plain = stats.ttest_1samp(x := drawn("lognormal", n, 20_000), 0, axis=-1).pvalue
    assert np.mean(plain < 0.05) > 0.12, x.shape


def test_factors_fall_with_the_number_of_seeds_also_beyond_the_table():
    for kind in ("difference", "equality"):
        found = [skewness_factor(n, kind) for n in range(5, 60)]
        assert all(a >= b > 0 for a, b in itertools.pairwise(found))
        assert skewness_factor(32, kind) == skewness_factor(16, kind) / 2


@pytest.mark.parametrize("n", [5, 8, 12])
def test_outliers_are_found_and_rarely_where_there_are_none(n):
    random = np.random.default_rng(n)
    x = random.standard_normal((4000, n))
    assert 0.02 < np.mean(has_outlier(x)) < 0.1
    for count in (1, 2):
        far = x.copy()
        far[:, :count] += 30
        assert np.mean(has_outlier(far)) > (0.9 if count < n / 4 or n > 5 else 0.0)
    assert not has_outlier(np.zeros(n))


@pytest.mark.parametrize("n", [6, 8, 10])
def test_one_far_seed_is_found_as_by_grubbs(n):
    x = np.random.default_rng(n).standard_normal((500, n))
    ratio = np.abs(x - x.mean(-1, keepdims=True)).max(-1) / x.std(-1, ddof=1)
    t = stats.t.isf(0.05 / (2 * n), n - 2)
    critical = (n - 1) / np.sqrt(n) * np.sqrt(t**2 / (n - 2 + t**2))
    assert np.all(has_outlier(x)[ratio > critical])


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([], 0),
        ([0.0], 1),
        ([0.0, 0.0], 1),
        ([0.1 + 0.2, 0.3, 1.0], 2),
        ([1.0, 2.0, 3.0, 3.0], 3),
        ([1e-9, 2e-9, 3e-9], 3),
        ([1.0, 1.0 + 1e-9, 1.0 - 1e-9], 1),
    ],
)
def test_seeds_are_one_effective_seed_if_all_differences_are_equal(differences, expected):
    x = np.array(differences)
    assert distinct_values(x) == expected
    assert effective_seeds(x) == (len(x) if expected > 1 else expected)
