"""Scaling laws against scipy: fits, intervals that cover the true values, and tests of hypotheses."""

import functools
import math

import numpy as np
import pytest
from scipy import optimize, stats
from study.coverage import FOLDER, script

from flaxformer.statistics import scaling_law, scaling_tests

coverage = script("scaling_coverage")
X = np.linspace(-2.3, 2.3, 5)
LAW = scaling_law.law_at(X)


def noisy(seed, seeds=8, noise=0.01, x=X):
    setting = coverage.Setting(seeds=seeds, noise=noise, sizes=len(x), ratio=math.exp(x[-1] - x[0]))
    arms, held_out = coverage.draw(setting, np.random.default_rng(seed))
    return arms, held_out


def usual_form(theta):
    p, q, exponent = theta
    return p - q / exponent, q / exponent, exponent


@pytest.mark.parametrize("seed", range(6))
def test_the_fit_is_that_of_scipy(seed):
    y = noisy(seed)[0][0].mean(0)
    expected, _ = optimize.curve_fit(lambda x, e, a, k: e + a * np.exp(-k * x), X, y, p0=(1.4, 0.7, 0.3))
    np.testing.assert_allclose(usual_form(scaling_law.fit(X, y)), expected, rtol=1e-4)


@pytest.mark.parametrize("limit", [0.0, 1.5])
@pytest.mark.parametrize("exponent", [0.05, 0.3, 1.7])
def test_the_fit_finds_the_constants_of_a_law_without_noise(limit, exponent):
    found = scaling_law.fit(X, limit + 0.7 * np.exp(-exponent * X))
    np.testing.assert_allclose(usual_form(found), (limit, 0.7, exponent), rtol=1e-5, atol=1e-7)


def test_the_basis_and_its_slope_are_smooth_at_an_exponent_of_0():
    exponents = np.array([-0.3, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.004, 0.3])
    for exponent in exponents:
        h, slope = scaling_law.basis(X, exponent)
        exact = X if exponent == 0 else -np.expm1(-exponent * X) / exponent
        np.testing.assert_allclose(h, exact, rtol=1e-9)
        ends = [scaling_law.basis(X, exponent + step)[0] for step in (-1e-4, 1e-4)]
        np.testing.assert_allclose(slope, (ends[1] - ends[0]) / 2e-4, rtol=1e-6)


@pytest.mark.parametrize("name", ["α", "L∞", "A", "loss at 10 × C", "effect at 10 × C"])
def test_the_gradient_of_every_number_is_that_of_differences(name):
    functional, _, n = coverage.truths(coverage.Setting())[name]
    theta = np.tile([1.9, 0.4, 0.3], n) + 0.01 * np.arange(3 * n)
    gradient = [
        (functional(theta + step)[0] - functional(theta - step)[0]) / 2e-6 for step in 1e-6 * np.eye(len(theta))
    ]
    np.testing.assert_allclose(functional(theta)[1], gradient, rtol=1e-6, atol=1e-8)


def test_a_number_that_needs_a_limit_is_infinite_without_one():
    assert scaling_law.limit_of(np.array([1.0, 0.4, -0.1]))[0] == -math.inf
    assert scaling_law.log_amplitude_of(np.array([1.0, 0.4, -0.1]), 0.0)[0] == math.inf


@pytest.mark.parametrize("name", ["L∞", "A", "loss at 10 × C", "effect at 10 × C"])
def test_the_fit_under_a_hypothesis_is_that_of_scipy(name):
    functional, truth, n = coverage.truths(coverage.Setting())[name]
    scores, x = np.hstack(noisy(3)[0][:n]), [coverage.Setting().places] * n
    start = np.concatenate([scaling_law.fit(x[0], own.mean(0)) for own in np.hsplit(scores, n)])
    _, theta = scaling_tests.t_of_hypothesis((functional, truth), scaling_law.law_at(*x), scores, start)
    assert functional(theta)[0] == pytest.approx(truth, abs=1e-9)
    means = scores.mean(0)

    def squares(theta):
        return float(((scaling_law.curves(theta, x)[0] - means) ** 2).sum())

    held = {"type": "eq", "fun": lambda theta: functional(theta)[0] - truth}
    expected = optimize.minimize(squares, theta + 1e-3, constraints=held, method="SLSQP", options={"ftol": 1e-14})
    assert squares(theta) <= expected.fun * (1 + 1e-3) + 1e-12


def test_the_test_of_an_exponent_is_students_t_of_the_best_contrast():
    """Under a fixed α, the law is linear: the contrast that is orthogonal to 1 and C^(−α) has mean 0."""
    [scores, _], _ = noisy(4)
    exponent, theta = 0.25, scaling_law.fit(X, noisy(4)[0][0].mean(0))
    t, fitted = scaling_tests.t_of_hypothesis((scaling_law.exponent_of, exponent), LAW, scores, theta)
    _, jacobian = scaling_law.curves(fitted, [X])
    nuisance = np.column_stack([np.ones(5), np.exp(-exponent * X)])
    direction = jacobian[:, 2] - nuisance @ np.linalg.lstsq(nuisance, jacobian[:, 2], rcond=None)[0]
    expected = stats.ttest_1samp(scores @ direction, 0.0).statistic
    assert t == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", ["α", "L∞", "A", "loss at 10 × C"])
