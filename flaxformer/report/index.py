"""Index of a folder: a page with the question, answer and progress of each study and probe, and links to reports."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from flaxformer.analysis.analysis import Analysis, analyse
from flaxformer.report import html, provenance_text, verdicts
from flaxformer.report.table import Table
from flaxformer.report.texts import write_printable
from flaxformer.report.write import report_path, write
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.places import RUNGS
from flaxformer.store.store import Store, read_lines
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of

MOST_FOLDERS = 20_000
"""Number of folders that are searched for studies."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Summary of a study or probe, for one row of the index."""

    report: Path
    """Its page, if it has one."""
    name: str
    question: str
    verdict: str
    seeds: str
    runs: str
    date: str


def stores(folder: Path) -> list[Store]:
    """Return every study and probe in a folder and below it, ordered by path, without the rungs of a halving.

    Raises:
      UserError: there are more folders than a folder of results has.
    """
    folders = []
    for number, (path, inner, files) in enumerate(os.walk(folder)):
        if number == MOST_FOLDERS:
            raise UserError(
                f"{folder} holds more than {MOST_FOLDERS:,} folders; expected the output folder of 'run', or a folder "
                "of such folders"
            )
        if "study.json" in files or "study.json" in inner:
            inner.clear()
            folders += [Path(path)] if Path(path).parent.name != RUNGS else []
    return [Store(path) for path in sorted(folders)]


def write_reports(folder: Path) -> list[Entry]:
    """Write the report of every study and probe that has results, and return their summaries."""
    return entries(folder, _write)


def _write(store: Store) -> Analysis:
    """Write a report; without results there is none, and the analysis says so."""
    try:
        return write(store)
    except UserError:
        return analyse(store)


def entries(folder: Path, analyse: Callable[[Store], Analysis] = analyse) -> list[Entry]:
    """Return a summary of each study and probe; of one that cannot be read, the error."""
    return [_entry(store, str(store.root.relative_to(folder)), analyse) for store in stores(folder)]


def _entry(store: Store, name: str, analyse: Callable[[Store], Analysis]) -> Entry:
    try:
        analysis = analyse(store)
    except UserError as error:
        return Entry(report_path(store), name, "", str(error), "", "", "")
    study = analysis.study
    if study.kind == "probe":
        measured = [quantity.estimate.n for quantity in analysis.quantities]
        done, total, noun = max(measured, default=0), len(study.seeds), "seed"
    else:
        done, total, noun = len(study.trials) - analysis.missing, len(study.trials), "run"
    seeds = "exact" if analysis.exact else str(len(study.seeds))
    runs = count_of(total, noun)
    if done < total:
        runs = f"{done} of {runs}, {total - done} missing"
    answer = verdicts.verdict(analysis) if done else "No results yet."
    date = provenance_text.last_date(read_lines(store.root / LAUNCHES))
    return Entry(report_path(store), name, study.question, answer, seeds, runs, date)


def index_table(folder: Path, listed: Sequence[Entry]) -> str:
    """Return the entries of a folder as an HTML table whose first column links to the reports."""
    rows = [[entry.name, entry.question, entry.verdict, entry.seeds, entry.runs, entry.date] for entry in listed]
    links = [entry.report.relative_to(folder).as_posix() if entry.report.exists() else None for entry in listed]
    header = ["study or probe", "question", "answer", "seeds", "done", "last run"]
    return html.table(Table("", header, rows, len(header)), links) if rows else ""


def write_index(folder: Path, listed: Sequence[Entry]) -> Path:
    """Write index.html for the studies and probes of a folder.

    Raises:
      UserError: the folder has no study or probe.
    """
    body = index_table(folder, listed)
    if not body:
        raise UserError(f"{folder} and the folders in it hold no study; expected the output folder of 'run'")
    fragments = [f"<h1>Studies and probes in {html.escape(folder.resolve().name)}</h1>", body]
    write_printable(folder / "index.html", html.page(folder.resolve().name, fragments))
    return folder / "index.html"
