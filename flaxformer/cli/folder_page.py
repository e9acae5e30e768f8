"""Page of a folder as it is now: the report of what is complete, or the progress of a study.

A study whose runs are not all there has its progress, and no estimate: a look before the end would be an interim
analysis. Once it is complete, its report is shown; of training jobs and ledgers, always what there is.
"""

from pathlib import Path

from flaxformer.analysis.analysis import analyse
from flaxformer.cli.study_progress import groups_table, is_over, lease_line, summary
from flaxformer.ledger.page import document as ledger_document
from flaxformer.ledger.reading import is_ledger, read_ledger
from flaxformer.report import figures, html
from flaxformer.report.document import document
from flaxformer.report.job import is_job, job_document, read_job
from flaxformer.report.sections import Bullets, Figure, ReportSection, StudyReport
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.status import StudyStatus, status
from flaxformer.store.store import Store, read_lines


def page_of(folder: Path, seconds: float) -> str:
    """Return the page of a folder as it is now, which a browser asks for every few seconds until nothing more comes."""
    report, is_complete = _report_of(folder)
    drawn = figures.draw_for_notebook(part for part in report.parts if isinstance(part, Figure))
    text = html.render(report, drawn)
    refresh = f'<meta http-equiv="refresh" content="{seconds:g}">'
    return text if is_complete else text.replace("<head>", f"<head>\n{refresh}", 1)


def _report_of(folder: Path) -> tuple[StudyReport, bool]:
    """The report, and whether it is the last one; a ledger may always get another attempt."""
    if is_ledger(folder):
        return ledger_document(read_ledger(folder)), False
    if is_job(folder):
        job = read_job(folder)
        return job_document(job), job.is_finished or job.has_diverged
    store = Store(folder)
    progress = status(store)
    if not is_over(progress):
        return _progress(store, progress), False
    return document(analyse(store), read_lines(folder / LAUNCHES)), True


def _progress(store: Store, progress: StudyStatus) -> StudyReport:
    """The progress of a study as a report without results."""
    declared = store.read_declaration()
    damaged = [f"{name} is damaged ({what})." for name, what in progress["damaged"].items()]
    return StudyReport(
        name=declared.name,
        question=declared.question,
        about="verdicts follow when every run has ended",
        answer=f"{summary(progress)}.",
        verdict="",
        sections=[
            ReportSection("Programs", [groups_table(progress)]),
            ReportSection("Processes", [Bullets([*map(lease_line, progress["leases"]), *damaged])]),
        ],
    )
