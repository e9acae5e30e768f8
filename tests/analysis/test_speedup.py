"""Effective speed-ups of invented learning curves whose speed-up is known, and their intervals by scipy."""

import math

import numpy as np
import polars as pl
import pytest
from scipy import stats
from study.coverage import script
from study.tiny import bare_declaration

from flaxformer.analysis.arms import ArmSummary, claim_cost_ratios, reference_arm
from flaxformer.analysis.speedup import compare_arms, metric_and_goal, reach, speed_up, speed_ups
from flaxformer.report import costs
from flaxformer.store.declaration import DeclaredAxis, DeclaredClaim, key_of
from flaxformer.store.rows import Row

COVERAGE = script("speedup_coverage")
STEPS = list(range(0, 1001, 5))
METRIC = "validation_loss"


def row(label, seed, curve, flops_per_step=10.0, steps=STEPS, metric=METRIC, **changes):
    """A finished run with the given learning curve, a function of the step."""
    values = [float(curve(step)) for step in steps]
    fields = {
        "status": "done",
        "evaluated_at": steps,
        "seconds": 2.0 * steps[-1],
        "group_size": 1,
        "device": "cpu:0",
        "parameters": 100,
        "active_parameters": 100,
        "parameters_without_embeddings": 80,
        "flops_per_step": flops_per_step,
        "flops": (flops_per_step or 0.0) * steps[-1],
        "training_tokens": 7 * steps[-1],
        "labels": {"arm": label},
        "metrics": {metric: values[-1], f"initial_{metric}": values[0]},
        "curves": {metric: values},
    }
    return Row(trial=f"arm={label},seed={seed}", group="all", seed=seed, **(fields | changes))


class Columns:
    """Results of some rows by column."""

    def __init__(self, rows):
        self.rows, self.statuses = rows, [one.status for one in rows]
        self.diverged = np.array([one.status == "diverged" for one in rows])

    def column(self, name):
        return self.numbers(name).to_list()

    def numbers(self, name):
        return pl.Series(name, [getattr(one, name, one.metrics.get(name)) for one in self.rows], dtype=pl.Float64)


def arm_of(label, rows):
    scores = [one.metrics.get(METRIC) for one in rows]
    return ArmSummary({"arm": label}, scores, rows, 0, Columns(rows), range(len(rows)))


def power_law(amount, exponent, offset=1.5):
    return lambda step: offset + amount * (step + 20.0) ** -exponent


def stretched(curve, factor):
    """The curve of a training that learns as much in 1 step as the other in `factor` steps."""
    return lambda step: curve(factor * step)


