"""Writing a report, from the store alone: results.parquet, results.md, results.tex, figures/, report.html."""

from pathlib import Path

from flaxformer.files import write_atomically
from flaxformer.report import tables
from flaxformer.report.page import render
from flaxformer.store.records import write_table
from flaxformer.store.store import Store, read_lines
from flaxformer.struct import UserError
from flaxformer.study.analysis import Analysis, analyse
from flaxformer.study.claim import QUANTITY


def write(store: Store) -> Analysis:
    """Write everything that the report consists of; works on a study that is not complete.

    Raises:
      UserError: the folder holds no study, or no finished run yet.
    """
    from flaxformer.report.figures import draw  # here, for matplotlib takes a third of a second to import

    analysis = analyse(store)
    if not analysis.rows and not analysis.quantities:
        raise UserError(f"{store.root} holds no finished run yet; 'flaxformer run' makes them")
    order = {trial["trial"]: i for i, trial in enumerate(analysis.study["trials"])}
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in analysis.study["trials"]}
    rows = [
        {"fingerprint": fingerprints[row["trial"]]} | row
        for row in sorted(analysis.rows, key=lambda row: order[row["trial"]])
    ]
    numbers = [
        {"quantity": one.labels[QUANTITY], "seed": seed, "value": value}
        for one in analysis.quantities
        for seed, value in zip(analysis.study["seeds"], one.scores, strict=True)
    ]
    for name, table in (("results", rows), ("quantities", numbers)):
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


def report_path(store: Store) -> Path:
    """Path of the HTML report."""
    return store.root / "report.html"
