"""The rows of a study are the same however its work is divided, and runs fail separately."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from study.tiny import BASELINE, NORM, RATE, cache_folder, kept_programs, results, run, tiny

from flaxformer.components import LayerNorm, RMSNorm
from flaxformer.core.paths import replace_at
from flaxformer.runner.events import Compiled, Finished
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import missing
from flaxformer.runner.program import Program
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store
from flaxformer.study import Axis
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.training import start

STUDY = tiny()
TRIALS = {trial.name: trial for trial in STUDY.trials()}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def train(study, output, retry_failed=False, **execution):
    """Events of a study, and its rows."""
    execution = Execution(output=output, **({"devices": 1, "chunk_steps": 3} | execution))
    events = list(run(study, execution, retry_failed=retry_failed))
    return events, Store(output).rows()


def finished(trials, **execution):
    """Rows of trials of one program, without a folder."""
    [group] = groups(trials)
    events = execute([group], Execution(**({"devices": 1, "chunk_steps": 3} | execution)))
    return {event.row["trial"]: event.row for event in events if isinstance(event, Finished)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole study's rows, on one device and on two."""
    return functools.cache(lambda devices: train(STUDY, tmp_path_factory.mktemp("whole"), devices=devices)[1])


@pytest.mark.slow
def test_the_number_of_devices_changes_no_bit(whole):
    assert results(whole(1)) == results(whole(2))
    assert set(whole(1)) == set(TRIALS)


@pytest.mark.long
def test_a_row_has_identity_labels_and_curves(whole):
    for name, row in whole(1).items():
        assert (row["trial"], row["seed"], row["status"], row["diverged_at"]) == (name, TRIALS[name].seed, "done", None)
        assert {axis: row[axis] for axis in ("norm", "rate")} == TRIALS[name].arm.labels
        assert row["evaluated_at"] == [0, 3, 6]
        assert row["validation_loss_curve"][0] == row["initial_validation_loss"]
        assert row["validation_loss_curve"][-1] == row["validation_loss"] != row["initial_validation_loss"]
        assert (len(row["validation_loss_curve"]), len(row["train_loss_curve"])) == (3, 6)


@pytest.mark.long
def test_runs_that_differ_give_results_that_differ(whole):
    assert len({row["validation_loss"] for row in whole(1).values()}) == len(TRIALS)


# --- how the work is cut ---------------------------------------------------------------------------------

UNCUT = tiny(baseline=replace_at(BASELINE, {"training.evaluate_every": None}), claims=(), seeds=range(1))
PRE = [trial for trial in STUDY.trials() if trial.arm.labels["norm"] == "pre"]


@pytest.mark.every(2, "long")
@pytest.mark.every(4)
@pytest.mark.parametrize("chunk_steps", [1, 2, 3, 6, 50])
def test_the_length_of_a_chunk_changes_no_bit(whole, chunk_steps):
    trials = [trial for trial in UNCUT.trials() if trial.arm.labels["norm"] == "pre"]
    rows = finished(trials, chunk_steps=chunk_steps)
    assert {row["chunk_steps"] for row in rows.values()} == {min(chunk_steps, 6)}
    for name, row in rows.items():
        for key in ("train_loss_curve", "validation_loss", "validation_accuracy", "initial_validation_loss"):
            assert row[key] == whole(1)[name][key], (name, key)


@pytest.fixture(scope="module")
def pairs():
    """The rows of the pre-norm runs, trained two at a time."""
    return finished(PRE, group_size=2)


@pytest.mark.slow
def test_runs_trained_together_are_the_same_up_to_rounding(whole, pairs):
    assert list(pairs) == [trial.name for trial in PRE]
    for name, row in pairs.items():
        assert row["group_size"] == 2
        for key in ("validation_loss_curve", "train_loss_curve"):
            np.testing.assert_allclose(row[key], whole(1)[name][key], rtol=1e-4)


@pytest.mark.slow
def test_a_batch_that_is_not_full_gives_one_row_per_trial(pairs):
    rows = finished(PRE[:3], group_size=2)
    assert results(rows) == {name: row for name, row in results(pairs).items() if name in rows}
    assert list(rows) == [trial.name for trial in PRE[:3]]


# --- runs that diverge -----------------------------------------------------------------------------------


