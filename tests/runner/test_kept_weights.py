"""Kept weights give the evaluations of their rows, whichever are kept and however the runs were trained."""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import shutil

import jax
import numpy as np
import polars as pl
import pytest
from study.tiny import BASELINE, FILE, RATE, cache_folder, kept_programs, run, tiny

import flaxformer
from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.config import source_of
from flaxformer.checkpoint.steps import read_marker
from flaxformer.cli import main
from flaxformer.core.paths import replace_at
from flaxformer.runner import kept_weights, partial_runs
from flaxformer.runner.events import Finished, Message, Progressed
from flaxformer.runner.execution import Execution
from flaxformer.store import places
from flaxformer.study import Halving
from flaxformer.system.errors import UserError
from flaxformer.training import evaluate

RUN = replace_at(BASELINE, {"training.steps": 12, "training.ema": 0.9, "training.evaluate_every": 4})
FAST = {"low": 1e-3, "high": 1.0}
STUDY = tiny(baseline=RUN, axes=[type(RATE)("optimizer.learning_rate", FAST, name="rate")], claims=(), seeds=[3, 5])


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def train(root, study=STUDY, **execution):
    """Messages of training a study in a folder."""
    events = run(study, Execution(**({"output": root, "devices": 1, "chunk_steps": 2} | execution)))
    return [event.text for event in events if isinstance(event, Message)]


@functools.partial(jax.jit, static_argnums=1)
def evaluated(params, own):
    return evaluate(params, own, own.task.load())


def steps_of(found, labels, seed):
    return Checkpoints(found.weights_folder(labels, seed)).steps()


def check_trials(root):
    """Check that all kept weights of a study give the numbers of its rows; returns the kept steps by trial."""
    found, kept = flaxformer.results(root), {}
    for row in found.table.iter_rows(named=True):
        labels = {"rate": row["rate"]}
        kept[row["trial"]] = steps_of(found, labels, row["seed"])
        for step in kept[row["trial"]]:
            params, own = found.weights(labels, row["seed"], step)
            assert (own.seed, own.optimizer.learning_rate) == (row["seed"], FAST[row["rate"]])
            for name, value in evaluated(params, own).items():
                expected = row[f"{name}_curve"][row["evaluated_at"].index(step)]
                np.testing.assert_allclose(float(value), expected, rtol=1e-5, atol=1e-6)
    return kept


@pytest.mark.long
@pytest.mark.every(10)
@pytest.mark.parametrize("how", [{}, {"group_size": 3}, {"layout": "scanned"}], ids=str)
@pytest.mark.parametrize("which", ["final", "best", "all"])
def test_kept_weights_give_the_evaluations_of_the_row(tmp_path, which, how):
    assert train(tmp_path, keep=which, **how) == []
    kept = check_trials(tmp_path)
    assert len(kept) == 4
    curves = {row["trial"]: row for row in flaxformer.results(tmp_path).table.iter_rows(named=True)}
    best = {name: int(np.argmin(row["validation_loss_curve"])) * 4 for name, row in curves.items()}
    assert set(best.values()) > {12}  # some are best at the end, and some are not
    expected = {"final": lambda _: [12], "all": lambda _: [0, 4, 8, 12], "best": lambda name: [best[name]]}[which]
    assert kept == {name: expected(name) for name in curves}


@pytest.mark.slow
def test_the_best_is_the_highest_where_the_goal_is_higher(tmp_path):
    train(tmp_path, dataclasses.replace(STUDY, metric="validation_accuracy", keep="best"))
    rows = flaxformer.results(tmp_path).table.iter_rows(named=True)
    best = {row["trial"]: [int(np.argmax(row["validation_accuracy_curve"])) * 4] for row in rows}
    assert check_trials(tmp_path) == best


NEVER, LATE, ONCE_INFINITE = [math.nan] * 4, [math.nan, math.inf, 3.0, math.nan], [2.0, -math.inf, 1.0, 1.5]


