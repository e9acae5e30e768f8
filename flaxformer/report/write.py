"""Write the report of a folder of results: whole tables, results.md, results.tex, figures/ and report.html."""

from pathlib import Path

from flaxformer.analysis.analysis import Analysis, analyse_to_show
from flaxformer.report import figures, markdown, page, tex
from flaxformer.report.document import document
from flaxformer.report.files import write_files
from flaxformer.report.sections import Figure
from flaxformer.report.texts import write_printable
from flaxformer.store.declaration import QUANTITY
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.records import write_table
from flaxformer.store.store import Store, read_lines
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of


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
        "report.html": page.render(report, drawn),
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


def report_path(store: Store) -> Path:
    """Path of the HTML report."""
    return store.root / "report.html"
