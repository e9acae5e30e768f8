"""Files of the report of a folder of results: report.html, results.md, results.tex, figures/, and whole tables.

The page and the documents show the first rows of a table. Its files, Parquet and CSV, have all, with all digits: a row
per run, arm, contrast, and line of a sweep.
"""

import math
from pathlib import Path

import polars as pl

from flaxformer.analysis.analysis import Analysis, analyse_to_show
from flaxformer.report import figures, html, markdown, measured, tex
from flaxformer.report.document import document
from flaxformer.report.sections import Figure, StudyReport
from flaxformer.report.table import FOLDER, ItemTable
from flaxformer.report.texts import csv_cell, write_printable
from flaxformer.store.declaration import QUANTITY
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.places import REPORT
from flaxformer.store.records import write_table, writing
from flaxformer.store.store import Store, read_lines
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, replacing
from flaxformer.system.wording import count_of

RESULTS = "results"


def write(store: Store) -> Analysis:
    """Write all files of the report; the study may be incomplete, which is recorded as an interim analysis.

    Raises:
      UserError: the folder holds no study, or no finished run yet.
    """
    analysis = analyse_to_show(store, "report")
    if not (len(analysis.rows) or analysis.quantities or analysis.withdrawn):
        earlier = sum(analysis.results.declarations.values())
        kept = f" of the arms that its study declares ({count_of(earlier, 'result')} of other arms)" if earlier else ""
        raise UserError(f"{store.root} holds no finished run yet{kept}; expected the results of 'flaxformer run'")
    report = document(analysis, read_lines(store.root / LAUNCHES))
    write_files(analysis, report, store.root)
    if quantities := _quantities(analysis):
        write_table(store.root / "quantities.parquet", quantities)
    drawn = figures.draw((part for part in report.parts if isinstance(part, Figure)), store.root / "figures")
    texts = {
        REPORT: html.render(report, drawn),
        "results.md": markdown.render(report),
        "results.tex": tex.render(report),
    }
    for name, text in texts.items():
        write_printable(store.root / name, text)
    return analysis


def _quantities(analysis: Analysis) -> list[JsonObject]:
    return [
        {"quantity": quantity.labels[QUANTITY], "seed": seed, "value": value}
        for quantity in analysis.quantities
        for seed, value in zip(analysis.study.seeds, quantity.scores, strict=True)
    ]


def write_files(analysis: Analysis, report: StudyReport, folder: Path) -> None:
    """Write results.parquet and results.csv, and the files of the report's tables in `FOLDER`."""
    if len(analysis.rows):
        _write_table(results(analysis), folder, RESULTS)
    for name, table in tables(report).items():
        make_folder(folder / FOLDER)
        _write_table(table, folder / FOLDER, name)


def tables(report: StudyReport) -> dict[str, pl.DataFrame]:
    """Return the files of a report's tables by their names: a row per item; NaN is null.

    Tables of one file about the same items give their columns, those about others more rows.
    """
    files: dict[str, dict[int, dict[str, object]]] = {}
    for part in report.parts:
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


def _write_table(table: pl.DataFrame, folder: Path, name: str) -> None:
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
