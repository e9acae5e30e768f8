"""Tests that may be looked at after every seed, against loops, exact averages over signs, and simulation."""

import itertools
import math

import numpy as np
import pytest

from flaxformer.statistics import online_testing, sequential


def naive(differences, bound):
    """E after the last seed: the mean over effects of a product of bets."""
    wealths = []
    for effect in (0.25, 0.5, 1.0, 2.0):
        wealth = 1.0
        for i in range(len(differences)):
            seen = sorted(abs(x - bound) for x in differences[: i + 1])
            middle = len(seen) // 2
            median = seen[middle] if len(seen) % 2 else (seen[middle - 1] + seen[middle]) / 2
            distance = differences[i] - bound
            z = 0.0 if distance == 0 else max(-3.0, min(3.0, distance / (median / 0.6744897501960817 or 1e-300)))
            wealth *= 1 + math.tanh(effect * math.sqrt(1 + effect**2) * z)
        wealths.append(wealth)
    return sum(wealths) / len(wealths)


@pytest.mark.parametrize("bound", [0.0, 0.3, -1.7])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17])
def test_evidence_is_the_product_of_bets(n, bound):
    x = np.random.default_rng(n).standard_t(3, n) + 0.4
    assert math.exp(sequential.evidence(x, bound)[-1]) == pytest.approx(naive(list(x), bound), rel=1e-9)


def test_the_evidence_after_a_seed_does_not_depend_on_later_seeds():
    x = np.random.default_rng(0).standard_normal((3, 12))
    for n in range(1, 12):
        assert np.allclose(sequential.evidence(x)[:, :n], sequential.evidence(x[:, :n]), rtol=1e-12)


def test_seeds_without_a_difference_are_no_evidence():
    assert not sequential.evidence(np.zeros(5)).any()
    assert np.isfinite(sequential.evidence(np.array([0.0, 0.0, 1.0, 0.0, -2.0]))).all()


@pytest.mark.parametrize("sizes", [[1.0] * 9, [0.1, 3, 50, 2, 2, 1e-6, 7, 7, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1]])
def test_the_mean_evidence_over_all_signs_is_one(sizes):
    """Given the sizes of symmetric differences, all signs are equally likely, and no bet can win on average."""
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(sizes))))
    mean = np.exp(sequential.evidence(signs * np.array(sizes))).mean(0)
    assert np.allclose(mean, 1.0, rtol=1e-12)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy", "standard_exponential"])
def test_the_evidence_rarely_exceeds_its_limit_at_any_seed(draw):
    random = np.random.default_rng(1)
    x, y = (getattr(random, draw)((2000, 60)) for _ in range(2))
    for level in (0.2, 0.05):
        share = (sequential.evidence(x - y).max(-1) >= -math.log(level)).mean()
        assert share <= level + 3 * math.sqrt(level / 2000)
        assert share > 0.2 * level  # it is a test that can reject


def test_a_mean_below_the_bound_is_rejected_less_often_than_one_at_it():
    x = np.random.default_rng(2).standard_normal((2000, 30))
    at, below = ((sequential.evidence(x - shift).max(-1) >= math.log(10)).mean() for shift in (0.0, 0.3))
    assert below < 0.3 * at


@pytest.mark.parametrize(("n", "level"), [(12, 0.05), (25, 0.05), (25, 0.2)])
def test_confidence_sequence_has_the_bounds_that_are_not_rejected(n, level):
    x = np.random.default_rng(n).standard_normal(n) * 0.1 + 5
    low, high = sequential.confidence_sequence(x, level)
    assert low < x.mean() < high
    for inside in np.linspace(low, high, 13)[1:-1]:
        assert sequential.evidence(x, inside)[-1] < -math.log(level / 2)
        assert sequential.evidence(-x, -inside)[-1] < -math.log(level / 2)
    for distance in (1e-6, 0.01, 0.3, 20):
        assert sequential.evidence(-x, -(high + distance))[-1] >= -math.log(level / 2) - 1e-6
        assert sequential.evidence(x, low - distance)[-1] >= -math.log(level / 2) - 1e-6


def test_confidence_sequence_of_few_or_equal_seeds():
    assert sequential.confidence_sequence(np.array([]), 0.05) == (-math.inf, math.inf)
    assert sequential.confidence_sequence(np.array([1.0, 2.0, 0.5]), 0.05) == (-math.inf, math.inf)
    low, high = sequential.confidence_sequence(np.full(12, 2.5), 0.05)
    assert (low, high) == (pytest.approx(2.5, abs=1e-6), pytest.approx(2.5, abs=1e-6))


def test_confidence_sequence_holds_the_mean_at_all_seeds():
    x = np.random.default_rng(3).standard_normal((50, 22)) + 1.0
    missed = 0
    for path in x:
        ends = [sequential.confidence_sequence(path[:n], 0.2) for n in range(6, 23, 4)]
        missed += any(not low <= 1.0 <= high for low, high in ends)
    assert missed / len(x) <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / len(x))


@pytest.mark.parametrize("expected", [1, 10, 50, 333])
def test_weights_of_attempts_add_up_to_at_most_one(expected):
    weights = [online_testing.weight(attempt, expected) for attempt in range(1, 100_000)]
    assert min(weights) > 0
    assert 0.999 < sum(weights) <= 1


def test_levels_grow_with_discoveries():
    assert online_testing.level(3, 0, 10, 0.05) == pytest.approx(0.05 * 0.09)
    assert online_testing.level(3, 4, 10, 0.05) == pytest.approx(5 * 0.05 * 0.09)
    assert online_testing.level(12, 0, 10, 0.05) == pytest.approx(0.05 * 0.1 * 6 / math.pi**2 / 4)


@pytest.mark.parametrize("real", [0.0, 0.2])
def test_false_discoveries_stay_below_their_bound_under_dependence(real):
    """E-values of one ledger share a factor, so that they are large together."""
    random, rates = np.random.default_rng(4), []
    for _ in range(1000):
        shared, kept, false = random.standard_normal(), 0, 0
        for attempt in range(1, 31):
            is_real = random.random() < real
            z = 0.8 * shared + 0.6 * random.standard_normal() + (3 if is_real else 0)
            e = math.exp(2 * z - 2)  # likelihood ratio of a mean of 2; its expectation is 1 without effect
            if e >= 1 / online_testing.level(attempt, kept, 30, 0.1):
                kept, false = kept + 1, false + (not is_real)
        rates.append(false / max(kept, 1))
    assert np.mean(rates) <= 0.1 + 3 * np.std(rates) / math.sqrt(len(rates))
    assert np.mean(rates) > 0
