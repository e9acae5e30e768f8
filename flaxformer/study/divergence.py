"""Rule of divergence, the same for scores, learning curves, derived numbers, searches and reports.

A run has diverged if its loss or a gradient was not finite at some step, or if its loss blew up: its validation loss
ended more than a tenth above that before training, and so did its training loss. From there on it counts with its
metrics before training. The margin keeps runs that learn nothing, whose loss varies around its first value, from being
called diverged; the training loss keeps those that overfit. The loss decides for every metric, since a metric of the
user's, or an accuracy, says nothing of a blow-up.
"""

import math

import numpy as np

from flaxformer.store.rows import Row

MARGIN = 0.1
"""Part of the loss before training by which a loss has to exceed it."""
RULE = (
    "A run has diverged if its loss or gradient was not finite, or if its loss ended more than 10 % above that before "
    "training; it then counts with its metric before training."
)
"""The rule in one sentence, for reports."""
LOSS, TRAIN, TEST = "validation_loss", "train_loss", "test_"
LAST = 10
"""A run's last training loss is the mean over the last 1 / LAST of its steps, since single batches vary."""


def is_diverged(row: Row) -> bool:
    """True if a run's loss or gradient was not finite at some step, or if its loss blew up."""
    if row["status"] == "diverged" or row.get("diverged_at") is not None:
        return True
    value, initial = row.get(LOSS), row.get(f"initial_{LOSS}")
    return value is not None and initial is not None and _blew_up(value, initial) and not _training_loss_fell(row)


def may_have_diverged(loss: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """True where a last validation loss is not finite or too high; the training loss then decides in `is_diverged`."""
    return ~np.isfinite(loss) | (loss > initial + MARGIN * np.abs(initial))


def _blew_up(value: float, initial: float) -> bool:
    """True if a loss is not finite, or above its first value by more than the margin."""
    return not math.isfinite(value) or value > initial + MARGIN * abs(initial)


def _training_loss_fell(row: Row) -> bool:
    """True if the training loss is known, and ended below the margin above its first value."""
    losses = np.asarray(row.get(f"{TRAIN}_curve") or (), float)
    if len(losses) < 2:
        return False
    return not _blew_up(float(losses[-max(1, len(losses) // LAST) :].mean()), float(losses[0]))


def on_validation(metric: str) -> str:
    """Return the metric of the validation data for one of the test data, which is computed at the end only.

    >>> on_validation("test_loss"), on_validation("test_long_loss"), on_validation("long_loss")
    ('validation_loss', 'long_loss', 'long_loss')
    """
    if metric in ("test_loss", "test_accuracy"):
        return metric.replace("test_", "validation_", 1)
    return metric.removeprefix(TEST)


def is_test_metric(metric: str) -> bool:
    """True for a metric of test data; no other column begins like it."""
    return metric.startswith(TEST)


def has_score(row: Row, metric: str) -> bool:
    """True if a row has the numbers that `score` reads."""
    return metric in row.metrics and f"initial_{on_validation(metric)}" in row.metrics


def score(row: Row, metric: str) -> float:
    """Return the metric of a run; of one that diverged, or has no finite metric, the metric before training.

    Before training, a metric of the test data is that of the validation data.
    """
    value, initial = row[metric], row[f"initial_{on_validation(metric)}"]
    return float(initial if is_diverged(row) or not math.isfinite(value) else value)


def score_at(row: Row, metric: str, step: int) -> float | None:
    """Return the metric of a run after a step; None if it was not evaluated then."""
    steps = list(row.evaluated_at or ())
    return None if step not in steps else curve_of(row, metric)[steps.index(step)]


def curve_of(row: Row, metric: str) -> list[float]:
    """Return the metric at every evaluation; from the divergence of the run on, the metric before training."""
    found, initial = list(row.curves[metric]), float(row[f"initial_{metric}"])
    steps, has_diverged = list(row.evaluated_at or ()), is_diverged(row)
    losses = list(row.curves.get(LOSS, ()))
    alive = len(found)
    if row.diverged_at is not None:
        alive = sum(step < row.diverged_at for step in steps)
    elif has_diverged and len(losses) == len(found):
        sound = [i for i, loss in enumerate(losses) if not _blew_up(loss, row.metrics[f"initial_{LOSS}"])]
        alive = 1 + max(sound, default=-1)
    elif has_diverged:
        alive = len(found) - 1
    return [float(value if i < alive and math.isfinite(value) else initial) for i, value in enumerate(found)]


def counted_row(row: Row) -> Row:
    """Return the row with the metrics that count: of a run that diverged, those before training."""
    first = [name for name in row.metrics if f"initial_{on_validation(name)}" in row.metrics]
    return row | {name: score(row, name) for name in first} if first else row
