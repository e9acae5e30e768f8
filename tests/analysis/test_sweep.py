"""Sweeps over a number: the best value in each arm, the interval of the optimum, and studies without a sweep."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from study.coverage import script
from study.test_search import halved, pretend, search
from study.tiny import BASELINE, NORM, RATE, fill, run, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.runner.execution import Execution
from flaxformer.statistics.parabola import log_optimum, vertex
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study import Axis, Choice, LogUniform, Points, sample_points

OPTIMA = script("optimum_coverage")
PATH = "optimizer.learning_rate"
RATES = Axis(PATH, {f"{rate:.0e}": rate for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}, name="rate")
BEST = {"pre": 3e-3, "post": 1e-3}


def valley(trial):
    """A loss that is lowest at BEST, with an offset per seed."""
    return 1 + 0.1 * math.log(trial.run.optimizer.learning_rate / BEST[trial.arm.labels["norm"]]) ** 2 + trial.seed


def swept(tmp_path, loss=valley, **changes):
    return analyse(fill(tmp_path, tiny(**{"axes": (NORM, RATES), "claims": ()} | changes), loss))


DEFAULT = {(3, 0.1, 4.0), (5, 0.3, 1.0), (8, 0.3, 4.0)}
SIMULATED = [
    pytest.param(*own, marks=() if own in DEFAULT else pytest.mark.slow)
    for own in itertools.product((3, 5, 8), (0.0, 0.1, 0.3), (1.0, 4.0))
]


@pytest.mark.parametrize(("seeds", "sd", "growth"), SIMULATED)
def test_the_interval_of_the_optimum_covers_it_95_times_in_100(seeds, sd, growth):
    """The optimum may vary between seeds, and the noise between values; the bounds are binomial, at 1e-4."""
    draws = 400
    setting = OPTIMA.Setting(seeds=seeds, sd=sd, growth=growth)
    covered = OPTIMA.rates(setting, draws, np.random.default_rng(1))["covers"] * draws
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], draws, 0.95)
    assert low <= covered <= high


def test_the_minimum_and_its_interval_are_those_of_least_squares_per_seed_and_a_t_test_of_the_slopes():
    """Each end is a place at which the slopes of the seeds have the critical t; scipy's test is the reference."""
    random, x = np.random.default_rng(3), np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    y = (
        0.3 * (x - 0.4 - 0.3 * random.normal(size=(6, 1))) ** 2
        + random.normal(size=(6, 1))
        + 0.2 * random.normal(size=(6, 5))
    )
    found = vertex(x, y)
    c, b, _ = np.array([np.polyfit(x, row, 2) for row in y]).T
    assert found.x == pytest.approx(-b.mean() / (2 * c.mean()))
    for end in (found.low, found.high):
        assert stats.ttest_1samp(b + 2 * c * end, 0).pvalue == pytest.approx(0.05)
    assert found.low < found.x < found.high


def test_a_seed_without_a_minimum_of_its_own_counts_as_any_other():
    x = np.array([-1.0, 0.0, 1.0])
    y = np.array([x**2, x**2 + 0.1 * x, 1.2 * x**2, 0.9 * x**2 - 0.1 * x, -0.1 * x**2])
    found = vertex(x, y)
    assert found.x == pytest.approx(0.0)
    assert found.low < 0 < found.high


def test_the_minimum_of_one_seed_has_no_interval():
    found = vertex([-3, -1, 0, 4], [[(x - 0.7) ** 2 for x in (-3, -1, 0, 4)]])
    assert found.x == pytest.approx(0.7)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_an_end_that_the_data_do_not_bound_is_infinite():
    noise = np.random.default_rng(1).normal(size=(3, 5))
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    falling = vertex(x, 1e-3 * x**2 - 2 * x + 0.1 * noise)
    assert falling is None or falling.high == math.inf
    flat = vertex(x, 1e-2 * (x - 2) ** 2 + noise)
    assert flat is None or (flat.low, flat.high) == (-math.inf, math.inf)
    assert vertex(x, [-(x**2)] * 3) is None
    assert vertex([0, 1], [[1, 0]] * 3) is None


@pytest.mark.parametrize("truth", [-5.6, -4.3, -3.5])
def test_the_best_value_of_one_seed_is_that_of_the_parabola_around_it(truth):
    losses = {2.0**power: (power - truth) ** 2 for power in (-3, -7, -5, -4, -6, -8, -2)}
    losses |= {2.0**-9: 70.0, 2.0**3: 40.0}  # far from the best, and not on the parabola
    assert log_optimum(losses) == pytest.approx(truth * math.log(2))


