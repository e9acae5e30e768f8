"""Searches: points drawn from distributions, successive halving, rounds of suggestions, and what was tuned."""

import dataclasses
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc
from study.tiny import BASELINE, NORM, cache_folder, fill, kept_programs, results, run, tiny

from flaxformer.analysis import tuned_value
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.former_results import superseded_rows
from flaxformer.cli import main
from flaxformer.core.paths import get_at
from flaxformer.report import files, index
from flaxformer.runner import launch, rung_verification, stages
from flaxformer.runner.events import Finished
from flaxformer.runner.execution import Execution
from flaxformer.store import columns
from flaxformer.store.records import write_table
from flaxformer.store.rows import Row
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.study import Axis, Choice, Halving, Integer, LogUniform, Points, Search, Uniform, sample_points
from flaxformer.study.divergence import RULE
from flaxformer.study.halving import goal_of, rank
from flaxformer.study.load import load_study
from flaxformer.study.plan import StudyPlan, declaration
from flaxformer.study.search import coordinates
from flaxformer.study.suggest import suggest
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain

RATE = "optimizer.learning_rate"
RATES = {RATE: LogUniform(1e-4, 1e-1)}
SPACE = {RATE: LogUniform(1e-4, 1e-1), "optimizer.warmup_steps": Integer(0, 4), "model.norm": Choice(NORM.levels)}


def pretend(monkeypatch, loss, failing=lambda trial: False):
    """Runs whose losses the caller gives instead of training; returns the names of trials in the order of training."""
    trained = []

    def execute(groups, execution, take=None, keep=None):
        for group in groups:
            taken = take(group) if take else group
            for trial in taken.trials if taken else ():
                trained.append((trial.name, group.steps))
                row = {"trial": trial.name, "group": group.name, "seed": trial.seed} | trial.arm.labels
                if failing(trial):
                    failed = row | {"status": "failed", "cause": "no", "error": "no"}
                    yield Finished(group.name, Row.from_columns(failed))
                    continue
                value = loss(trial, group.steps)
                status = {"status": "done", "diverged_at": None}
                metrics = {"validation_loss": value, "validation_accuracy": 0.0}
                initial = {"initial_validation_loss": 99.0, "initial_validation_accuracy": 0.0}
                curves = {"evaluated_at": [group.steps], "validation_loss_curve": [value]}
                yield Finished(group.name, Row.from_columns(row | status | metrics | initial | curves))

    monkeypatch.setattr(launch, "execute", execute)
    return trained


def at(axis, path):
    return [axis.changes(label)[path] for label in axis.levels]


# --- distributions and points -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sobol", "halton", "random"])
def test_points_have_the_declared_distributions(method):
    """Empirical moments of 512 points against the exact ones, and every choice as often as the others."""
    space = {"a": Uniform(-2, 3), "b": LogUniform(1e-3, 1e2), "c": Integer(3, 7), "d": Choice(["x", "y"])}
    axis = sample_points(space, 512, method, seed=3)
    a, b, c, d = (np.array(at(axis, name)) for name in space)
    near = {"atol": 0.15, "rtol": 0}
    np.testing.assert_allclose([a.mean(), a.std()], [0.5, 5 / math.sqrt(12)], **near)
    np.testing.assert_allclose(np.log10(b).mean(), -0.5, **near)
    np.testing.assert_allclose(np.log10(b).std(), 5 / math.sqrt(12), **near)
    assert -2 <= a.min() < -1.8
    assert 2.8 < a.max() <= 3
    assert [abs((c == n).mean() - 0.2) < 0.05 for n in range(3, 8)] == [True] * 5
    assert set(c) == set(range(3, 8))
    assert abs((d == "x").mean() - 0.5) < 0.05


def test_quasi_random_points_fill_the_space_more_evenly_than_random_ones():
    def discrepancy(method):
        rows = [row for row, _ in zip(coordinates(method, 3, 0), range(128), strict=False)]
        return qmc.discrepancy(np.array(rows))

    assert discrepancy("sobol") < discrepancy("random") / 4
    assert discrepancy("halton") < discrepancy("random") / 4


def test_sobol_points_on_a_line_are_equally_spaced():
    """The first 2^m points of the sequence are the multiples of 2^-m; a shift modulo 1 keeps their distances."""
    values = np.log(at(sample_points(RATES, 16), RATE)) / np.log(1000)
    np.testing.assert_allclose(np.diff(values), 1 / 16, atol=1e-4)


@pytest.mark.parametrize("method", ["sobol", "halton", "random"])
def test_more_samples_begin_with_the_same_points_and_another_seed_has_others(method):
    few, many, other = (sample_points(SPACE, n, method, seed) for n, seed in ((5, 0), (300, 0), (300, 1)))
    assert few.levels.items() <= many.levels.items()
    assert not many.levels.keys() & other.levels.keys()
    assert many.levels == sample_points(SPACE, 300, method, 0).levels


