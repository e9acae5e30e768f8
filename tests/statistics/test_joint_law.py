"""Joint scaling laws against scipy, their intervals, and what a study says of them."""

import numpy as np
import pytest
from scipy import optimize, special, stats
from study.coverage import FOLDER, script
from study.scaling_studies import PRE, grid_study, joint_scores, scaled
from study.tiny import NORM

from flaxformer.report import scaling_text
from flaxformer.statistics import joint_law, scaling_tests
from flaxformer.statistics.law_losses import LOSSES
from flaxformer.study import Scaling

coverage = script("joint_law_coverage")
SETTING = coverage.Setting()
X, Y = SETTING.places


def usual_form(theta):
    p, q, alpha, r, beta = theta
    return p - q / alpha - r / beta, q / alpha, alpha, r / beta, beta


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_scipy(seed):
    losses = coverage.draw(SETTING, np.random.default_rng(seed))[0].mean(0)

    def law(places, e, a, alpha, b, beta):
        return e + a * np.exp(-alpha * places[0]) + b * np.exp(-beta * places[1])

    expected, _ = optimize.curve_fit(law, (X, Y), losses, p0=(1.0, 1.0, 0.5, 1.0, 0.5))
    np.testing.assert_allclose(usual_form(joint_law.fit(X, Y, losses, "squares")), expected, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.3])
@pytest.mark.parametrize("beta", [0.2, 0.8])
def test_the_fit_finds_the_constants_of_a_law_without_noise(alpha, beta, loss):
    found = joint_law.fit(X, Y, 1.1 + 0.7 * np.exp(-alpha * X) + 0.3 * np.exp(-beta * Y), loss)
    np.testing.assert_allclose(usual_form(found), (1.1, 0.7, alpha, 0.3, beta), rtol=1e-4)


@pytest.mark.parametrize("loss", ["huber", "log_squares"])
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_of_log_residuals_is_that_of_a_simplex_search(seed, loss):
    """Nelder and Mead need no gradient, and start at the truth."""
    losses = coverage.draw(SETTING, np.random.default_rng(seed))[0].mean(0)

    def total(theta):
        values = theta[0] + theta[1] * np.exp(-theta[2] * X) + theta[3] * np.exp(-theta[4] * Y)
        residuals = np.log(np.maximum(values, 1e-9) / losses)
        return float(special.huber(1e-3, residuals).sum() if loss == "huber" else (residuals**2).sum() / 2)

    expected = np.array([coverage.LIMIT, coverage.A, coverage.ALPHA, coverage.B, coverage.BETA])
    for _ in range(4):
        options = {"xatol": 1e-10, "fatol": 1e-18, "maxiter": 20_000, "maxfev": 20_000}
        expected = optimize.minimize(total, expected, method="Nelder-Mead", options=options).x
    found = usual_form(joint_law.fit(X, Y, losses, loss))
    assert total(found) <= total(expected) * (1 + 1e-6)
    np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize("name", coverage.truths(SETTING))
def test_the_gradient_of_every_number_is_that_of_differences(name):
    functional, _ = coverage.truths(SETTING)[name]
    theta = np.array([1.9, 0.4, 0.3, 0.2, 0.5])
    gradient = [(functional(theta + step)[0] - functional(theta - step)[0]) / 2e-6 for step in 1e-6 * np.eye(5)]
    np.testing.assert_allclose(functional(theta)[1], gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", coverage.truths(SETTING))
def test_the_fit_under_a_hypothesis_is_that_of_scipy(name):
    functional, truth = coverage.truths(SETTING)[name]
    scores, law = coverage.draw(SETTING, np.random.default_rng(3))[0], joint_law.law_at(X, Y)
    means = scores.mean(0)
    _, theta = scaling_tests.t_of_hypothesis((functional, truth), law, scores, joint_law.fit(X, Y, means, "squares"))
    assert functional(theta)[0] == pytest.approx(truth, abs=1e-9)

    def squares(theta):
        return float(((law(theta)[0] - means) ** 2).sum())

    held = {"type": "eq", "fun": lambda theta: functional(theta)[0] - truth}
    expected = optimize.minimize(squares, theta + 1e-3, constraints=held, method="SLSQP", options={"ftol": 1e-14})
    assert squares(theta) <= expected.fun * (1 + 1e-3) + 1e-12


def test_the_allocation_has_the_least_loss_at_equal_compute():
    """At a fixed sum of x and y, the best x rises by a per unit of that sum."""
    theta = np.array([1.9, 0.4, 0.3, 0.2, 0.5])

    def best(total):
        return optimize.minimize_scalar(
            lambda x: joint_law.value_at(theta, x, total - x)[0], bounds=(-9, 9), options={"xatol": 1e-9}
        ).x

    assert best(2.0) - best(1.0) == pytest.approx(joint_law.allocation_of(theta)[0], abs=1e-5)


def test_numbers_that_need_exponents_above_0_say_so_without_them():
    theta = np.array([1.0, 0.4, -0.1, 0.2, 0.3])
    assert joint_law.limit_of(theta)[0] == -np.inf
    assert joint_law.log_amplitude_of(theta, 0.0)[0] == np.inf
    assert np.isfinite(joint_law.log_amplitude_of(theta, 0.0, is_of_tokens=True)[0])
    assert np.isnan(joint_law.allocation_of(theta)[0])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squares", "huber"])
def test_intervals_cover_the_true_value_in_95_of_100_studies_up_to_the_error_of_200_draws(loss):
    shares = coverage.coverage(SETTING, 200, np.random.default_rng(11), loss)
    low, high = stats.binom.ppf([0.001, 0.999], 200, 0.95) / 200
    assert {name: share for name, share in shares.items() if not low <= share <= high} == {}


@pytest.mark.slow
def test_intervals_cover_the_true_value_in_93_to_97_of_100_studies():
    shares = coverage.coverage(SETTING, 1000, np.random.default_rng(1), "squares")
    assert {name: share for name, share in shares.items() if not 0.93 <= share <= 0.97} == {}


def test_the_page_shows_the_coverage_of_every_setting():
    page = (FOLDER.parents[1] / "docs/scaling.md").read_text().partition("## The joint law")[2]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.endswith(" % |")]
    assert [row[:4] for row in rows] == [
        coverage.cells(setting) for loss in ("huber", "squares") for setting in coverage.SETTINGS_OF[loss]
    ]
    assert {len(row) for row in rows} == {4 + len(coverage.NUMBERS)}