def neighbours(rate, group_size):
    """A good run and, in the same batch, one at this learning rate."""
    axis = Axis("optimizer.learning_rate", {"good": 1e-3, "other": rate}, name="rate")
    trials = tiny(axes=(axis,), claims=(), seeds=range(2)).trials()
    order = [trials[0], trials[2], trials[3], trials[1]]
    rows = finished(order, group_size=group_size)
    return [results(rows)[trial.name] for trial in order]


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("rate", [1e30, 1e38])
def test_a_run_that_diverges_is_recorded_and_its_neighbours_are_not_touched(rate, group_size):
    good, bad, bad_too, good_too = neighbours(rate, group_size)
    harmless = neighbours(2e-3, group_size)
    assert [row["status"] for row in harmless] == ["done"] * 4
    assert [good, good_too] == [harmless[0], harmless[3]]
    for row in (bad, bad_too):
        losses = row["train_loss_curve"]
        assert (row["status"], row["diverged_at"]) == ("diverged", 1)
        assert math.isfinite(losses[0])
        assert not math.isfinite(losses[1])
        assert math.isfinite(row["initial_validation_loss"])


@pytest.mark.slow
def test_a_finite_blow_up_has_the_status_diverged():
    good, bad, *_ = neighbours(3e2, 1)
    assert all(map(math.isfinite, bad["train_loss_curve"]))
    assert bad["validation_loss"] > 1.1 * bad["initial_validation_loss"]
    assert (good["status"], bad["status"], bad["diverged_at"]) == ("done", "diverged", None)


def test_a_learning_rate_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="learning_rate"):
        tiny(axes=(Axis("optimizer.learning_rate", {"bad": math.nan}),), claims=())


# --- what arms share -------------------------------------------------------------------------------------


def weights(name):
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.jit(start)(TRIALS[name].run).params)
    }


def test_arms_start_from_the_same_weights_where_they_share_a_place_and_a_shape():
    pre, post, other = map(
        weights, ("norm=pre,rate=low,seed=0", "norm=post,rate=low,seed=0", "norm=pre,rate=low,seed=1")
    )
    shared = [path for path in pre if path in post and pre[path].shape == post[path].shape]
    random = [path for path in shared if len(np.unique(pre[path])) > 1]
    assert len(random) >= 8
    for path in shared:
        np.testing.assert_array_equal(pre[path], post[path], err_msg=path)
    assert all((pre[path] != other[path]).any() for path in random)


def programs(path, levels):
    """How many of the levels share each program."""
    axis = Axis(path, {f"level {i}": value for i, value in enumerate(levels)})
    return [len(group.trials) for group in groups(tiny(axes=(axis,), claims=(), seeds=[3]).trials())]


@pytest.mark.parametrize(
    ("path", "levels"),
    [
        ("optimizer.learning_rate", [1e-3, 1e-2, 1]),
        ("optimizer.warmup_steps", [0, 2]),
        ("optimizer.weight_decay", [0.1, 0.2]),
        ("model.attention.scale_exponent", [0.5, 0, 1]),
        ("model.dropout", [0.1, 0.2]),
        ("model.initializer.gain", [1.0, 0.5]),
        ("training.label_smoothing", [0.0, 0.1]),
    ],
)
def test_arms_that_differ_in_numbers_share_a_program(path, levels):
    assert programs(path, levels) == [len(levels)]


@pytest.mark.parametrize(
    ("path", "levels"),
    [
        ("model.norm", list(NORM.levels.values())),
        ("model.norm_kind", [LayerNorm(), RMSNorm()]),
        ("model.feed_forward.d_ff", [11, 12]),
        ("model.feed_forward.activation", ["relu", "gelu"]),
        ("model.dropout", [None, 0.1]),
        ("optimizer.decay", ["linear", "cosine"]),
        ("optimizer.clip", [None, 1.0]),
        ("training.steps", [6, 12]),
        ("task.batch_size", [2, 4]),
    ],
)
def test_arms_that_differ_in_choices_have_programs_of_their_own(path, levels):
    assert programs(path, levels) == [1] * len(levels)


def test_the_study_is_two_programs_with_names_of_their_own():
    found = groups(STUDY.trials())
    assert [{trial.arm.labels["norm"] for trial in group.trials} for group in found] == [{"pre"}, {"post"}]
    assert [len(group.trials) for group in found] == [6, 6]
    assert len({group.name for group in found}) == 2
    assert [group.name for group in groups(tiny().trials())] == [group.name for group in found]