def test_labels_say_the_values_exactly_and_differ_where_points_are_near():
    near = sample_points({RATE: Uniform(1, 1 + 1e-6)}, 9)
    assert [float(label) for label in near.levels] == at(near, RATE)
    assert len(set(at(near, RATE))) == 9
    assert all(1 <= value <= 1 + 1e-6 for value in at(near, RATE))
    narrow = at(sample_points({RATE: Uniform(0.12341, 0.12349)}, 5), RATE)  # to 4 digits they would be outside
    assert all(0.12341 <= value <= 0.12349 for value in narrow)
    assert sample_points(SPACE, 1).name == "sample"
    [label] = sample_points(SPACE, 1).levels
    assert [word for word in label.split() if word.isidentifier()][:3] == ["learning_rate", "warmup_steps", "norm"]
    assert sample_points(RATES, 1).name == "learning_rate"


def test_a_space_of_few_points_is_given_whole_and_never_twice():
    axis = sample_points({"model.layers": Integer(1, 3), "model.norm": Choice(NORM.levels)}, 6, "random")
    assert len(axis.levels) == 6
    with pytest.raises(UserError, match="samples is 7; expected at most 6"):
        sample_points({"model.layers": Integer(1, 3), "model.norm": Choice(NORM.levels)}, 7)


