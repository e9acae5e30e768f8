"""Best value of a tuning study, for a study that reports on other seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer.analysis.analysis import Analysis, ArmSummary, analyse
from flaxformer.store.store import Store
from flaxformer.study.divergence import is_test_metric
from flaxformer.study.halving import Goal, goal_of, mean, rank
from flaxformer.system.errors import UserError, did_you_mean


def tuned_value(
    folder: str | Path,
    path: str,
    seeds: Sequence[int],
    where: Mapping[str, str] | None = None,
    goal: Goal | None = None,
) -> Any:
    """Return the value of a field in the best arm of a finished study, by the mean over the seeds.

    Arms that a halving stopped do not count, nor arms whose metric is not finite at some seed.

    `tuned_value("runs/rates", "optimizer.learning_rate", seeds=range(5), where={"norm": "pre"})`

    Args:
      folder: the tuning study's folder of results.
      path: path of a field of the run that is a number or a text.
      seeds: seeds of the study that uses the value. They must differ from the seeds of the tuning, on which the score
        of the best arm is optimistic (the winner's curse).
      where: labels of axes that the arm must have.
      goal: the direction in which the metric is good; by default the study's.

    Raises:
      UserError: the study is not finished, shares seeds, is judged on the test data, or has no such arm or field.
    """
    analysis = analyse(Store(Path(folder)))
    if is_test_metric(analysis.study.metric):
        raise UserError(
            f"the metric of {folder} is {analysis.study.metric}; expected a metric of the validation data, since a "
            "choice by the test data would make their score optimistic"
        )
    shared = sorted(set(seeds) & set(analysis.study.seeds))
    if shared:
        raise UserError(f"seeds {shared} are also seeds of the tuning in {folder}; expected other seeds")
    if analysis.missing:  # a failed run is missing too
        raise UserError(f"{folder} misses {analysis.missing} of its runs; expected a finished study: run it again")
    scores = {str(i): mean(arm.scores) for i, arm in enumerate(analysis.arms) if _has(analysis, arm, where or {})}
    best = rank(scores, goal_of(analysis.study.metric, goal or analysis.study.goal))
    if not best:
        raise UserError(
            f"{folder} has no arm with {dict(where or {})} that was trained to the end, with a finite "
            f"{analysis.study.metric} at every seed"
        )
    return _value(analysis, analysis.arms[int(best[0])], path)


def _has(analysis: Analysis, arm: ArmSummary, where: Mapping[str, str]) -> bool:
    labels = {axis.name: axis.labels for axis in analysis.study.axes}
    for axis, label in where.items():
        if axis not in labels:
            raise UserError(f"where names axis '{axis}'{did_you_mean(axis, list(labels))}")
        if label not in labels[axis]:
            raise UserError(f"where names {axis} '{label}'{did_you_mean(label, labels[axis])}")
    return where.items() <= arm.labels.items()


def _value(analysis: Analysis, arm: ArmSummary, path: str) -> int | float | str | None:
    """Return a field of an arm's recipe, as it is on disk."""
    name = next(declared.arm for declared in analysis.study.arms if declared.labels == arm.labels)
    value: object = analysis.study.recipes[name].run
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            near = did_you_mean(name, list(value)) if isinstance(value, dict) else ""
            raise UserError(f"'{path}' is not a field of the runs{near}")
        value = value[name]
    if not isinstance(value, int | float | str | None):
        raise UserError(f"'{path}' is {value}; expected the path of a number or a text")
    return value