# --- what breaks -----------------------------------------------------------------------------------------


def breaking(method, original):
    """`Program.method`, failing for post-norm."""

    def wrapped(self, *arguments):
        group = self.group if method == "train" else arguments[0]
        if "post" in group.name:
            raise FloatingPointError("no luck today")
        return original(self, *arguments)

    return wrapped


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["train", "__init__"])
def test_an_exception_fails_its_own_group_and_is_retried_when_asked_for(whole, tmp_path, monkeypatch, method):
    with monkeypatch.context() as broken:
        broken.setattr(Program, method, breaking(method, getattr(Program, method)))
        _, rows = train(STUDY, tmp_path)
    assert set(rows) == set(TRIALS)
    failed = {name for name, row in rows.items() if row["status"] == "failed"}
    assert failed == {name for name in TRIALS if "post" in name}
    for name in failed:
        assert "Traceback" in rows[name]["error"]
        assert "FloatingPointError: no luck today" in rows[name]["error"]
    left = [
        trial.name for group in missing(StudyPlan(STUDY), Store(tmp_path), retry_failed=True) for trial in group.trials
    ]
    assert set(left) == failed

    assert train(STUDY, tmp_path) == ([], rows)
    events, rows = train(STUDY, tmp_path, retry_failed=True)
    assert {event.row["trial"] for event in events if isinstance(event, Finished)} == failed
    columns = next(iter(results(whole(1)).values()))
    kept = {name: {key: row[key] for key in columns} for name, row in rows.items()}
    assert kept == results(whole(1))


def test_running_a_finished_study_again_trains_nothing(tmp_path):
    study = tiny(axes=(RATE,), claims=(), seeds=range(1))
    _, first = train(study, tmp_path)
    events, second = train(study, tmp_path)
    assert (events, second) == ([], first)


@pytest.mark.long
def test_a_study_stopped_at_a_chunk_is_resumed_by_running_it_again(whole, tmp_path):
    stopped = run(STUDY, Execution(output=tmp_path, devices=1, chunk_steps=3))
    first = next(event for event in stopped if isinstance(event, Finished))
    stopped.close()
    kept = Store(tmp_path).rows()
    assert first.row["trial"] in kept
    assert len(kept) < len(TRIALS)
    events, rows = train(STUDY, tmp_path)
    again = {event.row["trial"] for event in events if isinstance(event, Finished)}
    assert again == set(TRIALS) - set(kept)
    assert results(rows) == results(whole(1))


@pytest.mark.slow
def test_more_seeds_train_only_what_is_new(whole, tmp_path):
    fewer = dataclasses.replace(STUDY, seeds=range(2))
    train(fewer, tmp_path)
    events, rows = train(STUDY, tmp_path)
    assert {event.row["seed"] for event in events if isinstance(event, Finished)} == {2}
    assert results(rows) == results(whole(1))


def test_a_group_is_compiled_once_on_one_device(tmp_path):
    events, _ = train(STUDY, tmp_path)
    compiled = [event.group for event in events if isinstance(event, Compiled)]
    assert sorted(compiled) == sorted(group.name for group in groups(STUDY.trials()))


@pytest.mark.parametrize("name", ["devices", "group_size", "chunk_steps"])
@pytest.mark.parametrize("value", [0, -1])
def test_settings_below_one_are_refused(name, value):
    with pytest.raises(UserError, match=rf"{name} is {value}; expected a number at least 1"):
        Execution(**{name: value})


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"devices is 99; expected at most 2"):
        Execution(devices=99).use_devices()


@pytest.mark.slow
def test_runs_trained_together_are_resumed_bitwise_whichever_remain(tmp_path):
    execution = {"group_size": 4}
    _, whole = train(STUDY, tmp_path / "whole", **execution)
    store = Store(tmp_path / "cut")
    with store.locked():
        declare(store, Store(tmp_path / "whole").declaration)
        for name in list(TRIALS)[:5]:  # five of the six trials of the first group
            store.append(whole[name]["group"], whole[name])
    _, resumed = train(STUDY, tmp_path / "cut", **execution)
    assert results(resumed) == results(whole)
    assert {row["group_size"] for row in resumed.values()} == {4}