def test_a_sampled_axis_is_an_axis_of_an_ordinary_study():
    axis = sample_points({(RATE, "optimizer.epsilon"): LogUniform(1e-9, 1e-2)}, 4)
    study = tiny(axes=(NORM, axis), claims=())
    assert len(study.trials()) == 2 * 4 * 3
    runs = [arm.run for arm in study.arms()]
    assert all(run.optimizer.learning_rate == run.optimizer.epsilon for run in runs)
    told = declaration(study)
    assert len({trial.fingerprint for trial in told.trials}) == 24
    assert told == declaration(study)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(2, 1), r"Uniform\(2, 1\); expected two numbers, the first below"),
        (lambda: LogUniform(0, 1), r"LogUniform\(0, 1\); expected two numbers above 0"),
        (lambda: LogUniform(1e-3, math.inf), "expected two numbers above 0"),
        (lambda: Integer(1.5, 2), "Integer: low is 1.5; expected a whole number"),
        (lambda: Integer(3, 2), "the first not above"),
        (lambda: Choice([]), "Choice has no values"),
        (
            lambda: Choice([BASELINE]),
            r"Choice: values\[0\] is Run\(.*expected a whole number, a number",
        ),
        (lambda: sample_points({}, 3), "the space to sample is empty"),
        (lambda: sample_points({RATE: 0.1}, 3), "is 0.1; expected Uniform, Integer or Choice"),
        (lambda: sample_points(RATES, 0), "samples is 0; expected at least 1"),
        (lambda: sample_points(RATES, 2, "sobel"), "method is 'sobel'; did you mean 'sobol'"),
        (lambda: sample_points(RATES, 2, seed=-1), "seed is -1; expected a whole number from 0"),
        (lambda: Halving(factor=1), "halving.factor is 1; expected a whole number of at least 2"),
        (lambda: Halving(first=0), "halving.first is 0"),
        (lambda: Halving(goal="low"), "goal is 'low'; did you mean 'lower'"),
        (lambda: tiny(halving=Halving(first=6)), r"halving.first is 6; expected a multiple .*\(3\) below .*\(6\)"),
        (lambda: tiny(halving=Halving(first=2)), "halving.first is 2"),
        (lambda: tiny(axes=(sample_points({"optimizer.rate": Uniform(0, 1)}, 2),)), "has no field 'rate'"),
        (lambda: search(rounds=0), "rounds is 0; expected at least 1"),
        (lambda: search(axes=(NORM,)), "a Search has axes .*; expected none"),
        (lambda: search(halving=Halving(2, 3)), "a Search has halving"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


# --- successive halving -------------------------------------------------------------------------------------


def halved(**changes):
    """9 rates × 2 norms at 2 seeds, stopped after 3 and 9 of 27 steps."""
    axes = (NORM, Axis(RATE, {str(i): i * 1e-3 for i in range(1, 10)}, name="rate"))
    training = dataclasses.replace(BASELINE.training, steps=27, evaluate_every=3)
    fields = {"axes": axes, "seeds": (3, 5), "claims": (), "halving": Halving(3, 3)}
    return tiny(**fields | {"baseline": BASELINE.replace(training=training)} | changes)


def by_rate(trial, steps):
    """Far from rate 4 is worse, under post-norm from rate 7; seeds differ by less."""
    best = {"pre": 4, "post": 7}[trial.arm.labels["norm"]]
    return 1 + abs(int(trial.arm.labels["rate"]) - best - 0.1) / steps + 0.001 * trial.seed


def test_the_rungs():
    assert Halving(3, 100).rungs(1000) == [100, 300, 900]
    assert Halving(3, 100).rungs(900) == [100, 300]
    assert Halving(2, 3).rungs(4) == [3]
    assert goal_of("validation_accuracy") == "higher"
    assert goal_of("validation_accuracy", "lower") == goal_of("surprise") == "lower"


def test_the_best_go_on_and_equals_in_the_order_of_their_declaration():
    scores = {"a": 2.0, "b": 1.0, "c": math.nan, "d": 1.0, "e": 3.0}
    assert rank(scores, "lower") == ["b", "d", "a", "e"]
    assert rank(scores, "higher") == ["e", "a", "b", "d"]
    assert Halving(2, 1).best(scores, "validation_loss") == ["a", "b", "d"]
    assert Halving(9, 1).best(scores, "validation_accuracy") == ["e"]
    assert Halving(5, 1).best(dict.fromkeys("xyz", 1.0), "validation_loss") == ["x"]


def test_halving_trains_the_best_of_each_program_to_the_end(monkeypatch, tmp_path):
    trained = pretend(monkeypatch, by_rate)
    study, execution = halved(), Execution(output=tmp_path)
    assert stages.remaining_work(StudyPlan(study), execution) == (36 + 12 + 4, 36 * 3 + 12 * 9 + 4 * 27)
    assert len(list(run(study, execution))) == len(trained) == 36 + 12 + 4
    rates = {
        (steps, norm): sorted({int(name.split("rate=")[1][0]) for name, n in trained if n == steps and norm in name})
        for steps in (9, 27)
        for norm in ("pre", "post")
    }
    assert rates == {(9, "pre"): [3, 4, 5], (9, "post"): [6, 7, 8], (27, "pre"): [4], (27, "post"): [7]}
    rows = Store(tmp_path).rows()
    assert set(rows) == {trial.name for trial in study.trials()}
    stops = [row.get("stopped_at") for row in rows.values()]
    assert [stops.count(step) for step in (3, 9, None)] == [24, 8, 4]
    for trial in study.trials():
        row = rows[trial.name]
        assert row["validation_loss"] == by_rate(trial, row.get("stopped_at") or 27)
        assert row["status"] == ("stopped" if row.get("stopped_at") else "done")
    assert list(run(study, execution)) == []
    assert stages.remaining_work(StudyPlan(study), execution) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("events", [1, 8, 11])
def test_a_halving_that_was_stopped_goes_on_and_ends_alike(monkeypatch, tmp_path, events):
    """Within the first rung, at its end, after it."""
    trained = pretend(monkeypatch, by_rate)
    study = halved(axes=(NORM, Axis(RATE, {str(i): i * 1e-3 for i in (4, 7)}, name="rate")), halving=Halving(2, 3))
    study = dataclasses.replace(study, seeds=(3,) if events < 8 else (3, 5))
    list(run(study, Execution(output=tmp_path / "whole")))
    whole = len(trained)
    begun = run(study, Execution(output=tmp_path / "cut"))
    for _ in range(events):
        next(begun)
    begun.close()
    found = status(Store(tmp_path / "cut"))
    assert sum(rung["done"] for rung in found["rungs"].values()) + found["done"] == events
    assert list(found["rungs"]) == (["3", "6"] if events > 8 else ["3"])
    before = len(trained)
    assert len(list(run(study, Execution(output=tmp_path / "cut")))) == whole - events
    assert len(trained) - before == whole - events
    assert results(Store(tmp_path / "cut").rows()) == results(Store(tmp_path / "whole").rows())


@pytest.mark.long
def test_remaining_work_counts_the_runs_that_the_next_launch_trains(monkeypatch, tmp_path):
    """Cut after any event; then with a failed run, whose retry changes no decision."""
    axes = (Axis(RATE, {str(i): i * 1e-3 for i in (4, 7)}, name="rate"),)
    study, execution = halved(axes=axes, seeds=(3,), halving=Halving(2, 3)), Execution

    def by_rate_alone(trial, steps):
        return int(trial.arm.labels["rate"]) / steps

    trained = pretend(monkeypatch, by_rate_alone)
    for events in range(7):
        cut = execution(output=tmp_path / str(events))
        begun = run(study, cut)
        for _ in range(min(events, 6)):
            next(begun, None)
        begun.close()
        runs, steps = stages.remaining_work(StudyPlan(study), cut)
        trained.clear()
        list(run(study, cut))
        assert (runs, steps) == (len(trained), sum(n for _, n in trained)), events
    broken = "rate=7,seed=3"
    trained = pretend(monkeypatch, by_rate_alone, failing=lambda trial: trial.name == broken)
    failed = execution(output=tmp_path / "failed", retry_failed=True)
    list(run(study, failed))
    assert stages.remaining_work(StudyPlan(study), failed) == (1, 3)
    assert stages.remaining_work(StudyPlan(study), dataclasses.replace(failed, retry_failed=False)) == (0, 0)
    trained = pretend(monkeypatch, by_rate_alone)
    list(run(study, failed, retry_failed=True))
    assert trained == [(broken, 3)]


def test_the_report_shows_stopped_runs_as_what_they_are(monkeypatch, tmp_path):
    pretend(monkeypatch, by_rate)
    study = halved()
    list(run(study, Execution(output=tmp_path / "s")))
    analysis = files.write(Store(tmp_path / "s"))
    assert (analysis.missing, len(analysis.stopped_runs), len(analysis.failed_runs)) == (0, 32, 0)
    whole = {(arm.labels["norm"], arm.labels["rate"]) for arm in analysis.arms if arm.estimate.n}
    assert whole == {("pre", "4"), ("post", "7")}
    assert analysis.limits[0] == RULE
    assert analysis.limits[1].startswith("32 of 36 runs were stopped after 3 or 9 steps")
    text = (tmp_path / "s" / "results.md").read_text()
    assert re.search(r"\| pre \| 1 \| – \| – \| – \| 0 \| 0 \| 3 \| 2\.03\d* \|", text)  # its loss then, 1 + 3.1 / 3
    assert "stopped at step" in text
    assert "4 of 36 runs, 2 paired seeds; 32 stopped early" in (tmp_path / "s" / "report.html").read_text()
    assert [store.root for store in index.stores(tmp_path)] == [tmp_path / "s"]
    rung = analyse(Store(tmp_path / "s" / "rungs" / "9"))
    assert (len(rung.arms), rung.missing) == (6, 0)


def test_a_report_without_halving_says_nothing_of_it(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(), lambda trial: 1.0))
    assert not analysis.stopped_runs
    assert not [line for line in analysis.limits if "stopped" in line]


