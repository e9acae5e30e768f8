"""Write the report of a folder of results: results.parquet, results.md, results.tex, figures/ and report.html."""

from pathlib import Path

from flaxformer.digests import JsonObject
from flaxformer.files import write_atomically
from flaxformer.report import tables
from flaxformer.report.page import render
from flaxformer.store.records import write_table
from flaxformer.store.rows import Row
from flaxformer.store.store import Store, read_lines
from flaxformer.struct import UserError
from flaxformer.study.analysis import Analysis, analyse_to_show
from flaxformer.study.claim import QUANTITY


def write(store: Store) -> Analysis:
    """Write all files of the report; the study may be incomplete, which is recorded as an interim analysis.

    Raises:
      UserError: the folder holds no study, or no finished run yet.
    """
    from flaxformer.report.figures import draw  # here, since importing matplotlib takes a third of a second

    analysis = analyse_to_show(store, "report")
    if not analysis.rows and not analysis.quantities:
        raise UserError(f"{store.root} holds no finished run yet; expected the results of 'flaxformer run'")
    for name, table in (("results", results(analysis)), ("quantities", _quantities(analysis))):
        if table:
            write_table(store.root / f"{name}.parquet", table)
    figures = draw(analysis, store.root / "figures")
    launches = read_lines(store.root / "launches.jsonl")
    for name, text in {
        "report.html": render(analysis, figures, launches),
        "results.md": tables.document(analysis),
        "results.tex": tables.paper(analysis),
    }.items():
        write_atomically(store.root / name, text.encode())
    return analysis


def results(analysis: Analysis) -> list[Row]:
    """Rows of results.parquet, in the order of declaration.

    The metrics of a run that a halving stopped are in columns of their own, `stopped_validation_loss` and so on, beside
    `stopped_at`: `validation_loss` holds final results only, and is null for a stopped run.
    """
    order = {trial["trial"]: i for i, trial in enumerate(analysis.study["trials"])}
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in analysis.study["trials"]}
    rows = sorted(analysis.rows, key=lambda row: order[row.trial])
    own = [row | {"fingerprint": row.fingerprint or fingerprints[row.trial]} for row in rows]
    return [_without_final_metrics(row) if row.status == "stopped" else row for row in own]


def _without_final_metrics(row: Row) -> Row:
    """A stopped run's row with its metrics moved to columns of their own."""
    final = [name for name in row.metrics if f"initial_{name}" in row.metrics]
    return row | dict.fromkeys(final) | {f"stopped_{name}": row.metrics[name] for name in final}


def _quantities(analysis: Analysis) -> list[JsonObject]:
    return [
        {"quantity": one.labels[QUANTITY], "seed": seed, "value": value}
        for one in analysis.quantities
        for seed, value in zip(analysis.study["seeds"], one.scores, strict=True)
    ]


def report_path(store: Store) -> Path:
    """Path of the HTML report."""
    return store.root / "report.html"
