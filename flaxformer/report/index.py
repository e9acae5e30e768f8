"""Index of a folder: a page with the question, answer and progress of each study, probe, job and ledger, with links."""

import dataclasses
import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from flaxformer.analysis.analysis import Analysis, analyse
from flaxformer.report import html, provenance_text, verdicts
from flaxformer.report.files import write
from flaxformer.report.job import JobResults, is_job, read_job, write_job_report
from flaxformer.report.table import Table
from flaxformer.report.texts import write_printable
from flaxformer.store import job_log
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.places import LEDGER, REPORT, RUNGS, kind_of
from flaxformer.store.store import Store, read_lines
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of

MOST_FOLDERS = 20_000
"""Number of folders that are searched for studies."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Summary of a study, probe, training job or ledger, for one row of the index."""

    report: Path
    """Its page, if it has one."""
    name: str
    question: str
    verdict: str
    seeds: str
    runs: str
    date: str
    analysis: Analysis | None = None
    """Analysis of a study or probe that can be read."""


def stores(folder: Path) -> list[Store]:
    """Return every study and probe in a folder and below it, ordered by path, without the rungs of a halving.

    Raises:
      UserError: there are more folders than a folder of results has.
    """
    return [Store(path) for path in _outputs(folder) if _is_study(path) and path.parent.name != RUNGS]


def jobs(folder: Path) -> list[Path]:
    """Return the folder of every training job in a folder and below it, ordered by path."""
    return [path for path in _outputs(folder) if is_job(path)]


def ledgers(folder: Path) -> list[Path]:
    """Return the folder of every ledger in a folder and below it, ordered by path."""
    return [path for path in _outputs(folder) if _is_ledger(path)]


def _is_ledger(path: Path) -> bool:
    return kind_of(path) == LEDGER


def _is_study(path: Path) -> bool:
    return not is_job(path) and not _is_ledger(path)


def _outputs(folder: Path) -> list[Path]:
    """Return every output folder of a study, probe, job or ledger in a folder and below it, ordered by path.

    The studies of a ledger's attempts are part of the ledger.
    """
    folders = []
    for number, (path, inner, files) in enumerate(os.walk(folder)):
        if number == MOST_FOLDERS:
            raise UserError(
                f"{folder} holds more than {MOST_FOLDERS:,} folders; expected the output folder of 'run', or a folder "
                "of such folders"
            )
        if "study.json" in files or "study.json" in inner or is_job(Path(path)) or _is_ledger(Path(path)):
            inner.clear()
            folders.append(Path(path))
    return sorted(folders)


def write_reports(folder: Path) -> list[Entry]:
    """Write the report of every study, probe and job that has results, and return their summaries."""
    return entries(folder, _write, write_job_report)


def _write(store: Store) -> Analysis:
    """Write a report; without results there is none, and the analysis says so."""
    try:
        return write(store)
    except UserError:
        return analyse(store)


def entries(
    folder: Path,
    analyse: Callable[[Store], Analysis] = analyse,
    read_job: Callable[[Path], JobResults] = read_job,
) -> list[Entry]:
    """Return a summary of each study, probe and job; of one that cannot be read, the error."""
    studies = [_entry(store, str(store.root.relative_to(folder)), analyse) for store in stores(folder)]
    return studies + [_job_entry(path, str(path.relative_to(folder)), read_job) for path in jobs(folder)]


def _job_entry(path: Path, name: str, read_job: Callable[[Path], JobResults]) -> Entry:
    try:
        job = read_job(path)
    except UserError as error:
        return Entry(path / REPORT, name, "", str(error), "", "", "")
    date = datetime.datetime.fromtimestamp((path / job_log.NAME).stat().st_mtime, datetime.UTC)
    answer = f"{'; '.join([job.state, *job.scores])}."
    steps = f"{job.step:,} of {count_of(job.steps, 'step')}"
    return Entry(path / REPORT, name, "training job", answer, "1", steps, f"{date:%Y-%m-%d}")


def _entry(store: Store, name: str, analyse: Callable[[Store], Analysis]) -> Entry:
    try:
        analysis = analyse(store)
    except UserError as error:
        return Entry(store.root / REPORT, name, "", str(error), "", "", "")
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
    return Entry(store.root / REPORT, name, study.question, answer, seeds, runs, date, analysis)


def index_table(folder: Path, listed: Sequence[Entry]) -> str:
    """Return the entries of a folder as an HTML table whose first column links to the reports."""
    rows = [[entry.name, entry.question, entry.verdict, entry.seeds, entry.runs, entry.date] for entry in listed]
    links = [entry.report.relative_to(folder).as_posix() if entry.report.exists() else None for entry in listed]
    header = ["study, probe, job or ledger", "question", "answer", "seeds", "done", "last run"]
    return html.table(Table("", header, rows, len(header)), links) if rows else ""


def write_index(folder: Path, listed: Sequence[Entry]) -> Path:
    """Write index.html for the studies, probes and jobs of a folder.

    Raises:
      UserError: the folder has none.
    """
    body = index_table(folder, listed)
    if not body:
        raise UserError(f"{folder} and the folders in it hold no study and no job; expected those of 'run' or 'train'")
    fragments = [f"<h1>Results in {html.escape(folder.resolve().name)}</h1>", body]
    write_printable(folder / "index.html", html.page(folder.resolve().name, fragments))
    return folder / "index.html"