def test_a_failed_run_puts_its_arm_behind_and_stays_failed(monkeypatch, tmp_path):
    broken = "norm=pre,rate=4,seed=5"
    pretend(monkeypatch, by_rate, failing=lambda trial: trial.name == broken)
    study, store = halved(), Store(tmp_path)
    list(run(study, Execution(output=tmp_path)))
    rows = store.rows()
    assert rows[broken]["status"] == "failed"
    assert rows["norm=pre,rate=4,seed=3"]["status"] == "stopped"
    assert rows["norm=pre,rate=5,seed=3"]["status"] == "done"


@pytest.mark.parametrize("name", ["rate", "width"])
def test_a_failed_run_that_is_trained_again_decides_as_if_it_had_not_failed(monkeypatch, tmp_path, name):
    """Files of programs come before that of stopped runs by name, or after it."""
    norm, rates = dataclasses.replace(NORM, name=f"{name} norm"), {str(i): i * 1e-3 for i in (4, 5, 7)}
    study = halved(axes=(norm, Axis(RATE, rates, name=name)), halving=Halving(2, 3))

    def loss(trial, steps):
        return int(trial.arm.labels[name]) / steps + 0.001 * trial.seed

    broken = f"{name} norm=pre,{name}=4,seed=5"
    whole, cut = Execution(output=tmp_path / "whole"), Execution(output=tmp_path / "cut")
    pretend(monkeypatch, loss)
    list(run(study, whole))
    pretend(monkeypatch, loss, failing=lambda trial: trial.name == broken)
    list(run(study, cut))
    failed = Store(tmp_path / "cut").rows()
    pretend(monkeypatch, loss)
    list(run(study, cut, retry_failed=True))
    rows = Store(tmp_path / "cut").rows()
    assert results(rows) == results(Store(tmp_path / "whole").rows())
    assert rung_verification.halving_differences(tmp_path / "cut", StudyPlan(study), rows) == {}
    moved = {trial for trial, row in failed.items() if row.status == "done"} - {
        trial for trial, row in rows.items() if row.status == "done"
    }
    assert moved
    assert moved <= {row.trial for row in superseded_rows(Store(tmp_path / "cut"))}
    assert list(run(study, cut, retry_failed=True)) == []


