"""A page over all studies and probes of a folder: what was asked, what came out, how far it is, and the report."""

import contextlib
import dataclasses
from pathlib import Path

from flaxformer.files import write_atomically
from flaxformer.report import html, phrasing, provenance_text
from flaxformer.report.tables import Table
from flaxformer.report.write import report_path, write
from flaxformer.store.store import RUNGS, Store, read_lines
from flaxformer.struct import UserError
from flaxformer.study.analysis import analyse


@dataclasses.dataclass(frozen=True)
class Entry:
    """One study or probe, in a line."""

    store: Store
    name: str
    question: str
    verdict: str
    seeds: str
    runs: str
    date: str


def stores(folder: Path) -> list[Store]:
    """Every study and probe in a folder and below it, by path, but for the rungs of a halving."""
    found = (path.parent for path in sorted(folder.rglob("study.json")))
    return [Store(path) for path in found if path.parent.name != RUNGS]


def write_reports(folder: Path) -> None:
    """Write the report of each that has something to report."""
    for store in stores(folder):
        with contextlib.suppress(UserError):  # the index says what is wrong with it
            write(store)


def entries(folder: Path) -> list[Entry]:
    """Return a summary of each; one that cannot be read has the reason."""
    return [_entry(store, str(store.root.relative_to(folder))) for store in stores(folder)]


def _entry(store: Store, name: str) -> Entry:
    try:
        analysis = analyse(store)
    except UserError as error:
        return Entry(store, name, "", str(error), "", "", "")
    study = analysis.study
    if study["kind"] == "probe":
        done, of, what = max((one.estimate.n for one in analysis.quantities), default=0), len(study["seeds"]), "seeds"
    else:
        done, of, what = len(study["trials"]) - analysis.missing, len(study["trials"]), "runs"
    seeds = "exact" if analysis.exact else str(len(study["seeds"]))
    runs = f"{done} {what}" if done == of else f"{done} of {of} {what}, {of - done} missing"
    said = phrasing.verdict(analysis) if done else "Nothing is measured yet."
    date = provenance_text.date(read_lines(store.root / "launches.jsonl"))
    return Entry(store, name, study["question"], said, seeds, runs, date)


def listing(folder: Path) -> str:
    """The entries as a table whose first column leads to the reports."""
    found = entries(folder)
    rows = [[one.name, one.question, one.verdict, one.seeds, one.runs, one.date] for one in found]
    links = [
        report_path(one.store).relative_to(folder).as_posix() if report_path(one.store).exists() else None
        for one in found
    ]
    header = ["study or probe", "question", "answer", "seeds", "done", "last run"]
    return html.table(Table("", header, rows, len(header)), links, cards=True) if rows else ""


def write_index(folder: Path) -> Path:
    """Write index.html over every study and probe of the folder.

    Raises:
      UserError: there is none.
    """
    body = listing(folder)
    if not body:
        raise UserError(f"{folder} holds no study, nor does a folder in it; expected the output folder of 'run'")
    parts = [f"<h1>Studies and probes in {html.escape(folder.resolve().name)}</h1>", body]
    write_atomically(folder / "index.html", html.page(folder.resolve().name, parts).encode())
    return folder / "index.html"
