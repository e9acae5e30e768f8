"""Metrics of a study: of every run, of its named evaluations, and the numbers that `measure` returns."""

from collections.abc import Collection

from flaxformer.study.divergence import TEST, is_test_metric, on_validation
from flaxformer.study.halving import Goal, is_accuracy
from flaxformer.system.errors import UserError, did_you_mean, quote
from flaxformer.tasks.base import BITS_PER_BYTE
from flaxformer.tasks.evaluations import ERROR
from flaxformer.training.evaluation import evaluated_by
from flaxformer.training.run import Run

TEST_METRICS = ("test_loss", "test_accuracy")
"""Metrics of the test set of every run, at the end of training."""
METRICS = ("validation_loss", "validation_accuracy", *TEST_METRICS)
"""Metrics of every run; accuracy only for heads with classes."""


def metrics_of(run: Run) -> list[str]:
    """Return the names of the metrics of a run: of its task, and of its named evaluations."""
    named = list(evaluated_by(run))
    of_task = [name for name in run.task.metrics(has_accuracy=True) if f"{TEST}{name}" not in METRICS]
    at_end = [f"{TEST}{name}" for name in of_task + named]
    return [*METRICS, *(f"validation_{name}" for name in of_task), *named, *at_end]


def columns_of(run: Run) -> set[str]:
    """Return the names of the columns of a run's named evaluations, without those that begin in a reserved way."""
    return {name for metric in evaluated_by(run) for name in (metric, f"{metric}{ERROR}")}


def check_metric(metric: str, run: Run, has_measure: bool) -> None:
    """Check that a run has a metric.

    Raises:
      UserError: it has not, or the metric is an accuracy and the model's head has none.
    """
    known = metrics_of(run)
    if metric not in known and not has_measure:
        if len(known) > len(METRICS):
            raise UserError(f"metric is {quote(metric)}{did_you_mean(metric, known)}")
        raise UserError(f"metric is {quote(metric)}; expected {' or '.join(METRICS)}, or a number of measure's")
    if is_accuracy(metric) and not run.model.head.has_accuracy:
        kind, loss = type(run.model.head).__name__, metric.replace("accuracy", "loss")
        raise UserError(f"metric is {quote(metric)}, which {kind} has not; expected {loss}")


def check_axis_names(names: Collection[str], run: Run) -> None:
    """Raise UserError if an axis has the name of a column of a named evaluation."""
    if taken := sorted(set(names) & columns_of(run)):
        raise UserError(f"axis name '{taken[0]}' is a column of an evaluation; give the axis another with name=")


def named_goal(metric: str, run: Run) -> Goal | None:
    """Return the direction in which a metric of a named evaluation, or bits per byte, is good; None for others."""
    if metric in METRICS or metric not in metrics_of(run):
        return None
    return "higher" if _is_named_accuracy(metric) else "lower"


def unit_of(metric: str, run: Run) -> str | None:
    """Return the unit of a metric; None for one of `measure` or of another kind of evaluation."""
    if metric not in metrics_of(run):
        return None
    if is_accuracy(metric) or _is_named_accuracy(metric):
        return "of accuracy"
    if is_bits_per_byte(metric):
        return "bits per byte"
    loss = run.model.head.loss_name
    if not metric.endswith("_loss"):
        return None
    return "nats" if loss == "cross_entropy" else f"of {str(loss).replace('_', ' ')}"


def is_bits_per_byte(metric: str) -> bool:
    """True for bits per byte of text, which models with different tokens share."""
    return metric.endswith(f"_{BITS_PER_BYTE}")


def _is_named_accuracy(metric: str) -> bool:
    """True for the accuracy of a named evaluation, such as facts_accuracy or facts_accuracy_bytes."""
    return "_accuracy" in metric


def check_test_metric(metric: str, **choices: object) -> None:
    """Check that a study whose metric is of the test data makes no choice by it.

    Args:
      metric: the metric.
      choices: settings that choose by the metric; None for those that are off.

    Raises:
      UserError: the metric is of the test data, and a setting is on.
    """
    for name, value in choices.items():
        if is_test_metric(metric) and value is not None:
            raise UserError(
                f"metric is {quote(metric)} and {name} is {value!r}, which chooses by the metric; expected "
                f"{on_validation(metric)}, so that the test data decide nothing"
            )