@pytest.mark.parametrize("name", ["rate", "width"])
def test_processes_with_and_without_retries_leave_the_results_of_one_without_failures(monkeypatch, tmp_path, name):
    """The process without retries is training an arm when the other one, after its retry, stops that arm."""
    norm, rates = dataclasses.replace(NORM, name=f"{name} norm"), {str(i): i * 1e-3 for i in (4, 5, 7)}
    study = halved(axes=(norm, Axis(RATE, rates, name=name)), halving=Halving(2, 3))
    whole, shared = Execution(output=tmp_path / "whole"), Execution(output=tmp_path / "shared")
    stopped, started = tmp_path / "shared" / "groups" / "stopped-6.parquet", threading.Event()
    stopped_by_retry, trials_of_5 = threading.Event(), {f"{name} norm=pre,{name}=5,seed={seed}" for seed in (3, 5)}
    monkeypatch.setattr(launch, "POLL", 0.02)

    def loss(trial, steps):
        if steps == 27 and trial.name in trials_of_5 and not started.is_set():
            started.set()
            assert stopped_by_retry.wait(60)
        return int(trial.arm.labels[name]) / steps + 0.001 * trial.seed

    def fails(trial):
        return trial.name == f"{name} norm=pre,{name}=4,seed=5" and not started.is_set()

    with ThreadPoolExecutor() as pool:
        pretend(monkeypatch, loss, failing=fails)
        without = pool.submit(lambda: list(run(study, shared)))
        assert started.wait(60)
        with_retries = pool.submit(lambda: list(run(study, shared, retry_failed=True)))
        while not (
            stopped.exists() and trials_of_5 <= {row.trial for row in Store(shared.output).rows_of_table(stopped)}
        ):
            assert not with_retries.done()
            time.sleep(0.01)
        stopped_by_retry.set()
        without.result(60)
        with_retries.result(60)
    pretend(monkeypatch, loss)
    list(run(study, whole))
    rows = Store(shared.output).rows()
    assert results(rows) == results(Store(whole.output).rows())
    assert rung_verification.halving_differences(shared.output, StudyPlan(study), rows) == {}
    assert columns.statuses(Store(shared.output)) == {trial: row.status for trial, row in rows.items()}
    assert not analyse(Store(shared.output)).disagreements


@pytest.mark.parametrize("file", ["before", "zzz"])
def test_a_stopped_trial_counts_as_stopped_whatever_the_order_of_files(monkeypatch, tmp_path, file):
    """As a process leaves it that ends the training of an arm after another process has stopped the arm."""
    pretend(monkeypatch, by_rate)
    list(run(halved(), Execution(output=tmp_path)))
    store = Store(tmp_path)
    trial, row = next((name, row) for name, row in store.rows().items() if row.stopped_at == 3)
    write_table(tmp_path / "groups" / f"{file}.parquet", [dataclasses.replace(row, status="done", stopped_at=None)])
    assert store.rows()[trial].status == "stopped" == columns.statuses(store)[trial]
    assert not analyse(Store(tmp_path)).disagreements


def test_a_run_that_fails_again_at_its_rung_is_not_trained_to_the_end(monkeypatch, tmp_path):
    broken = "norm=pre,rate=4,seed=5"
    trained = pretend(monkeypatch, by_rate, failing=lambda trial: trial.name == broken)
    list(run(halved(), Execution(output=tmp_path)))
    before = len(trained)
    list(run(halved(), Execution(output=tmp_path), retry_failed=True))
    assert trained[before:] == [(broken, 3)]
    assert Store(tmp_path).rows()[broken].status == "failed"


@pytest.mark.parametrize("retry_failed", [True, False])
def test_a_retry_that_was_cut_before_its_rung_was_decided_again_decides_at_the_next_launch(
    monkeypatch, tmp_path, retry_failed
):
    """Post-norm has one arm, so that no arm stops after the retry."""
    broken = "norm=post,rate=7,seed=5"
    axes = (NORM, Axis(RATE, {"7": 7e-3}, name="rate"))
    pretend(monkeypatch, by_rate, failing=lambda trial: trial.name == broken)
    list(run(halved(axes=axes), Execution(output=tmp_path / "cut")))
    pretend(monkeypatch, by_rate)
    begun = run(halved(axes=axes), Execution(output=tmp_path / "cut"), retry_failed=True)
    assert next(begun).row.trial == broken
    begun.close()
    list(run(halved(axes=axes), Execution(output=tmp_path / "cut"), retry_failed=retry_failed))
    list(run(halved(axes=axes), Execution(output=tmp_path / "whole")))
    assert results(Store(tmp_path / "cut").rows()) == results(Store(tmp_path / "whole").rows())


def test_results_of_former_code_at_a_rung_are_refused_or_kept_as_such(monkeypatch, tmp_path):
    def former(params, run):
        return {"number": 1.0}

    def present(params, run):
        return {"number": 2.0}

    pretend(monkeypatch, by_rate)
    axes = (NORM, Axis(RATE, {str(i): i * 1e-3 for i in (4, 7, 8)}, name="rate"))
    before, after = (halved(axes=axes, measure=function) for function in (former, present))
    begun = run(before, Execution(output=tmp_path))
    for _ in range(12):
        next(begun)
    begun.close()
    former_prints = Store(tmp_path).declaration.fingerprints
    with pytest.raises(UserError, match=r"holds 12 results of 6 arms made by code that has changed"):
        list(run(after, Execution(output=tmp_path)))
    list(run(after, Execution(output=tmp_path), on_code_change="keep"))
    store = Store(tmp_path)
    assert [(change.decision, change.results) for change in store.declaration.code_changes] == [("keep", 12)]
    assert analyse(store).missing == 0
    for trial, row in store.rows().items():
        known = former_prints if row.status == "stopped" else store.declaration.fingerprints
        assert row.fingerprint == known[trial]
    assert sum("changed" in limit for limit in analyse(store).limits) == 1