def test_each_arm_has_its_joint_law_and_its_prediction_of_the_held_out_size(tmp_path):
    analysis = scaled(tmp_path, joint_scores(), **grid_study(axes=(NORM,)))
    found = analysis.scaling
    assert [fit.labels for fit in found.joint_fits] == [PRE, {"norm": "post"}]
    for fit in found.joint_fits:
        assert (fit.reason, len(fit.fitted_points), len(fit.seeds)) == ("", 9, 8)
        for name, truth in {"α": 0.5, "β": 0.3, "L∞": 1.0, "a": 0.3 / 0.8}.items():
            one = fit.numbers[name]
            assert one.low < truth < one.high, name
            assert one.high - one.low < 0.3
        smallest = [min(getattr(point, name) for point in fit.points) for name in ("size", "tokens")]
        for name, truth in {"A": 2.0 * smallest[0] ** 0.5, "B": 1.0 * smallest[1] ** 0.3}.items():
            assert fit.numbers[name].low < truth < fit.numbers[name].high
        [one] = fit.held_out
        assert one.is_inside
    laws, held_out = (table.in_form("page") for table in scaling_text.tables(analysis)[-2:])
    assert [row[:2] for row in laws.rows] == [["pre", "identified"], ["post", "identified"]]
    assert [row[-1] for row in held_out.rows] == ["yes", "yes"]
    lines = scaling_text.findings(analysis)
    assert sum("B·D^(−β)" in line for line in lines) == 2
    assert sum("by the joint law, observed" in line and line.endswith(", inside") for line in lines) == 2
    assert not [limit for limit in analysis.limits if "does not describe" in limit]


def test_a_joint_law_that_does_not_describe_the_sizes_is_a_limit(tmp_path):
    own = joint_scores()
    odd = {"norm": "post", "size": "24 32"}
    analysis = scaled(tmp_path, lambda trial: own(trial) + 0.1 * (trial.arm.labels == odd), **grid_study(axes=(NORM,)))
    [limit] = [limit for limit in analysis.limits if "does not describe" in limit]
    assert limit.startswith("The joint law does not describe norm post to the precision of the seeds")


def test_a_held_out_size_without_results_has_a_prediction(tmp_path):
    own = joint_scores()
    analysis = scaled(tmp_path, lambda trial: own(trial) if trial.arm.labels["size"] != "far" else None, **grid_study())
    [fit] = analysis.scaling.joint_fits
    assert fit.held_out[0].is_inside is None
    assert fit.held_out[0].predicted.low < fit.held_out[0].predicted.value < fit.held_out[0].predicted.high


REASONS = {
    "two widths": ({"widths": (8, 64)}, {}, "2 different numbers of parameters; expected at least 3"),
    "near widths": ({"widths": (8, 10, 12)}, {}, "times the parameters of the smallest; expected at least 4 times"),
    "together": ({"pairs": tuple(zip((8, 12, 16, 24, 32, 64), (4, 9, 16, 36, 64, 256), strict=True))}, {},
                 "parameters and tokens change together"),
    "rises": ({}, {"above": (-2.0, 1.0)}, "the metric gets worse with parameters"),
    "no change": ({}, {"above": (2.0, 0.0)}, "the seeds show no change of the metric with tokens"),
    "too noisy": ({}, {"noise": 0.3}, "the interval of"),
    "no noise": ({}, {"noise": 0.0, "shared": 0.0}, "all seeds have the same scores"),
    "no limit": ({}, {"limit": -1.0}, "the best L∞ is at its bound of 0"),
}  # fmt: skip


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize("case", REASONS)
def test_a_law_that_is_not_identified_has_its_reason(tmp_path, case):
    sizes, law, reason = REASONS[case]
    analysis = scaled(tmp_path, joint_scores(**law), **grid_study(**sizes))
    [fit] = analysis.scaling.joint_fits
    assert reason in fit.reason
    assert fit.numbers == {}
    assert f"not identified: {fit.reason}" in [row[0] for row in scaling_text.tables(analysis)[-2].in_form("page").rows]


@pytest.mark.parametrize("sizes", [{"widths": (8,), "steps": (4, 16, 64, 256, 512, 1024)}, {"steps": (4,)},
                                   {"widths": (8, 24), "steps": (4, 64)}])  # fmt: skip
def test_a_study_without_enough_sizes_of_both_has_no_joint_law(tmp_path, sizes):
    study = grid_study(**sizes, scaling=Scaling("size", against="tokens", held_out=()))
    assert scaled(tmp_path, joint_scores(), **study).scaling.joint_fits == []