def test_the_best_value_of_one_seed_follows_least_squares_over_two_values_on_each_side():
    powers, losses = np.arange(-8, -1), np.array([3.1, 2.7, 2.8, 2.4, 2.5, 2.9, 3.7])
    near = slice(1, 6)  # the lowest loss is at 2^-5
    _, b, c = np.linalg.lstsq(np.vander(powers[near], 3, increasing=True), losses[near], rcond=None)[0]
    found = log_optimum(dict(zip(2.0**powers, losses, strict=True)))
    assert found == pytest.approx(-b / (2 * c) * math.log(2))


def test_the_best_value_is_one_that_was_tried_where_no_parabola_has_a_minimum():
    falling, rising = ({2.0**power: sign * power for power in range(6)} for sign in (-1, 1))
    assert log_optimum(falling) == pytest.approx(5 * math.log(2))
    assert log_optimum(rising) == 0
    peaks = {2.0**power: loss for power, loss in enumerate([0.0, 5.0, -0.1, 5.0, 0.0])}
    assert log_optimum(peaks) == pytest.approx(2 * math.log(2))


def test_the_best_value_is_not_outside_the_values_of_the_fit():
    nearly_falling = {2.0**power: loss for power, loss in enumerate([9.0, 7.0, 4.0, 2.9, 1.0, 1.01])}
    assert log_optimum(nearly_falling) == pytest.approx(5 * math.log(2))


def test_each_arm_has_its_best_value_and_its_optimum(tmp_path):
    [sweep] = swept(tmp_path).sweeps
    assert (sweep.axis, sweep.names, sweep.goal) == ("rate", ["rate"], "lower")
    assert [line.labels for line in sweep.lines] == [{"norm": "pre"}, {"norm": "post"}]
    for line in sweep.lines:
        best = BEST[line.labels["norm"]]
        assert [point.numbers["rate"] for point in line.points] == sorted(RATES.levels.values())
        assert line.best.numbers == {"rate": best}
        assert line.best.arm.estimate.mean == 2
        np.testing.assert_allclose([line.optimum.value, line.optimum.low, line.optimum.high], best, rtol=1e-6)
        assert (line.optimum.values, line.optimum.step, line.is_edge("rate")) == (5, None, False)


def test_the_optimum_of_noisy_runs_has_an_interval_that_narrows_with_seeds(tmp_path):
    random = np.random.default_rng(2)
    widths = []
    for seeds in (3, 16):
        noisy = swept(tmp_path / str(seeds), lambda t: valley(t) / 3 + 0.1 * random.normal() / 3, seeds=range(seeds))
        [sweep] = noisy.sweeps
        [pre, _] = sweep.lines
        assert pre.optimum.low < BEST["pre"] < pre.optimum.high
        widths.append(math.log(pre.optimum.high / pre.optimum.low))
    assert widths[1] < widths[0] / 2


def test_a_goal_turns_the_sweep_around(tmp_path):
    [sweep] = swept(tmp_path, lambda trial: -valley(trial), goal="higher").sweeps
    assert [line.best.numbers["rate"] for line in sweep.lines] == [3e-3, 1e-3]
    assert sweep.lines[0].optimum.value == pytest.approx(3e-3)


def test_a_best_value_at_the_end_of_what_was_tried_is_marked(tmp_path):
    [sweep] = swept(tmp_path, lambda trial: -math.log(trial.run.optimizer.learning_rate) + trial.seed).sweeps
    assert sweep.lines[0].is_edge("rate")


@pytest.mark.parametrize(
    "axes",
    [(NORM, RATE), (NORM,), (), (NORM, Axis("model.attention.scale_exponent", {"1": 1, "0": 0, "half": 0.5}))],
    ids=["two values", "no number", "no axis", "two positive values"],
)
def test_an_axis_of_fewer_positive_numbers_is_no_sweep(tmp_path, axes):
    assert swept(tmp_path, lambda trial: 1.0, axes=axes).sweeps == []


def test_levels_in_step_are_no_sweep_and_one_factor_arms_are_one_line(tmp_path):
    three = Axis("model.d_model", {"8": 8, "16": 16, "24": 24})
    rates = Axis(PATH, dict(list(RATES.levels.items())[1:4]), name="rate")
    assert swept(tmp_path / "zip", lambda trial: 1.0, axes=(three, rates), combine="zip").sweeps == []
    found = swept(tmp_path / "one", lambda trial: 1.0, axes=(NORM, rates), combine="one-factor").sweeps
    assert [(line.labels, len(line.points)) for line in found[0].lines] == [({"norm": "pre"}, 3)]


def test_diverged_values_are_not_in_the_fit(tmp_path):
    store = fill(tmp_path, tiny(axes=(NORM, RATES), claims=()), valley)
    [rows] = store.groups.glob("*")
    changed = [
        row | ({"status": "diverged", "diverged_at": 2} if row["rate"] == "1e-02" and row["seed"] == 1 else {})
        for row in store.rows().values()
    ]
    write_table(rows, changed)
    pre = analyse(store).sweeps[0].lines[0]
    assert pre.optimum.value == pytest.approx(BEST["pre"])
    assert pre.optimum.values == 4