@pytest.mark.parametrize("known", range(4))
@pytest.mark.parametrize(("scores", "best"), [(NEVER, None), (LATE, 2), (ONCE_INFINITE, 2)], ids=str)
def test_the_best_is_an_evaluation_with_a_finite_metric(tmp_path, scores, best, known):
    """Also after a run was resumed, when some evaluations are known already."""
    keep, said, [trial, *_] = kept_weights.Keep("best", "validation_loss", True, None), [], STUDY.trials()
    evaluations = [{"validation_loss": np.array([score])} for score in scores]
    for first, last in ((0, known), (known, len(scores))):
        kept = kept_weights.KeptWeights(tmp_path, [trial], keep, 12, said.append, collections.defaultdict(dict))
        kept.resume(evaluations[:first], interval=4)
        for number in range(first, last):
            kept.save(4 * number, evaluations[number], lambda number=number: {"w": np.full((1, 2), number)})
        kept.wait()
    assert Checkpoints(places.weights_folder(tmp_path, trial.name)).steps() == ([] if best is None else [4 * best])
    text = f"{trial.name}: no weights are kept, since no evaluation has a finite validation loss"
    assert said == [text] * (best is None)


@pytest.mark.long
def test_no_weights_are_kept_unless_asked_for(tmp_path):
    train(tmp_path)
    assert not (tmp_path / "weights").exists()
    with pytest.raises(UserError, match="has no weights of rate=low,seed=3; expected a study that was run with --keep"):
        flaxformer.results(tmp_path).weights({"rate": "low"})


@pytest.mark.slow
def test_finished_runs_without_weights_are_reported(tmp_path):
    train(tmp_path)
    text = "4 finished runs without kept weights are not trained again; give another --output to train all with --keep"
    assert train(tmp_path, keep="final") == [text]
    more = dataclasses.replace(STUDY, seeds=[3, 5, 7])
    assert train(tmp_path, more, keep="final") == [text]
    assert len(list((tmp_path / "weights").iterdir())) == 2
    assert train(tmp_path, more) == []


def digests(root):
    """Digests of the arrays of all kept weights."""
    folders = [path.parent for path in root.rglob("published.json")]
    return {str(path.relative_to(root)): read_marker(path.parent, int(path.name)).digests for path in folders}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["final", "best", "all"])
@pytest.mark.parametrize("stop_at", [2, 4, 6, 10])
def test_an_interrupted_study_keeps_the_same_weights(tmp_path, monkeypatch, which, stop_at):
    monkeypatch.setattr(partial_runs, "MIN_SECONDS_TO_SAVE", 0.0)
    train(tmp_path / "whole", keep=which)
    steps = 0
    execution = Execution(output=tmp_path / "parts", devices=1, chunk_steps=2, keep=which)
    with contextlib.closing(run(STUDY, execution)) as events:
        for event in events:
            steps += event.steps if isinstance(event, Progressed) else 0
            if steps >= stop_at:
                break
    train(tmp_path / "parts", keep=which)
    assert check_trials(tmp_path / "parts") == check_trials(tmp_path / "whole")
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


@pytest.mark.slow
def test_weights_before_a_resumed_step_are_reported_as_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_runs, "MIN_SECONDS_TO_SAVE", 0.0)
    steps = 0
    with contextlib.closing(run(STUDY, Execution(output=tmp_path, devices=1, chunk_steps=2))) as events:
        for event in events:
            steps += event.steps if isinstance(event, Progressed) else 0
            if steps >= 6:
                break
    messages = train(tmp_path, keep="all")
    assert any("rate=low,seed=3: resumed; the weights of steps 0, 4 were not kept before" in text for text in messages)
    assert check_trials(tmp_path)["rate=low,seed=3"] == [8, 12]


@pytest.mark.slow
def test_weights_of_another_run_are_set_aside(tmp_path):
    train(tmp_path, keep="final")
    former = flaxformer.results(tmp_path).weights_folder({"rate": "low"}, 3)
    for path in tmp_path.iterdir():
        if path.name != "weights":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    changed = dataclasses.replace(STUDY, baseline=replace_at(RUN, {"optimizer.weight_decay": 0.5}))
    train(tmp_path, changed, keep="final")
    assert (former.parent / f"{former.name}.superseded" / "12").is_dir()
    params, own = flaxformer.results(tmp_path).weights({"rate": "low"}, 3)
    assert own.optimizer.weight_decay == 0.5
    row = flaxformer.results(tmp_path).table.row(by_predicate=pl.col("trial") == "rate=low,seed=3", named=True)
    assert float(evaluated(params, own)["validation_loss"]) == pytest.approx(row["validation_loss"])