def test_a_rung_that_was_ended_by_a_failure_decides_nothing(monkeypatch, tmp_path):
    trained = pretend(monkeypatch, by_rate, failing=lambda trial: trial.name == "norm=pre,rate=4,seed=5")
    list(run(halved(), Execution(output=tmp_path), on_error="stop"))
    assert Store(tmp_path).rows() == {}
    assert {steps for _, steps in trained} == {3}


def test_another_rule_among_other_runs_is_another_study(monkeypatch, tmp_path):
    pretend(monkeypatch, by_rate)
    list(run(halved(), Execution(output=tmp_path)))
    for other in (halved(halving=Halving(2, 3)), halved(halving=None), halved(seeds=(3, 5, 6))):
        with pytest.raises(UserError, match=r"another recipe.*\n.*halving"):
            list(run(other, Execution(output=tmp_path)))
    assert "until" not in json.dumps(plain(declaration(halved()))["recipes"])
    assert "halving" not in json.dumps(plain(declaration(halved(halving=None))))


def test_some_trials_alone_are_refused_where_others_decide_about_them(tmp_path):
    with pytest.raises(UserError, match="study 'tiny' is trained in stages"):
        list(run(halved(), Execution(output=tmp_path), only=["norm=pre,rate=4,seed=5"]))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def staged(**changes):
    return tiny(axes=(Axis(RATE, {"low": 1e-3, "high": 1e-2}, name="rate"),), seeds=(0,), claims=(), **changes)


@pytest.mark.slow
def test_an_arm_that_goes_on_repeats_what_it_did_to_the_rung(programs, tmp_path):
    list(run(staged(halving=Halving(2, 3)), Execution(output=tmp_path, devices=1)))
    rows, rung = Store(tmp_path).rows(), Store(tmp_path / "rungs" / "3").rows()
    [best] = [name for name, row in rows.items() if row["status"] == "done"]
    [other] = [name for name, row in rows.items() if row["status"] == "stopped"]
    assert rung[best]["validation_loss"] < rung[other]["validation_loss"]
    assert rows[other]["validation_loss"] == rung[other]["validation_loss"] == rows[other]["validation_loss_curve"][-1]
    for name, n in (("train_loss_curve", 3), ("validation_loss_curve", 2), ("evaluated_at", 2)):
        assert rung[best][name] == rows[best][name][:n]
        assert len(rows[best][name]) > len(rung[best][name]) == n
    assert rung[other]["evaluated_at"] == [0, 3]


@pytest.mark.slow
def test_what_halving_finishes_is_to_the_bit_what_runs_without_it_give(programs, tmp_path):
    for name, study in (("plain", staged()), ("staged", staged(halving=Halving(2, 3)))):
        list(run(study, Execution(output=tmp_path / name, devices=1)))
    whole, rows = results(Store(tmp_path / "plain").rows()), results(Store(tmp_path / "staged").rows())
    [best] = [name for name, row in rows.items() if row["status"] == "done"]
    own = {"fingerprint"}  # the halving is part of the recipe
    assert {name: rows[best][name] for name in whole[best] if name not in own} == {
        name: whole[best][name] for name in whole[best] if name not in own
    }


# --- rounds of suggestions ----------------------------------------------------------------------------------


def search(**changes):
    fields = {"name": "search", "question": "Which?", "baseline": BASELINE, "space": SPACE, "seeds": (7, 8)}
    return Search(**fields | {"rounds": 4, "samples": 5} | changes)


def remaining(study, execution):
    """The numbers of runs and steps that are left in a folder."""
    return stages.remaining_work(stages.plan_of(study, execution), execution)


def valley(trial, steps):
    """Lowest at rate 1e-2 with pre-norm."""
    run = trial.run
    worse = 0.0 if run.model.norm == NORM.levels["pre"] else 0.5
    return 1 + math.log10(run.optimizer.learning_rate / 1e-2) ** 2 + worse + 0.01 * trial.seed


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna")


