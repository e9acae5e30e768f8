"""Results of a study's declared trials by column; whole rows, with curves, are read only where they are asked for."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np
import polars as pl

from flaxformer.statistics.finite import finite
from flaxformer.store import columns
from flaxformer.store.columns import NUMBER
from flaxformer.store.declaration import DeclaredTrial
from flaxformer.store.rows import CURVE, Row
from flaxformer.store.store import Store
from flaxformer.study.divergence import LOSS, curve_of, has_score, is_diverged, may_have_diverged, on_validation, score

FEW = 5000
"""Number of trials up to which all rows are read together when one is asked for, and kept."""


class TrialResults:
    """Results of trials, in the order in which they are declared.

    Results that hold another fingerprint or seed than their trial are left out, except kept ones of earlier code.

    Args:
      store: the study's folder.
      trials: the declared trials.
    """

    def __init__(self, store: Store, trials: Sequence[DeclaredTrial]) -> None:
        self.trials, self._store = [trial.trial for trial in trials], store
        scalars = columns.scalars(store)
        self.foreign = _foreign(scalars, trials)
        """Names of the trials whose result is left out."""
        self.declarations = dict(scalars["declaration"].value_counts().iter_rows())
        """Number of results, also of trials that are not declared, by the declaration that each holds."""
        self.table = self._align(scalars)
        """One row per trial, of nulls where it has no result: `columns.SCALARS`, and metrics under `NUMBER`."""
        self.statuses: list[str | None] = self.table["status"].to_list()
        self._columns: dict[str, list[float | None]] = {}
        self._scores: dict[tuple[str, tuple[str, ...]], list[float | None]] = {}
        self._curves: dict[str, tuple[list[list[int] | None], list[list[float | None] | None]]] = {}
        self._kept: dict[str, Row | None] = {}

    def _align(self, table: pl.DataFrame) -> pl.DataFrame:
        names = pl.DataFrame({"trial": self.trials}, schema={"trial": pl.String})
        if self.foreign:
            table = table.filter(~pl.col("trial").is_in(self.foreign))
        return names.join(table, on="trial", how="left", maintain_order="left")

    def numbers(self, name: str) -> pl.Series:
        """A fixed column of numbers, such as "seconds", or a metric; null where a trial has none."""
        for column in (name, f"{NUMBER}{name}"):
            if column in self.table.columns:
                return self.table[column]
        return pl.Series(name, [None] * len(self.trials), dtype=pl.Float64)

    def column(self, name: str) -> list[float | None]:
        """`numbers` as a list, which is made once."""
        if name not in self._columns:
            self._columns[name] = self.numbers(name).to_list()
        return self._columns[name]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that some trial has."""
        return [name.removeprefix(NUMBER) for name in self.table.columns if name.startswith(NUMBER)]

    def everything(self) -> pl.DataFrame:
        """One row per trial with all columns; of nulls, besides its name, where it has no result."""
        return self._align(columns.everything(self._store))

    def _at(self, status: str) -> list[int]:
        return self.table["status"].eq_missing(status).arg_true().to_list()

    def with_status(self, status: str) -> "Rows":
        """The rows with a status."""
        return Rows(self, self._at(status))

    @property
    def rows(self) -> "Rows":
        """The rows of all trials that have one."""
        return Rows(self, self.table["status"].is_not_null().arg_true().to_list())

    @functools.cached_property
    def diverged(self) -> np.ndarray:
        """For each trial, whether its run diverged (`divergence.is_diverged`); False for a run that failed."""
        known = (self.table["status"] == "diverged") | self.table["diverged_at"].is_not_null()
        diverged = known.fill_null(value=False).to_numpy().copy()
        loss, initial = (_floats(self.numbers(name)) for name in (LOSS, f"initial_{LOSS}"))
        has_both = self.numbers(LOSS).is_not_null() & self.numbers(f"initial_{LOSS}").is_not_null()
        ended = (self.table["status"] != "failed").fill_null(value=False)
        with np.errstate(invalid="ignore"):
            doubtful = may_have_diverged(loss, initial) & (has_both & ended).to_numpy() & ~diverged
        for place, row in self._each(np.flatnonzero(doubtful).tolist()):
            diverged[place] = row is not None and is_diverged(row)
        return diverged & ended.to_numpy()

    def scores(self, metric: str, statuses: tuple[str, ...] = ("done", "diverged")) -> list[float | None]:
        """The score (`divergence.score`) of each run with one of these statuses; None for others, and without one."""
        if (metric, statuses) not in self._scores:
            self._scores[metric, statuses] = self._compute_scores(metric, statuses)
        return self._scores[metric, statuses]

    def _compute_scores(self, metric: str, statuses: tuple[str, ...]) -> list[float | None]:
        value, initial = self.numbers(metric), self.numbers(f"initial_{on_validation(metric)}")
        numbers, first = _floats(value), _floats(initial)
        counted = np.where(self.diverged, first, numbers)
        has_ended = self._has_ended(statuses)
        has_both = (value.is_not_null() & initial.is_not_null()).to_numpy()
        scores: list[float | None] = [finite(number) for number in counted.tolist()]
        for place in np.flatnonzero(~has_ended).tolist():
            scores[place] = None
        for place, row in self._each(np.flatnonzero(has_ended & ~has_both).tolist()):
            scores[place] = score(row, metric) if row is not None and has_score(row, metric) else None
        return scores

    def _has_ended(self, statuses: tuple[str, ...]) -> np.ndarray:
        return self.table["status"].is_in(statuses).fill_null(value=False).to_numpy()

    def places_without_score(self, metric: str) -> list[int]:
        """Places of the trials whose run ended, and whose row lacks the metric."""
        return [place for place, has_metric in self._without_score(metric) if not has_metric]

    def not_finite(self, metric: str) -> list[int]:
        """Places of the trials whose run ended, and whose metric is not finite, so that they have no score."""
        return [place for place, has_metric in self._without_score(metric) if has_metric]

    def _without_score(self, metric: str) -> Iterator[tuple[int, bool]]:
        """Yield the place of each trial that ended without a score, and whether its row has the metric."""
        ended, scores = np.flatnonzero(self._has_ended(("done", "diverged"))).tolist(), self.scores(metric)
        without = [place for place in ended if scores[place] is None]
        return ((place, row is not None and has_score(row, metric)) for place, row in self._each(without))

    def curves(self, metric: str) -> tuple[list[list[int] | None], list[list[float | None] | None]]:
        """Steps and values (`divergence.curve_of`) of the curve of each run that did not fail; None without."""
        if metric not in self._curves:
            name = f"{metric}{CURVE}"
            table = self._align(columns.read(self._store, "evaluated_at", name))
            ended = (table["status"] != "failed").fill_null(value=False) & table[name].is_not_null()
            values = table.select(pl.when(ended).then(pl.col(name)))[name]
            is_finite = values.list.eval(pl.element().is_finite()).list.all().fill_null(value=True)
            special = (ended & (~is_finite | pl.Series(self.diverged))).arg_true().to_list()
            curves: list[list[float | None] | None] = values.to_list()
            for place, row in self._each(special):
                curves[place] = None if row is None else curve_of(row, metric)
            self._curves[metric] = table["evaluated_at"].to_list(), curves
        return self._curves[metric]

    @functools.cached_property
    def _all(self) -> dict[str, Row]:
        return columns.rows_of(self._store, self.trials)

    def read(self, places: Sequence[int]) -> list[Row | None]:
        """The whole rows of trials by their places in the order of declaration; None where there is none.

        The last few that were asked for are kept: a file is checked and scanned for any one of its rows.
        """
        names = [self.trials[place] for place in places]
        if len(self.trials) <= FEW:
            rows: Mapping[str, Row | None] = self._all
        elif len(names) > FEW:
            rows = columns.rows_of(self._store, names)
        else:
            if lacking := [name for name in names if name not in self._kept]:
                if len(self._kept) + len(lacking) > FEW:
                    self._kept, lacking = {}, names
                read = columns.rows_of(self._store, lacking)
                self._kept |= {name: read.get(name) for name in lacking}
            rows = self._kept
        return [None if name in self.foreign else rows.get(name) for name in names]

    def _each(self, places: Sequence[int]) -> Iterator[tuple[int, Row | None]]:
        """Yield places with their whole rows, of which few are in memory at a time."""
        for begin in range(0, len(places), FEW):
            chunk = places[begin : begin + FEW]
            yield from zip(chunk, self.read(chunk), strict=True)