def test_a_failed_save_is_reported_and_the_results_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(flaxformer.system.files, "free_bytes", lambda folder: 0)
    messages = train(tmp_path, keep="final")
    assert sum("was not saved" in text and "the disk is full" in text for text in messages) == 4
    assert flaxformer.results(tmp_path).table.height == 4


def test_damaged_weights_are_refused(tmp_path):
    train(tmp_path, keep="final")
    found = flaxformer.results(tmp_path)
    for path in (found.weights_folder({"rate": "high"}) / "12" / "state").rglob("*"):
        if path.is_file() and path.stat().st_size:
            path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    with pytest.raises(UserError, match="holds no checkpoint that can be read"):
        found.weights({"rate": "high"})


@pytest.mark.every(4, "long")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"rate": "mid"}, 3), r"0 arms have the labels {'rate': 'mid'}; expected one \(rate: low and high\)"),
        (({"rat": "low"}, 3), r"0 arms have the labels {'rat': 'low'}; expected one"),
        (({}, 3), r"no arm is given and the study has 2; expected one, such as rate=low \(rate: low and high\)"),
        (({"rate": "low"}, 4), "seed is 4; expected one of 3 and 5"),
        (({"rate": "low"}, 3, 5), "step is 5; expected one of the steps in .*: 12"),
    ],
)
def test_weights_that_do_not_exist_are_refused(tmp_path_factory, arguments, message):
    root = tmp_path_factory.getbasetemp() / "refused"
    train(root, keep="final")
    with pytest.raises(UserError, match=message):
        flaxformer.results(root).weights(*arguments)


def test_an_unknown_rule_is_refused():
    message = "keep is 'last'; .* final, best, all"
    with pytest.raises(UserError, match=message):
        Execution(keep="last")
    with pytest.raises(UserError, match=message):
        tiny(keep="last")


@pytest.mark.slow
def test_halving_keeps_the_weights_of_the_arms_that_reach_the_end(tmp_path):
    study = dataclasses.replace(STUDY, halving=Halving(factor=2, first=4))
    train(tmp_path, study, keep="final")
    rows = flaxformer.results(tmp_path).table
    finished = rows.filter(rows["status"] != "stopped")
    assert 0 < finished.height < rows.height
    assert len(list((tmp_path / "weights").iterdir())) == finished.height
    assert not list((tmp_path / "rungs").rglob("weights"))


@pytest.mark.slow
def test_generate_continues_a_prompt_with_kept_weights_of_a_user_class(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = "\n\nclass Own(Dense):\n    pass\n"
    text = FILE.replace("from flaxformer.tasks import Copy", "from flaxformer.tasks import StandardLibrary")
    text = text.replace("Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2)", "StandardLibrary(length=8)")
    text = text.replace("\n\nstudy", f"{own}\n\nstudy").replace("Dense(d_ff", "Own(d_ff").replace("vocabulary=6, ", "")
    (tmp_path / "own.py").write_text(text)
    assert main(["run", "own.py", "--seeds", "1", "--keep", "best", "--devices", "1"]) == 0
    folder = flaxformer.results("runs/tiny").weights_folder({"norm": "pre", "rate": "low"})
    assert source_of(folder, "runs/tiny").read_text() == text
    os.remove("own.py")
    capsys.readouterr()
    assert main(["generate", str(folder), "--prompt", "def", "--tokens", "5", "--trust-code"]) == 0
    assert capsys.readouterr().out.startswith("def")


@pytest.mark.slow
def test_finished_events_come_after_their_weights(tmp_path):
    for event in run(STUDY, Execution(output=tmp_path, devices=1, keep="final")):
        if isinstance(event, Finished):
            labels, seed = {"rate": event.row.labels["rate"]}, event.row.seed
            assert steps_of(flaxformer.results(tmp_path), labels, seed) == [12]
