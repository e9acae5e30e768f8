"""Complete tables beside the page, each as Parquet and CSV: one row per run, arm, contrast, and line of a sweep.

The page and the documents show the first `MOST_ROWS` rows of a table; these files have all, with all digits.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import measured, phrasing
from flaxformer.report.table import FOLDER
from flaxformer.report.texts import csv_cell
from flaxformer.statistics.judgement import Estimate
from flaxformer.store.records import write_table, writing
from flaxformer.system.files import make_folder, replacing

RESULTS = "results"


def write_full_tables(analysis: Analysis, folder: Path) -> None:
    """Write results.parquet and results.csv, and the files in `FOLDER`."""
    if len(analysis.rows):
        _write(results(analysis), folder, RESULTS)
    for name, table in (("arms", arms(analysis)), ("contrasts", contrasts(analysis)), ("sweeps", sweeps(analysis))):
        if table.height:
            make_folder(folder / FOLDER)
            _write(table, folder / FOLDER, name)


def _write(table: pl.DataFrame, folder: Path, name: str) -> None:
    """Write a table as Parquet, and without lists and tracebacks as CSV."""
    write_table(folder / f"{name}.parquet", table)
    path = folder / f"{name}.csv"
    short = [column for column, kind in table.schema.items() if not isinstance(kind, pl.List) and column != "error"]
    with writing(path), replacing(path) as temporary:
        texts = [column for column in short if table.schema[column] == pl.String]
        cleaned = table.select(short).with_columns(pl.col(name).map_elements(csv_cell, pl.String) for name in texts)
        header: dict[str, str] = {}
        for name in short:
            cell = csv_cell(name)
            header[name] = cell if cell not in header.values() else f"{cell} ({len(header)})"
        cleaned.rename(header).write_csv(temporary)


def results(analysis: Analysis) -> pl.DataFrame:
    """One row per run, in the order of declaration, with all its columns.

    The metrics of a run that a halving stopped are in columns of their own, `stopped_validation_loss` and so on, beside
    `stopped_at`: `validation_loss` holds final results only, and is null for a stopped run. Numbers that
    `flaxformer measure` gave are columns too.
    """
    fingerprints = [trial.fingerprint for trial in analysis.study.trials]
    table = analysis.results.everything()
    declared = pl.Series(fingerprints, dtype=pl.String)
    table = table.with_columns(pl.col("fingerprint").fill_null(declared)).filter(pl.col("status").is_not_null())
    is_stopped = pl.col("status") == "stopped"
    final = [name for name in table.columns if f"initial_{name}" in table.columns] if len(analysis.stopped) else []
    moved = [pl.when(is_stopped & pl.col(f"initial_{name}").is_not_null()).then(pl.col(name)) for name in final]
    table = table.with_columns(
        *(own.alias(f"stopped_{name}") for name, own in zip(final, moved, strict=True)),
        *(pl.when(~is_stopped | pl.col(f"initial_{name}").is_null()).then(pl.col(name)) for name in final),
    )
    measured_numbers = [{"trial": trial} | values for trial, values in measured.by_trial(analysis).items()]
    if not measured_numbers:
        return table
    return table.join(pl.DataFrame(measured_numbers, infer_schema_length=None), "trial", "left", maintain_order="left")


def arms(analysis: Analysis) -> pl.DataFrame:
    """One row per arm: its labels, the mean of the metric with its 95 % interval, the sd, and numbers of runs."""
    found = [arm.estimate for arm in analysis.arms]
    names = [axis.name for axis in analysis.study.axes]
    columns: dict[str, Sequence[object]] = {name: [arm.labels[name] for arm in analysis.arms] for name in names}
    columns |= _estimates(analysis.study.metric, found)
    columns |= {"seeds": [one.n for one in found], "diverged": [arm.diverged for arm in analysis.arms]}
    return pl.DataFrame(columns | {"stopped_at": pl.Series([arm.stopped_at for arm in analysis.arms], dtype=pl.Int64)})


def contrasts(analysis: Analysis) -> pl.DataFrame:
    """One row per contrast that no claim is about, the findings first."""
    found = analysis.ordered_explorations
    judged = [one.judgement for one in found]
    return pl.DataFrame(
        {
            "axis": [one.axis for one in found],
            "label": [one.label for one in found],
            "reference": [one.reference for one in found],
            "with": [phrasing.labels(one.context) for one in found],
            **_estimates("difference", [one.effect for one in judged]),
            "seeds": [one.effect.n for one in judged],
            "p": [one.p for one in judged],
            "p_holm": [one.p_holm for one in judged],
            "p_discovery": [one.p_discovery for one in found],
            "finding": [one.finding for one in found],
        }
    )


def sweeps(analysis: Analysis) -> pl.DataFrame:
    """One row per line and number of each sweep: its best value, and the optimum with its 95 % interval."""
    return pl.DataFrame(list(_sweeps(analysis)), infer_schema_length=None)


def _sweeps(analysis: Analysis) -> Iterator[dict[str, object]]:
    for sweep in analysis.sweeps:
        for line in sweep.lines:
            best, optimum = line.best, line.optimum
            score = _estimates(analysis.study.metric, [best.arm.estimate] if best else [])
            for name in sweep.names:
                yield {
                    "sweep": name,
                    "with": phrasing.labels(line.labels),
                    "best": best.numbers[name] if best else None,
                    **{column: next(iter(values), None) for column, values in score.items()},
                    "seeds": best.arm.estimate.n if best else 0,
                    "optimum": optimum.value if optimum else None,
                    "optimum_low": _known(optimum.low) if optimum else None,
                    "optimum_high": _known(optimum.high) if optimum else None,
                    "values_tried": len(line.points),
                }


def _estimates(name: str, found: list[Estimate]) -> dict[str, list[float | None]]:
    """Mean, ends of the interval and standard deviation in a column each; None where they are not defined."""
    columns = {"": "mean", "_low": "low", "_high": "high", "_sd": "sd"}
    return {f"{name}{end}": [_known(getattr(one, field)) for one in found] for end, field in columns.items()}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
