"""Named evaluations of a run: the same numbers as each task alone gives, in every way in which a run is executed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from study.tiny import BASELINE, LOWER, RATE, cache_folder, kept_programs, results, tiny

from flaxformer.checkpoint import Stop
from flaxformer.components.heads import LossSum
from flaxformer.core.struct import leaf
from flaxformer.devices.sharding import Devices
from flaxformer.jobs import Job, train
from flaxformer.runner import partial_runs
from flaxformer.runner.events import Progressed
from flaxformer.runner.execution import Execution
from flaxformer.runner.program import MemoryFittedProgram
from flaxformer.store.job_log import read
from flaxformer.store.rows import RESERVED_PREFIXES
from flaxformer.study import Axis
from flaxformer.study.evaluation_data import evaluation_data
from flaxformer.study.metrics import metrics_of
from flaxformer.study.plan import check_measure, declaration
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain as as_data
from flaxformer.tasks import (
    Copy,
    Domain,
    Evaluation,
    EvaluationData,
    EvaluationSet,
    Mixture,
    MultipleChoice,
    Reverse,
    Sort,
)
from flaxformer.tasks.evaluations import TAKEN, TaskData
from flaxformer.training import Run, Seeds, Training, evaluate, evaluation_params, start
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.evaluation import evaluate_sets, score
from flaxformer.training.micro_batches import check_batch

LONG = Copy(symbols=5, length=7, batch_size=4, evaluation_batches=3)
OTHER = Sort(symbols=5, length=3, batch_size=2, evaluation_batches=2)
SETS = (EvaluationSet(name="long", task=LONG), EvaluationSet(name="other", task=OTHER))
RUN = BASELINE.replace(evaluations=SETS)
MIXED = RUN.replace(
    task=Mixture(
        domains=(
            Domain(name="copy", task=BASELINE.task, weight=0.7),
            Domain(name="back", task=Reverse(symbols=5, length=3), weight=0.3),
        ),
        batch_size=4,
        evaluation_batches=3,
    )
)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


SCORE = jax.jit(score)


def expected(run, params, task, name):
    """Scores of one task, without the machinery of named evaluations."""
    source, own = task.load(), run.replace(task=task, evaluations=())
    found = {f"{name}_{key}": value for key, value in SCORE(params, own, source.evaluation()).items()}
    return found, {f"test_{name}_{key}": value for key, value in SCORE(params, own, source.test()).items()}


def assert_near(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("run", [MIXED, pytest.param(RUN, marks=pytest.mark.slow)], ids=["mixture", "plain"])
def test_columns_are_the_scores_of_each_task_alone(run):
    arrays = jax.tree.map(jnp.asarray, run)
    compiled = CompiledRun(run, DeviceGroup.of(None))
    compiled.compile(arrays, 3)
    count = len(compiled.programs)
    state = compiled.start(arrays)
    kept, errors = compiled.evaluate_with_errors(state, arrays)
    final = compiled.test(state, arrays)
    assert len(compiled.programs) == count  # nothing is compiled in training
    tasks = {"validation": run.task, "long": LONG, "other": OTHER} | run.task.evaluation_parts()
    parts = [expected(run, state.params, task, name) for name, task in tasks.items()]
    assert_near(kept | errors, {key: value for own, _ in parts for key, value in own.items()})
    wanted = {key.replace("test_validation", "test"): value for _, own in parts for key, value in own.items()}
    assert_near(final, wanted)
    assert {name.removeprefix("initial_") for name in errors} == {f"{name}_loss_se" for name in tasks}
    assert set(metrics_of(run)) == {*kept, *(name for name in final if not name.endswith("_se"))}
    alike = jax.device_get(evaluate_sets(state.params, run, SETS))
    assert_near({k: v for k, v in (kept | errors).items() if k in alike}, alike)


@pytest.mark.long
def test_evaluations_of_one_shape_share_a_program():
    sets = (*SETS, EvaluationSet(name="again", task=LONG), EvaluationSet(name="alike", task=OTHER.replace(symbols=4)))
    compiled = CompiledRun(RUN.replace(evaluations=sets), DeviceGroup.of(None))
    arrays = jax.tree.map(jnp.asarray, RUN.replace(evaluations=sets))
    found = compiled.evaluate(compiled.start(arrays), arrays)
    assert found["again_loss"] == found["long_loss"] != found["other_loss"]
    # The sets of sort have the shapes of the task's own.
    assert sorted(compiled.programs) == ["evaluate", "score 0", "start"]


class TwiceTheLoss(TaskData):
    """Data of a task whose scores are not those of the task."""

    def scores(self, sums, examples):
        return {name: 2 * value for name, value in super().scores(sums, examples).items()}


class Doubled(EvaluationSet):
    """Evaluation with such data."""

    def load(self):
        plain = super().load()
        return TwiceTheLoss(plain.batches, plain.bits_per_nat)


@pytest.mark.long
def test_data_of_a_task_with_scores_of_their_own_have_their_own_program():
    sets = (EvaluationSet(name="plain", task=BASELINE.task), Doubled(name="doubled", task=BASELINE.task))
    run = BASELINE.replace(evaluations=sets)
    compiled, arrays = CompiledRun(run, DeviceGroup.of(None)), jax.tree.map(jnp.asarray, run)
    scores = compiled.evaluate(compiled.start(arrays), arrays)
    assert scores["doubled_loss"] == pytest.approx(2 * scores["plain_loss"])
    assert sorted(compiled.programs) == ["evaluate", "score 0", "start"]


@pytest.mark.slow
def test_a_run_without_evaluations_keeps_its_identity_and_bits():
    assert Run(model=BASELINE.model, task=BASELINE.task).evaluations == ()
    plain, named = (declaration(tiny(baseline=run, claims=(), axes=(RATE,), seeds=(3,))) for run in (BASELINE, RUN))
    assert "evaluations" not in json.dumps(as_data(plain)["recipes"])
    assert '"name": "long"' in json.dumps(as_data(named)["recipes"])
    one, other = ({*study.fingerprints.values()} for study in (plain, named))
    assert not one & other
    states = [CompiledRun(run, DeviceGroup.of(None)) for run in (BASELINE, RUN)]
    losses = []
    for compiled, run in zip(states, (BASELINE, RUN), strict=True):
        arrays = jax.tree.map(jnp.asarray, run)
        state, metrics = compiled.advance(compiled.start(arrays), arrays, 3)
        losses.append(
            (np.asarray(metrics["loss"]).tolist(), float(compiled.evaluate(state, arrays)["validation_loss"]))
        )
    assert losses[0] == losses[1]


SHORT = MIXED.replace(training=Training(steps=6, evaluate_every=2))
[GROUP] = groups(
    tiny(baseline=SHORT, axes=(Axis("task.domains.0.weight", {"0": 0.0, "2": 2}, name="w"),), claims=()).trials()
)


def train_group(root, stop_at=None, **execution):
    """Rows of the trials of both arms at one seed; they may be stopped after so many steps."""
    how = Execution(chunk_steps=2, devices=1, output=root, save_minutes=60.0, **execution)
    fitted = MemoryFittedProgram(GROUP, how.device_groups()[0], how, 1, lambda text: None)
    taken = []

    rows = {}
    for event in fitted.train([GROUP.trials[0], GROUP.trials[3]], lambda: sum(taken) == stop_at):
        if isinstance(event, Progressed):
            taken.append(event.steps if event.tokens else 0)
        else:
            rows[event.row.trial] = event.row
    return rows


@pytest.mark.slow
def test_arms_with_other_weights_share_a_program_and_resume_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_runs, "MIN_SECONDS_TO_SAVE", 0.0)
    whole = train_group(None)
    assert train_group(tmp_path, stop_at=4) == {}
    assert results(train_group(tmp_path)) == results(whole)
    first, other = whole.values()
    names = {"validation", "long", "other", "copy", "back"}
    assert {name for name in first.curves if name.endswith("_loss")} == {f"{n}_loss" for n in names} | {"train_loss"}
    assert all(len(first.curves[f"{name}_accuracy"]) == 4 for name in names)
    assert {f"test_{name}_loss" for name in names - {"validation"}} < set(first.metrics)
    assert {f"{name}_loss_se" for name in names} < set(first.metrics)
    assert first.curves["copy_loss"][0] == other.curves["copy_loss"][0] == first.metrics["initial_copy_loss"]
    assert first.curves["train_loss"] != other.curves["train_loss"]


@pytest.mark.slow
def test_runs_trained_together_have_the_metrics_of_each_alone():
    alone, together = train_group(None), train_group(None, group_size=2)
    for name, row in alone.items():
        for metric, value in row.metrics.items():
            np.testing.assert_allclose(together[name].metrics[metric], value, rtol=1e-4, atol=1e-6, err_msg=metric)


@pytest.mark.slow
def test_a_mesh_of_two_devices_gives_the_same_metrics():
    arrays = jax.tree.map(jnp.asarray, MIXED)
    found = []
    for devices in (None, Devices(data=2)):
        compiled = CompiledRun(MIXED, DeviceGroup.of(devices))
        state, _ = compiled.advance(compiled.start(arrays), arrays, 2)
        found.append(jax.device_get(compiled.evaluate(state, arrays) | compiled.test(state, arrays)))
    assert set(found[0]) == set(found[1])
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_mesh_has_to_divide_the_examples_of_an_evaluation():
    odd = RUN.replace(evaluations=(EvaluationSet(name="odd", task=LONG.replace(batch_size=3)),))
    with pytest.raises(UserError, match="evaluation 'odd' has 3 examples per batch; expected a multiple of 2"):
        check_batch(odd, Devices(data=2))


@pytest.mark.slow
def test_a_job_logs_the_named_metrics_and_resumes(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"context": "\\u0001", "choices": ["\\u0002", "\\u0003\\u0001"], "answer": 1}')
    facts = MultipleChoice(name="facts", path=str(path), length=3, batch_size=2)
    run = SHORT.replace(model=SHORT.model.replace(vocabulary=256), evaluations=(*SETS, facts))
    list(train(run, Job(output=tmp_path / "whole", chunk_steps=2), Stop()))
    stop = Stop()
    for event in train(run, Job(output=tmp_path / "parts", chunk_steps=2), stop):
        if isinstance(event, Progressed) and event.step == 2:
            stop.by = 15
    list(train(run, Job(output=tmp_path / "parts", chunk_steps=2), Stop()))
    whole, parts = (
        [
            {k: v for k, v in line.items() if k not in ("seconds", "elapsed", "goodput", "digest")}
            for line in read(tmp_path / name / "log.jsonl")
            if line["kind"] not in ("launch", "time")
        ]
        for name in ("whole", "parts")
    )
    assert whole == parts
    evaluations = [line for line in whole if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluations] == [0, 2, 4, 6]
    assert {"long_loss", "other_accuracy", "copy_loss", "back_loss", "facts_accuracy", "facts_loss"} < set(
        evaluations[0]
    )
    assert not [name for line in evaluations for name in line if name.endswith("_se")]
    [final] = [line for line in whole if line["kind"] == "test"]
    assert {"test_long_loss", "test_copy_accuracy"} < set(final)


class Halves(EvaluationData):
    """Data whose one score is the loss of the first half of the batches."""

    def scores(self, sums: dict[str, LossSum], examples: LossSum):
        losses, counts = (one[: len(one) // 2] for one in examples)
        return {"half": losses.sum() / counts.sum(), "half_se": jnp.float32(0)}


class FirstHalf(Evaluation):
    """An own kind of evaluation, with a leaf."""

    factor: float = leaf(1.0)

    @property
    def rows(self):
        return OTHER.batch_size

    def metrics(self, has_accuracy):
        return ("half",)

    def load(self):
        return Halves(OTHER.load().evaluation())


def test_an_own_kind_of_evaluation_has_its_columns():
    run = BASELINE.replace(evaluations=(FirstHalf(name="own"),))
    arrays = jax.tree.map(jnp.asarray, run)
    compiled = CompiledRun(run, DeviceGroup.of(None))
    state = compiled.start(arrays)
    kept, errors = compiled.evaluate_with_errors(state, arrays)
    first = jax.tree.map(lambda x: x[:1], OTHER.load().evaluation())
    np.testing.assert_allclose(kept["own_half"], SCORE(state.params, run, first)["loss"], rtol=2e-6)
    assert set(errors) == {"validation_loss_se", "own_half_se"}
    study = tiny(baseline=run, metric="own_half", axes=(RATE,), claims=())
    assert (study.unit, study.goal) == ("", "lower")


@pytest.mark.slow
def test_evaluate_has_the_parts_of_a_mixture():
    params = evaluation_params(start(MIXED), MIXED)
    found = jax.jit(evaluate)(params, MIXED, MIXED.task.load())
    assert set(found) == {f"{name}_{kind}" for name in ("validation", "copy", "back") for kind in ("loss", "accuracy")}


def test_a_study_takes_the_metric_of_a_named_evaluation():
    study = tiny(baseline=RUN, metric="long_accuracy", claims=(), axes=(RATE,))
    assert (study.goal, study.unit) == ("higher", "of accuracy")
    study = tiny(baseline=RUN, metric="test_long_loss", claims=(LOWER,), axes=(RATE,))
    assert (study.goal, study.unit) == ("lower", "nats")
    declared = declaration(study)
    assert declared.metric == "test_long_loss"
    own = evaluation_data(study)
    assert {one.examples for one in own.values()} == {12}
    other = evaluation_data(tiny(baseline=RUN, claims=(), axes=(RATE,)))
    assert own["rate=low"].digest != other["rate=low"].digest
    assert tiny(baseline=MIXED, metric="copy_loss", claims=(), axes=()).goal == "lower"


MISTAKES = {
    "unknown": (lambda: tiny(baseline=RUN, metric="lang_loss"), "metric is 'lang_loss'; did you mean 'long_loss'?"),
    "choice": (
        lambda: tiny(baseline=RUN, metric="test_long_loss", keep="best"),
        "metric is 'test_long_loss' and keep is 'best', which chooses by the metric; expected long_loss",
    ),
    "axis": (
        lambda: tiny(baseline=RUN, axes=(Axis("optimizer.learning_rate", {"a": 0.1}, name="long_loss"),), claims=()),
        "axis name 'long_loss' is a column of an evaluation; give the axis another with name=",
    ),
    "twice": (
        lambda: RUN.replace(evaluations=(SETS[0], SETS[0])),
        "evaluations have the name 'long' 2 times; expected different names",
    ),
    "domain": (
        lambda: MIXED.replace(evaluations=(SETS[0].replace(name="copy"),)),
        "evaluations have the name 'copy' 2 times; expected different names",
    ),
    "form": (lambda: EvaluationSet(name="a b", task=LONG), "EvaluationSet.name is 'a b'; expected a letter"),
    "vocabulary": (
        lambda: BASELINE.replace(evaluations=(EvaluationSet(name="big", task=Copy(symbols=9)),)),
        "evaluation 'big': model.vocabulary is 6; expected at least the task's 10 tokens",
    ),
    "measure": (
        lambda: check_measure(tiny(baseline=RUN, measure=lambda params, run: {"long_loss": jnp.float32(0)})),
        "measure returns 'long_loss', which is the name of another column; expected another name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_messages(name):
    make, message = MISTAKES[name]
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)


def test_names_do_not_begin_like_other_columns():
    assert {f"{word}_" for word in TAKEN} | {"diagnostics/"} == set(RESERVED_PREFIXES)
    for prefix in RESERVED_PREFIXES:
        for name in (prefix.strip("_/"), f"{prefix}x"):
            if name != "diagnostics":
                with pytest.raises(UserError, match=r"EvaluationSet\.name is"):
                    EvaluationSet(name=name, task=LONG)


def test_an_evaluation_without_a_test_set_cannot_give_a_test_metric(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"context": "\\u0001", "choices": ["\\u0002", "\\u0003"], "answer": 0}')
    run = BASELINE.replace(
        model=BASELINE.model.replace(vocabulary=256),
        evaluations=(MultipleChoice(name="facts", path=str(path), length=3),),
        seeds=Seeds(),
    )
    assert tiny(baseline=run, metric="facts_accuracy_bytes", axes=(), claims=()).goal == "higher"
    with pytest.raises(UserError, match=r"metric is 'test_facts_loss' and MultipleChoice.* has no test set"):
        declaration(tiny(baseline=run, metric="test_facts_loss", axes=(RATE,), claims=()))