@pytest.mark.every(7)
@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, 1.7, 4.0])
@pytest.mark.parametrize("cost", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("exponent", [0.1, 0.7])
def test_an_arm_that_learns_faster_by_a_factor_has_this_speed_up_per_cost(factor, cost, exponent):
    """The baseline is trained four times as long, so that it reaches every final loss."""
    long = [4 * step for step in STEPS]
    curves = [power_law(1 + 0.1 * seed, exponent) for seed in range(5)]
    baseline = arm_of("a", [row("a", seed, curve, steps=long) for seed, curve in enumerate(curves)])
    rows = [row("b", seed, stretched(curve, factor), flops_per_step=10 * cost) for seed, curve in enumerate(curves)]
    found = speed_up(arm_of("b", rows), baseline)
    assert found.ratio == pytest.approx(factor / cost, rel=2e-3)
    assert (found.above, found.below, found.log.n) == (0, 0, 5)


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_interval_is_the_paired_t_interval_of_the_logarithms(seeds):
    rng = np.random.default_rng(seeds)
    curve, long = power_law(2.0, 0.5), [4 * step for step in STEPS]
    # symmetric about the mean, so that the interval is not widened for skewness
    half = rng.uniform(0.05, 0.4, seeds // 2)
    logs = 0.3 + np.concatenate([half, -half, np.zeros(seeds % 2)])
    baseline = arm_of("a", [row("a", seed, curve, steps=long) for seed in range(seeds)])
    arm = arm_of("b", [row("b", seed, stretched(curve, math.exp(own))) for seed, own in enumerate(logs)])
    found = speed_up(arm, baseline)
    low, high = stats.t.interval(0.95, seeds - 1, loc=logs.mean(), scale=stats.sem(logs))
    assert found.ratio == pytest.approx(math.exp(logs.mean()), rel=2e-3)
    # evaluations are 5 steps apart, near step 1000 · exp(log): less than 1 % on each side
    assert math.exp(low) * 0.985 < found.interval[0] <= math.exp(low) * 1.001
    assert math.exp(high) * 0.999 <= found.interval[1] < math.exp(high) * 1.015


def test_seeds_are_paired():
    """Curves differ much between seeds, and the ratio does not."""
    curves = [power_law(1 + seed, 0.2 + 0.1 * seed) for seed in range(6)]
    baseline = arm_of("a", [row("a", seed, curve) for seed, curve in enumerate(curves)])
    arm = arm_of("b", [row("b", seed, stretched(curve, 0.5)) for seed, curve in enumerate(curves)])
    assert speed_up(arm, baseline).interval == pytest.approx((0.5, 0.5), rel=1.2e-2)
    mixed = arm_of("b", [arm.rows[(seed + 1) % 6] for seed in range(6)])
    assert speed_up(mixed, baseline).log.sd > 0.1 or speed_up(mixed, baseline).above


@pytest.mark.parametrize("goal", ["lower", "higher"])
def test_the_cost_to_reach_a_score_is_interpolated_on_the_best_score_so_far(goal):
    sign = 1 if goal == "lower" else -1
    costs, scores = [0.0, 10.0, 20.0, 30.0, 40.0], [sign * own for own in (9.0, 5.0, 7.0, 4.0, 4.5)]
    half = math.sqrt(20 * 30)  # in the middle of the logarithms
    expected = {9.5: 0.0, 9.0: 0.0, 5.0: 10.0, 4.5: half, 4.0: 30.0, 3.9: math.inf}
    for target, cost in expected.items():
        assert reach(costs, scores, sign * target, goal).cost == pytest.approx(cost)
    between = reach(costs, scores, sign * 4.5, goal)
    assert (between.low, between.high, between.near, between.is_known) == (20.0, 30.0, 4, True)
    early = reach(costs, scores, sign * 7.0, goal)
    assert (early.low, early.high, early.is_known) == (0.0, 10.0, False)


def test_a_score_that_the_baseline_never_reaches_gives_a_lower_bound():
    baseline = arm_of("a", [row("a", seed, power_law(2, 0.5)) for seed in range(4)])
    better = arm_of("b", [row("b", seed, power_law(1, 0.5), flops_per_step=5.0) for seed in range(4)])
    found = speed_up(better, baseline)
    assert (found.above, found.below) == (4, 0)
    assert found.ratio == pytest.approx(2.0)
    assert all(map(math.isnan, found.interval))


def test_an_arm_that_learns_nothing_gives_an_upper_bound():
    baseline = arm_of("a", [row("a", seed, power_law(2, 0.5)) for seed in range(4)])
    nothing = arm_of("b", [row("b", seed, lambda step: 7.0) for seed in range(4)])
    found = speed_up(nothing, baseline)
    assert (found.above, found.below) == (0, 4)
    assert found.ratio == pytest.approx(STEPS[1] / STEPS[-1])


def test_a_diverged_arm_counts_with_its_score_before_training():
    baseline = arm_of("a", [row("a", seed, power_law(2, 0.5)) for seed in range(4)])
    rows = [row("b", seed, power_law(2, 0.5), diverged_at=3, status="diverged") for seed in range(4)]
    assert speed_up(arm_of("b", rows), baseline).below == 4


def test_the_speed_up_is_known_at_the_final_score_of_the_worse_arm():
    """At equal compute, neither arm but the better one reaches both final scores."""
    curve = power_law(2, 0.5)
    slow = arm_of("a", [row("a", seed, curve) for seed in range(4)])
    fast = arm_of("b", [row("b", seed, stretched(curve, 1.6)) for seed in range(4)])
    study = bare_declaration(metric=METRIC)
    found, reverse = compare_arms(study, fast, slow), compare_arms(study, slow, fast)
    assert found.compute.above == 4
    assert found.compute_to_baseline.ratio == pytest.approx(1.6, rel=2e-3)
    assert reverse.compute.ratio == pytest.approx(1 / 1.6, rel=2e-3)
    assert reverse.compute_to_baseline.ratio == pytest.approx(1.0)
    assert reverse.compute_to_baseline.below == 4


def test_time_is_compared_on_equal_devices_alone():
    curve, long = power_law(2, 0.5), [2 * step for step in STEPS]
    baseline = arm_of("a", [row("a", seed, curve, steps=long, device="cpu:1") for seed in range(4)])
    arm = arm_of("b", [row("b", seed, curve, seconds=500.0) for seed in range(4)])
    assert speed_up(arm, baseline, resource="time").ratio == pytest.approx(2.0 * 1000 / 500, rel=2e-3)
    together = arm_of("b", [row("b", seed, curve, group_size=4) for seed in range(4)])
    assert speed_up(together, baseline, resource="time") is None
    elsewhere = arm_of("b", [row("b", seed, curve, device="cuda:0") for seed in range(4)])
    assert speed_up(elsewhere, baseline, resource="time") is None
    assert speed_up(elsewhere, baseline) is not None


def declared_with(baseline, terms=()):
    """A declaration of an axis of arms, with claims of these terms."""
    axis = DeclaredAxis(name="arm", path="x", labels=("a", "b", "c"), baseline=baseline)
    about = {"text": "a claim", "kind": "lower", "by": 0.0, "within": None, "constant": 0.0}
    return bare_declaration(
        metric=METRIC, axes=(axis,), claims=tuple(DeclaredClaim(**about, terms=own) for own in terms)
    )


def test_results_without_costs_have_no_speed_up():
    arms = [
        arm_of(name, [row(name, seed, power_law(2, 0.5), flops_per_step=None, flops=None) for seed in range(4)])
        for name in "ab"
    ]
    study = declared_with("a")
    assert arms[0].cost is None
    assert speed_up(*arms) is None
    assert list(speed_ups(study, arms)) == []
    assert (
        claim_cost_ratios([(1.0, {"arm": "a"}), (-1.0, {"arm": "b"})], {key_of(arm.labels): arm for arm in arms}) == ()
    )


def test_a_metric_without_a_direction_is_replaced_by_the_loss():
    assert metric_and_goal(bare_declaration(metric="test_accuracy")) == ("validation_accuracy", "higher")
    assert metric_and_goal(bare_declaration(metric="sharpness")) == ("validation_loss", "lower")
    assert metric_and_goal(bare_declaration(metric="sharpness", goal="higher")) == ("sharpness", "higher")


def test_every_arm_is_compared_with_the_baseline_and_claims_with_their_own():
    arms = [arm_of(name, [row(name, seed, power_law(2, 0.5)) for seed in range(4)]) for name in "abc"]
    terms = [((1.0, {"arm": one}), (-1.0, {"arm": other})) for one, other in ("ac", "ba", "bc")]
    study = declared_with("b", terms)
    assert reference_arm(study.axes, arms) is arms[1]
    found = [(one.arm.labels["arm"], one.baseline.labels["arm"]) for one in speed_ups(study, arms)]
    assert found == [("a", "b"), ("c", "b"), ("a", "c")]


@pytest.mark.parametrize("ratio", [0.5, 0.979, 0.99, 1.0, 1.019, 1.021, 3.0])
def test_costs_that_differ_by_more_than_the_tolerance_are_unequal(ratio):
    a = arm_of("a", [row("a", seed, power_law(2, 0.5)) for seed in range(4)])
    b = arm_of("b", [row("b", seed, power_law(2, 0.5), flops_per_step=10.0 * ratio) for seed in range(4)])
    found = claim_cost_ratios([(1.0, {"arm": "b"}), (-1.0, {"arm": "a"})], {key_of(arm.labels): arm for arm in (a, b)})
    assert [one.ratio for one in found] == ([pytest.approx(ratio)] if abs(ratio - 1) > 0.02 else [])


@pytest.mark.every(5)
@pytest.mark.parametrize("evaluations", [1, 2, 3, 5, 10, 40])
@pytest.mark.parametrize("factor", [0.203, 0.487, 0.913])
def test_a_speed_up_is_refused_or_its_interval_covers_the_truth(evaluations, factor):
    """Equal curves at every seed: the interval is that of the spacing alone."""
    steps = [1000 * i // evaluations for i in range(evaluations + 1)]
    for exponent in (0.2, 0.5, 1.0):
        curve = power_law(3.0, exponent)
        baseline = arm_of("a", [row("a", seed, curve, steps=steps) for seed in range(4)])
        arm = arm_of("b", [row("b", seed, stretched(curve, factor), steps=steps) for seed in range(4)])
        found, target = speed_up(arm, baseline), 1000 * factor
        before = max(step for step in steps if step < target)
        upper = min(step for step in steps if step >= target)
        near = sum(upper / 4 <= step <= upper * 4 for step in steps[1:])
        if before == 0 or near < 3:
            assert found.reason.endswith("evaluate more often (training.evaluate_every)")
            assert math.isnan(found.ratio)
            assert costs.speed_up(found) == "not read off"
            assert "not read off" in costs.speed_ups(compare_arms(bare_declaration(metric=METRIC), arm, baseline))
        else:
            low, high = found.interval
            assert low <= factor <= high
            assert (low, high) == pytest.approx((before / 1000, upper / 1000))


def test_simulated_speed_ups_have_their_coverage():
    """Seeds that differ, noise, and curves of two forms; the bound is binomial, at 1e-3."""
    draws = 60
    least = stats.binom.ppf(1e-3, draws, 0.95)
    for setting in (COVERAGE.Setting(spacing=20), COVERAGE.Setting(spacing=50, decay=0.1)):
        found = COVERAGE.rates(setting, draws, np.random.default_rng(5))
        assert found["refused"] == 0
        assert found["covers"] * draws >= least
    assert COVERAGE.rates(COVERAGE.Setting(spacing=1000), 10, np.random.default_rng(0))["refused"] == 1
