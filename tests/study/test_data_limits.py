"""Evaluation data of a study: an axis over the batch size keeps them; where arms differ, the report says so."""

import pytest
from study.tiny import BASELINE, NORM, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.core.paths import replace_at
from flaxformer.study import Axis, Claim, Points
from flaxformer.study.evaluation_data import data_limits_of, evaluation_data
from flaxformer.tasks import Copy

WIDE = replace_at(BASELINE, {"task": Copy(symbols=5, length=4, batch_size=2, evaluation_batches=2), "seed": 0})
BATCH = Axis("task.batch_size", {"2": 2, "6": 6}, name="batch")
LENGTH = Axis("task.length", {"3": 3, "4": 4}, name="length")
LONGER = Claim("longer is worse", higher={"length": "4"}, than={"length": "3"})
PRE = Claim("pre is lower", lower={"norm": "pre"}, than={"norm": "post"})


def digests(study):
    return {arm: own.digest for arm, own in evaluation_data(study).items()}


def test_an_axis_over_the_batch_size_keeps_the_evaluation_data():
    study = tiny(baseline=WIDE, axes=[BATCH], claims=())
    assert len({*digests(study).values()}) == 1
    sizes = {arm.name: arm.run.task.evaluation_batch_size for arm in study.arms()}
    assert sizes == {"batch=2": None, "batch=6": 2}
    assert study.baseline_label(study.axes[0]) == "2"
    points = Points("batch", {"2": {"task.batch_size": 2}, "6": {"task.batch_size": 6}})
    assert len({*digests(tiny(baseline=WIDE, axes=[points], claims=())).values()}) == 1


def test_a_given_evaluation_batch_size_stays():
    baseline = replace_at(WIDE, {"task.evaluation_batch_size": 3})
    sizes = [arm.run.task.evaluation_batch_size for arm in tiny(baseline=baseline, axes=[BATCH], claims=()).arms()]
    assert sizes == [3, 3]
    tasks = {"a": WIDE.task, "b": WIDE.task.replace(batch_size=6)}
    arms = tiny(baseline=WIDE, axes=[Axis("task", tasks)], claims=()).arms()
    assert [arm.run.task for arm in arms] == [*tasks.values()]


def test_arms_with_different_evaluation_data_are_a_limit_of_the_report(tmp_path):
    study = tiny(baseline=WIDE, axes=[NORM, LENGTH], claims=[LONGER, PRE])
    assert len({*digests(study).values()}) == 2
    limits = analyse(fill(tmp_path, study, lambda trial: trial.seed)).limits
    [along] = [limit for limit in limits if "evaluation data differ along length:" in limit]
    assert along in data_limits_of(study)
    compared = [limit for limit in limits if "compares arms that are evaluated on different data" in limit]
    assert compared == [
        "'longer is worse' compares arms that are evaluated on different data: "
        "norm pre, length 4 and norm pre, length 3."
    ]


def test_arms_that_differ_on_several_axes_together_are_named_as_arms():
    study = tiny(
        baseline=WIDE,
        axes=[LENGTH, Axis("optimizer.learning_rate", {"a": 1e-3, "b": 1e-2}, name="rate")],
        combine="zip",
        claims=(),
    )
    assert any(limit.startswith("The evaluation data differ between arms:") for limit in data_limits_of(study))


def test_equal_evaluation_data_are_no_limit():
    study = tiny(baseline=replace_at(WIDE, {"task.symbols": 9, "task.length": 12, "model.vocabulary": 10}))
    assert data_limits_of(study) == []


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("axes", [[NORM], [NORM, Axis("task.symbols", {"5": 5, "2": 2})]])
def test_evaluation_examples_that_occur_in_training_are_a_limit_of_the_report(tmp_path, axes):
    study = tiny(baseline=WIDE, axes=axes, claims=())
    limits = analyse(fill(tmp_path, study, lambda trial: trial.seed)).limits
    text = "4 of 4 evaluation examples (100.0%) also occur in the training data, among 16,384 that were drawn:"
    assert [limit for limit in limits if text in limit] == [
        f"{text} part of the score can come from memorised examples."
    ]


def test_the_overlap_of_some_arms_names_them(tmp_path):
    study = tiny(baseline=WIDE, axes=[Axis("task.length", {"4": 4, "12": 12})], claims=())
    limits = data_limits_of(study)
    assert any("that were drawn (in 'length=4'):" in limit for limit in limits)