def test_rounds_of_suggestions_come_nearer(optuna, monkeypatch, tmp_path):
    trained = pretend(monkeypatch, valley)
    study = search(rounds=4, samples=10)
    assert remaining(study, Execution(output=tmp_path)) == (80, 480)
    list(run(study, Execution(output=tmp_path)))
    assert len(trained) == len({name for name, _ in trained}) == 4 * 10 * 2
    rows = Store(tmp_path).rows()
    losses = [rows[name]["validation_loss"] for name, _ in trained]
    assert np.mean(losses[-40:]) < np.mean(losses[:20]) - 0.3
    assert remaining(study, Execution(output=tmp_path)) == (0, 0)
    assert len(analyse(Store(tmp_path)).arms) == 40


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("events", [4, 7])
def test_a_search_that_was_stopped_goes_on_with_the_same_suggestions(optuna, monkeypatch, tmp_path, events):
    pretend(monkeypatch, valley)
    study = search(rounds=3, samples=4, seeds=(7,))
    list(run(study, Execution(output=tmp_path / "whole")))
    begun = run(study, Execution(output=tmp_path / "cut"))
    for _ in range(events):
        next(begun)
    begun.close()
    (tmp_path / "cut" / "suggestions.jsonl").unlink()  # it can be computed again
    assert len(list(run(study, Execution(output=tmp_path / "cut")))) == 12 - events
    assert results(Store(tmp_path / "cut").rows()) == results(Store(tmp_path / "whole").rows())


def test_what_is_written_down_is_followed_whatever_the_sampler_would_say(optuna, monkeypatch, tmp_path):
    pretend(monkeypatch, valley)
    list(run(search(rounds=1), Execution(output=tmp_path)))
    first = set(Store(tmp_path).rows())
    list(run(search(rounds=2, search_seed=1), Execution(output=tmp_path)))
    assert first < set(Store(tmp_path).rows())
    with pytest.raises(UserError, match="that are not in the search's space"):
        list(run(search(space=RATES), Execution(output=tmp_path)))
    other = {path.replace("learning_rate", "epsilon"): one for path, one in SPACE.items()}
    with pytest.raises(UserError, match="that are not in the search's space"):
        list(run(search(space=other), Execution(output=tmp_path)))
    with pytest.raises(UserError, match="that are not in the search's space"):
        list(run(search(space=SPACE | {RATE: Uniform(10, 11)}), Execution(output=tmp_path)))


def test_suggestions_depend_on_scores_seed_goal_and_failures(optuna):
    study = search(samples=4, seeds=(0,))
    rounds, seen = [suggest(study, [], {}), suggest(study, [[]] * 1, {}), suggest(search(search_seed=9), [], {})], []
    assert len({str(points) for points in rounds}) == 3
    points = sorted({point for own in rounds for point in own})
    for sign in (1, -1, math.nan):
        arms = study.of(points).arms()
        rows = {
            f"{arm.name},seed=0": {"status": "failed"}
            if math.isnan(sign)
            else {"status": "done", "validation_loss": sign * math.log(get_at(arm.run, RATE))}
            | {"initial_validation_loss": 99.0}
            for arm in arms
        }
        seen.append(suggest(study, [points], rows))
        assert seen[-1] == suggest(study, [points], rows)
        assert not set(seen[-1]) & set(points)
    assert len({str(one) for one in seen}) == 3
    turned = dataclasses.replace(study, goal="higher")
    rows = {name: row | {"validation_loss": 0.0} for name, row in rows.items()}
    assert suggest(turned, [points], rows)


def test_a_space_that_is_used_up_ends_the_search(optuna, monkeypatch, tmp_path):
    trained = pretend(monkeypatch, valley)
    few = search(space={"model.norm": Choice(NORM.levels)}, sampler=lambda seed: optuna.samplers.RandomSampler(seed))
    list(run(dataclasses.replace(few, rounds=9, samples=6), Execution(output=tmp_path)))
    assert len(trained) == 2 * 2


def test_a_search_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UserError, match=r"a Search needs optuna .*pip install 'flaxformer\[search\]'"):
        suggest(search(), [], {})


# --- what was tuned -----------------------------------------------------------------------------------------


def test_tuned_is_the_best_mean_of_the_arms_that_are_meant(tmp_path):
    fill(tmp_path, tiny(), lambda trial: {"low": 2.0, "high": 1.0}[trial.arm.labels["rate"]] * (1 + trial.seed))
    assert tuned_value(tmp_path, RATE, seeds=(3, 4)) == 1e-2
    assert tuned_value(tmp_path, RATE, seeds=(3, 4), goal="higher") == 1e-3
    assert tuned_value(tmp_path, RATE, seeds=(3,), where={"norm": "post", "rate": "low"}) == 1e-3


def test_tuned_does_not_see_stopped_arms(monkeypatch, tmp_path):
    pretend(monkeypatch, lambda trial, steps: by_rate(trial, steps) + steps)  # it gets worse: stopped ones look better
    list(run(halved(), Execution(output=tmp_path)))
    assert tuned_value(tmp_path, RATE, seeds=(0,), where={"norm": "pre"}) == 4e-3
    assert tuned_value(tmp_path, RATE, seeds=(0,), where={"norm": "post"}) == 7e-3
    with pytest.raises(UserError, match=r"has no arm with .* that was trained to the end"):
        tuned_value(tmp_path, RATE, seeds=(0,), where={"rate": "1"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (2, 3)}, r"seeds \[2\] are also seeds of the tuning"),
        ({"path": "optimizer.rate"}, "'optimizer.rate' is not a field of the runs"),
        ({"path": "model"}, "expected the path of a number or a text"),
        ({"where": {"norms": "pre"}}, "where names axis 'norms'; did you mean 'norm'"),
        ({"where": {"norm": "per"}}, "where names norm 'per'; did you mean 'pre'"),
        ({"goal": "best"}, "goal is 'best'"),
    ],
)
def test_what_is_wrong_with_tuned_is_named(tmp_path, changes, message):
    fill(tmp_path, tiny(), lambda trial: 1.0)
    with pytest.raises(UserError, match=message):
        tuned_value(tmp_path, **{"path": RATE, "seeds": (5,)} | changes)