def _foreign(scalars: pl.DataFrame, trials: Sequence[DeclaredTrial]) -> list[str]:
    """Names of the trials whose result holds another fingerprint or seed than the trial."""
    declared = {trial.trial: trial for trial in trials}
    return [
        name
        for name, seed, fingerprint in scalars["trial", "seed", "fingerprint"].rows()
        if name in declared and not declared[name].accepts(seed, fingerprint or None)
    ]


def _floats(numbers: pl.Series) -> np.ndarray:
    """The numbers, NaN where there is none."""
    return numbers.cast(pl.Float64).fill_null(float("nan")).to_numpy()


class Rows(Sequence[Row]):
    """Rows of some trials, read from the folder when they are asked for; their number is known without that."""

    def __init__(self, results: TrialResults, places: Sequence[int]) -> None:
        self.results, self.places = results, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        chosen = self.places[index] if isinstance(index, slice) else [self.places[index]]
        rows = [row for row in self.results.read(chosen) if row is not None]
        return rows if isinstance(index, slice) else rows[0]

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.results._each(self.places) if row is not None)


class ArmRows(Sequence[Row | None]):
    """Rows of one arm in the order of its seeds, None where there is none, read when they are asked for."""

    def __init__(self, results: TrialResults, places: Sequence[int]) -> None:
        self.results, self.places = results, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Row | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row | None]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row | None] | None:
        if isinstance(index, slice):
            return self.results.read(self.places[index])
        return self.results.read([self.places[index]])[0]

    def __iter__(self) -> Iterator[Row | None]:
        return iter(self.results.read(self.places))