def test_the_ends_of_an_interval_are_the_hypotheses_at_the_critical_value(name):
    functional, _, _ = coverage.truths(coverage.Setting())[name]
    x, critical = coverage.Setting().places, stats.t.ppf(0.975, 7)
    scores = noisy(5)[0][0]
    theta = scaling_law.fit(x, scores.mean(0))
    low, high = scaling_tests.interval_of(functional, scaling_law.law_at(x), scores, theta)
    assert low < functional(theta)[0] < high
    for end, sign in ((low, 1), (high, -1)):
        t, _ = scaling_tests.t_of_hypothesis((functional, end), scaling_law.law_at(x), scores, theta)
        assert t == pytest.approx(sign * critical, abs=1e-4)


def test_an_interval_widens_until_it_has_no_end():
    ends = []
    for noise in (0.001, 0.01, 1.0):
        scores = noisy(6, noise=noise)[0][0]
        theta = scaling_law.fit(X, scores.mean(0))
        steepest = scaling_law.STEEPEST
        ends.append(scaling_tests.interval_of(scaling_law.exponent_of, LAW, scores, theta, (-steepest, steepest)))
    widths = [high - low for low, high in ends]
    assert widths[0] < widths[1] / 5 < widths[2]
    assert min(ends[2]) < 0


def test_seeds_that_agree_exactly_have_no_interval():
    scores = np.tile(1 + np.exp(-0.3 * X), (4, 1))
    theta = scaling_law.fit(X, scores[0])
    assert np.isnan(scaling_tests.interval_of(scaling_law.exponent_of, LAW, scores, theta)).all()


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(30))
def test_scores_without_a_law_have_intervals_without_a_warning(seed):
    chance = np.random.default_rng(seed)
    x = np.sort(chance.uniform(-4, 4, chance.integers(4, 10)))
    scores = chance.normal(size=(8, len(x))) * 10 ** chance.uniform(-8, 8) + chance.choice([0, 1e3])
    scores[:, chance.integers(len(x))] *= chance.choice([1.0, 1e6])
    theta = scaling_law.fit(x, scores.mean(0))
    amplitude = functools.partial(scaling_law.log_amplitude_of, log_unit=20.0)
    later = functools.partial(scaling_law.value_at, x=x[-1] + math.log(10))
    for functional in (scaling_law.exponent_of, scaling_law.limit_of, amplitude, later):
        low, high = scaling_tests.interval_of(functional, scaling_law.law_at(x), scores, theta)
        assert low <= high or math.isnan(low + high)


def test_the_misfit_is_hotellings():
    [scores, _], _ = noisy(7)
    theta = scaling_law.fit(X, scores.mean(0))
    mu, jacobian = scaling_law.curves(theta, [X])
    basis = np.linalg.qr(np.column_stack([jacobian, np.eye(5)[:, :2]]))[0][:, 3:]
    own = (scores - mu) @ basis
    t2 = 8 * own.mean(0) @ np.linalg.inv(np.cov(own, rowvar=False)) @ own.mean(0)
    assert scaling_tests.misfit_p(theta, LAW, scores) == pytest.approx(float(stats.f.sf(t2 * 6 / 14, 2, 6)))
    assert scaling_tests.misfit_p(theta, LAW, scores + 0.05 * (X - X.mean()) ** 3) < 1e-3
    assert math.isnan(
        scaling_tests.misfit_p(scaling_law.fit(X[:3], scores[:, :3].mean(0)), scaling_law.law_at(X[:3]), scores[:, :3])
    )


def covered(draws, seed, setting):
    found = coverage.coverage(setting, draws, np.random.default_rng(seed))
    return {name: found[name] for name in coverage.NUMBERS}


@pytest.mark.slow
def test_intervals_cover_the_truth_in_95_of_100_studies_up_to_the_error_of_200_draws():
    shares = covered(200, 11, coverage.Setting(noise=0.003))
    low, high = stats.binom.ppf([0.001, 0.999], 200, 0.95) / 200
    assert {name: share for name, share in shares.items() if not low <= share <= high} == {}


@pytest.mark.slow
def test_intervals_cover_the_truth_in_93_to_97_of_100_studies():
    shares = covered(1000, 1, coverage.Setting(noise=0.003))
    assert {name: share for name, share in shares.items() if not 0.93 <= share <= 0.97} == {}


def test_the_page_shows_coverage_of_93_to_97_in_100_for_every_number():
    page = (FOLDER.parents[1] / "docs/scaling.md").read_text().partition("By the delta")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.endswith(" % |")]
    assert [row[:4] for row in rows] == [coverage.cells(setting) for setting in coverage.SETTINGS]
    shares = [float(cell.removesuffix(" %")) for row in rows for cell in row[4:]]
    assert len(shares) == len(coverage.SETTINGS) * len(coverage.NUMBERS)
    assert 93 <= min(shares) <= max(shares) <= 97


def test_a_prediction_interval_is_centred_near_the_prediction_and_shifts_with_the_held_out_runs():
    [scores, _], held_out = noisy(8)
    place = X[-1] + math.log(10)
    theta, law, beyond = (
        scaling_law.fit(X, scores.mean(0)),
        LAW,
        scaling_law.law_at(np.array([place])),
    )
    predicted, low, high = scaling_tests.prediction_interval(theta, law, beyond, scores, held_out)
    value = functools.partial(scaling_law.value_at, x=place)
    assert predicted == pytest.approx(value(theta)[0])
    assert low < predicted < high
    far = scaling_tests.prediction_interval(theta, law, beyond, scores, held_out + 10.0)
    assert far[2] < held_out.mean() + 10.0