def test_an_unfinished_tuning_is_refused(monkeypatch, tmp_path):
    pretend(monkeypatch, lambda trial, steps: 1.0)
    begun = run(tiny(), Execution(output=tmp_path))
    next(begun)
    begun.close()
    with pytest.raises(UserError, match="misses 11 of its runs; expected a finished study"):
        tuned_value(tmp_path, RATE, seeds=(5,))


# --- the command --------------------------------------------------------------------------------------------

FILE = '''"""A halving for the command line."""

from flaxformer.study import Halving, LogUniform, Study, sample_points
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training

study = Study(
    name="rates",
    question="Which rate?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        training=Training(steps=6, evaluate_every=3),
    ),
    axes=[sample_points({"optimizer.learning_rate": LogUniform(1e-4, 1e-1)}, samples=8)],
    seeds=[1000],
    halving=Halving(factor=4, first=3),
)
'''


def test_the_command_runs_a_halving(monkeypatch, tmp_path, capsys):
    pretend(monkeypatch, lambda trial, steps: trial.run.optimizer.learning_rate)
    file = tmp_path / "rates.py"
    file.write_text(FILE)
    assert main(["run", str(file), "--output", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "One arm in 4 of each program goes on after 3 steps: 10 trainings to do, of together 36 steps" in said
    assert "6 of 8 runs were stopped after 3 steps" in said
    assert len(Store(tmp_path / "out").rows()) == 8


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["halving", "search"])
def test_two_workers_in_one_folder_train_every_stage_once(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(launch, "POLL", 0.02)
    if kind == "search":
        pytest.importorskip("optuna")
    trained = pretend(monkeypatch, by_rate if kind == "halving" else valley)
    study = halved() if kind == "halving" else search(samples=3)
    list(run(study, Execution(output=tmp_path / "one")))
    alone, trained[:] = sorted(trained), []
    start = threading.Barrier(2)

    def work(_):
        start.wait()
        return len(list(run(study, Execution(output=tmp_path / "two"))))

    with ThreadPoolExecutor(2) as pool:
        assert sum(1 for _ in pool.map(work, range(2))) == 2
    assert sorted(trained) == alone
    assert results(Store(tmp_path / "two").rows()) == results(Store(tmp_path / "one").rows())


# --- the examples -------------------------------------------------------------------------------------------


def test_the_examples_report_on_seeds_that_tuned_nothing(monkeypatch, tmp_path):
    folder = Path(__file__).parents[2] / "experiments" / "studies"
    tuning = load_study(folder / "rates_of_norms.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"runs/rates_of_norms holds no study"):
        load_study(folder / "norms_at_their_rates.py")
    labels = list(tuning.axes[1].levels)
    best = {"pre": labels[3], "post": labels[7]}
    fill(
        Path("runs/rates_of_norms"),
        tuning,
        lambda trial: abs(
            labels.index(trial.arm.labels["learning_rate"]) - labels.index(best[trial.arm.labels["norm"]])
        ),
    )
    study = load_study(folder / "norms_at_their_rates.py")
    assert not set(study.seeds) & set(tuning.seeds)
    rates = {arm.labels["norm"]: arm.run.optimizer.learning_rate for arm in study.arms()}
    assert rates == {norm: float(label) for norm, label in best.items()}
    runs = [arm.run for arm in (*study.arms(), *tuning.arms())]
    same = {run.replace(optimizer=tuning.baseline.optimizer, model=tuning.baseline.model) for run in runs}
    assert len(same) == 1


def test_a_level_keeps_the_baselines_value_where_it_names_none():
    axis = Points("change", {"none": {}, "rate": {RATE: 1e-2}, "both": {RATE: 1e-2, "training.steps": 9}})
    arms = {arm.labels["change"]: arm.run for arm in tiny(axes=(axis,), claims=()).arms()}
    assert axis.baseline_label(tiny().baseline) == "none"
    assert axis.coordinates() == {}
    assert arms["none"] == tiny().baseline
    assert (arms["rate"].optimizer.learning_rate, arms["rate"].training.steps) == (1e-2, arms["none"].training.steps)
    assert arms["both"].training.steps == 9