def by_rate(trial, steps):
    return 1 + 0.1 * math.log(trial.run.optimizer.learning_rate / 4e-3) ** 2 / steps + 0.01 * trial.seed


def test_after_a_halving_the_optimum_is_fitted_where_enough_values_were_evaluated(monkeypatch, tmp_path):
    pretend(monkeypatch, by_rate)
    study = halved()
    list(run(study, Execution(output=tmp_path)))
    store = Store(tmp_path)
    for path in store.groups.glob("*"):  # the made-up runs have the curves of real ones
        rows = Store(tmp_path).rows()
        own = [row for row in rows.values() if path.stem in (row["group"], f"stopped-{row.get('stopped_at')}")]
        trials = {trial.name: trial for trial in study.trials()}
        curves = [
            [by_rate(trials[row["trial"]], step) for step in (3, 9, 27) if step <= row["evaluated_at"][-1]]
            for row in own
        ]
        named = [
            row | {"validation_loss_curve": curve, "evaluated_at": [3, 9, 27][: len(curve)]}
            for row, curve in zip(own, curves, strict=True)
        ]
        write_table(path, [row for row in named if (row["status"] == "stopped") == path.stem.startswith("stopped")])
    [sweep] = analyse(store).sweeps
    assert len(sweep.lines) == 2
    for line in sweep.lines:
        assert line.best.numbers == {"rate": 4e-3}
        assert (len(line.points), line.optimum.step) == (9, 3)
        assert line.optimum.value == pytest.approx(4e-3, rel=1e-6)


def test_a_space_of_several_numbers_has_a_best_point_and_its_choices_are_lines(tmp_path):
    space = {PATH: LogUniform(1e-4, 1e-1), "optimizer.epsilon": LogUniform(1e-9, 1e-7)}
    point = sample_points(space | {"model.norm": Choice(NORM.levels)}, 12)
    study = tiny(axes=(point,), claims=())
    analysis = analyse(fill(tmp_path, study, lambda trial: abs(math.log(trial.run.optimizer.learning_rate / 3e-3))))
    [sweep] = analysis.sweeps
    assert (sweep.axis, sweep.names) == ("sample", ["learning_rate", "epsilon"])
    assert sorted(line.labels["norm"] for line in sweep.lines) == ["post", "pre"]
    assert sum(len(line.points) for line in sweep.lines) == 12
    for line in sweep.lines:
        assert line.optimum is None
        distances = [abs(math.log(own.numbers["learning_rate"] / 3e-3)) for own in line.points]
        assert line.best is line.points[int(np.argmin(distances))]


def test_points_of_the_authors_own_are_a_sweep_where_their_numbers_vary(tmp_path):
    sizes = Points("size", {str(n): {"model.d_model": 8 * n, "model.layers": n} for n in (1, 2, 3)})
    [sweep] = swept(tmp_path, lambda trial: trial.run.model.layers, axes=(sizes,)).sweeps
    assert sweep.lines[0].best.numbers == {"d_model": 8, "layers": 1}
    named = Points("norm", {n: {"model.norm": v, PATH: r} for (n, v), r in zip(NORM.levels.items(), (1, 2))})  # noqa: B905
    assert swept(tmp_path / "norms", lambda trial: 1.0, axes=(named,)).sweeps == []


def test_a_search_is_a_sweep(monkeypatch, tmp_path):
    pytest.importorskip("optuna")
    pretend(monkeypatch, lambda trial, steps: abs(math.log(trial.run.optimizer.learning_rate / 3e-3)) + trial.seed)
    study = search(space={PATH: LogUniform(1e-4, 1e-1)}, rounds=2, samples=5, goal="higher")
    list(run(study, Execution(output=tmp_path)))
    [sweep] = analyse(Store(tmp_path)).sweeps
    assert (sweep.goal, len(sweep.lines[0].points)) == ("higher", 10)
    assert sweep.lines[0].best.arm.estimate.mean == max(p.arm.estimate.mean for p in sweep.lines[0].points)


def test_the_baseline_of_one_factor_arms_is_a_value_too(tmp_path):
    rates = Axis(PATH, {"2e-3": 2e-3, "4e-3": 4e-3}, name="rate")
    [sweep] = swept(tmp_path, lambda trial: 1.0, axes=(rates,), combine="one-factor").sweeps
    assert [point.numbers["rate"] for point in sweep.lines[0].points] == [BASELINE.optimizer.learning_rate, 2e-3, 4e-3]


def test_the_axis_with_the_most_values_is_the_first_sweep(tmp_path):
    layers = Axis("model.layers", {str(n): n for n in (1, 2, 3)})
    for axes in ((layers, RATES), (RATES, layers)):
        found = swept(tmp_path / axes[0].name, lambda trial: 1.0 + trial.seed, axes=axes).sweeps
        assert [sweep.axis for sweep in found] == ["rate", "layers"]
