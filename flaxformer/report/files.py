"""Complete tables beside the page, each as Parquet and CSV: one row per run, arm, contrast, and line of a sweep.

The page and the documents show the first rows of a table; these files have all, with all digits.
"""

import math
from pathlib import Path

import polars as pl

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import measured
from flaxformer.report.sections import StudyReport
from flaxformer.report.table import FOLDER, ItemTable
from flaxformer.report.texts import csv_cell
from flaxformer.store.records import write_table, writing
from flaxformer.system.files import make_folder, replacing

RESULTS = "results"


def write_files(analysis: Analysis, document: StudyReport, folder: Path) -> None:
    """Write results.parquet and results.csv, and the files of the document's tables in `FOLDER`."""
    if len(analysis.rows):
        _write(results(analysis), folder, RESULTS)
    for name, table in tables(document).items():
        make_folder(folder / FOLDER)
        _write(table, folder / FOLDER, name)


def tables(document: StudyReport) -> dict[str, pl.DataFrame]:
    """Return the files of a document's tables by their names: a row per item; NaN is null.

    Tables of one file about the same items give their columns, those about others more rows.
    """
    files: dict[str, dict[int, dict[str, object]]] = {}
    for part in document.parts:
        if isinstance(part, ItemTable) and part.file and part.items:
            rows = files.setdefault(part.file, {})
            for item in part.items:
                rows[id(item)] = rows.get(id(item), {}) | part.values(item)
    return {name: _frame([*rows.values()]) for name, rows in files.items()}


def _frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pl.Series([_null_for_nan(row.get(name)) for row in rows], strict=False) for name in names}
    return pl.DataFrame(columns).with_columns(pl.selectors.by_dtype(pl.Null).cast(pl.Float64))


def _null_for_nan(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


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
    final = [name for name in table.columns if f"initial_{name}" in table.columns] if len(analysis.stopped_runs) else []
    moved = [pl.when(is_stopped & pl.col(f"initial_{name}").is_not_null()).then(pl.col(name)) for name in final]
    table = table.with_columns(
        *(expression.alias(f"stopped_{name}") for name, expression in zip(final, moved, strict=True)),
        *(pl.when(~is_stopped | pl.col(f"initial_{name}").is_null()).then(pl.col(name)) for name in final),
    )
    measured_numbers = [{"trial": trial} | values for trial, values in measured.by_trial(analysis).items()]
    if not measured_numbers:
        return table
    return table.join(pl.DataFrame(measured_numbers, infer_schema_length=None), "trial", "left", maintain_order="left")
