"""Rule of divergence, the same for scores, learning curves, derived numbers, searches and reports.

A run has diverged if its loss or a gradient was not finite at some step, or if its loss blew up: its validation loss
ended more than a tenth above that before training, and so did its training loss. From there on it counts with its
metrics before training, if these are finite. The margin keeps runs that learn nothing, whose loss varies around its
first value, from being called diverged; the training loss keeps those that overfit. The loss decides for every metric,
since a metric of the user's, or an accuracy, says nothing of a blow-up. A metric of a sound run that is not finite has
no score (`statistics.finite`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from flaxformer.statistics.finite import finite
from flaxformer.store.rows import Row
from flaxformer.study.halving import mean

MARGIN = 0.1
"""Part of the loss before training by which a loss has to exceed it."""
RULE = (
    "A run has diverged if its loss or gradient was not finite, or if its loss ended more than 10 % above that before "
    "training; it then counts with its metric before training."
)
"""The rule in one sentence, for reports."""
LOSS, TRAIN, TEST = "validation_loss", "train_loss", "test_"
OF_TASK = ("loss", "accuracy", "bits_per_byte")
"""Scores of a run's task, in columns that begin with validation_ and test_."""
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
    name = metric.removeprefix(TEST)
    return f"validation_{name}" if name in OF_TASK else name


def is_test_metric(metric: str) -> bool:
    """True for a metric of test data; no other column begins like it."""
    return metric.startswith(TEST)


def has_score(row: Row, metric: str) -> bool:
    """True if a row has the numbers that `score` reads."""
    return metric in row.metrics and f"initial_{on_validation(metric)}" in row.metrics


def score(row: Row, metric: str) -> float | None:
    """Return the metric of a run; of one that diverged, the metric before training. None if that is not finite.

    Before training, a metric of the test data is that of the validation data.
    """
    return finite(row[f"initial_{on_validation(metric)}"] if is_diverged(row) else row[metric])


def mean_score(rows: Sequence[Row], metric: str) -> float:
    """Return the score of an arm, the mean over its seeds; NaN if a run failed or has no score."""
    return mean([None if row["status"] == "failed" else score(row, metric) for row in rows])


def curve_of(row: Row, metric: str) -> list[float | None]:
    """Return the metric at every evaluation; from the divergence of the run on, the metric before training.

    None where it is not finite.
    """
    values, initial = list(row.curves[metric]), float(row[f"initial_{metric}"])
    steps, has_diverged = list(row.evaluated_at or ()), is_diverged(row)
    losses = list(row.curves.get(LOSS, ()))
    alive = len(values)
    if row.diverged_at is not None:
        alive = sum(step < row.diverged_at for step in steps)
    elif has_diverged and len(losses) == len(values):
        sound = [i for i, loss in enumerate(losses) if not _blew_up(loss, row.metrics[f"initial_{LOSS}"])]
        alive = 1 + max(sound, default=-1)
    elif has_diverged:
        alive = len(values) - 1
    return [finite(value if i < alive else initial) for i, value in enumerate(values)]


class CountedMetrics(Mapping[str, float]):
    """Metrics that count: the scores of a run, NaN for one without; `unscored` collects the names of those read."""

    def __init__(self, row: Row) -> None:
        first = [name for name in row.metrics if f"initial_{on_validation(name)}" in row.metrics]
        scores = {name: score(row, name) for name in first}
        self._values = {**row.metrics, **{name: math.nan if value is None else value for name, value in scores.items()}}
        self._without = {name for name, value in scores.items() if value is None}
        self.unscored: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.unscored |= self._without & {name}
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class CountedRow(Row):
    """Row for `derive`, with the metrics that count: of a run that diverged, those before training.

    A minimum or a comparison of numbers of which one is NaN can be finite. Whether a metric without a score was read is
    therefore recorded (`metrics.unscored`), so that nothing is derived from it.
    """

    metrics: CountedMetrics

    @classmethod
    def of(cls, row: Row) -> "CountedRow":
        """The row with the metrics of another one as they count."""
        counted = cls.from_columns(dict(row))
        len(counted)  # caches the flat columns before reading of metrics is recorded
        object.__setattr__(counted, "metrics", CountedMetrics(row))
        return counted

    def __getitem__(self, name: str) -> object:
        return self.metrics[name] if name in self.metrics else super().__getitem__(name)
