"""The command `flaxformer report DIR`."""

import os
from pathlib import Path

from rich.console import Console

from flaxformer.claims.record import holds_claims
from flaxformer.claims.table import rewrite
from flaxformer.cli.arguments import Report
from flaxformer.cli.show import show_job, show_ledger, show_paths, show_report
from flaxformer.ledger import page as ledger_page
from flaxformer.ledger.reading import is_ledger, read_ledger
from flaxformer.report import index, terminal
from flaxformer.report.job import is_job
from flaxformer.store.places import REPORT
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of


def main(arguments: Report, console: Console) -> int:
    """Write the report of a study, job or ledger, or of all of them in a folder, with an index page."""
    folder = arguments.directory
    if is_ledger(folder):
        show_ledger(read_ledger(folder), console, arguments.json)
        return 0
    if is_job(folder) and arguments.json:
        raise UserError(f"--json with {folder}, a training job; expected 'flaxformer status {folder} --json'")
    if is_job(folder):
        show_job(folder, console)
        return 0
    if os.path.lexists(folder / "study.json") or not any(
        find(folder) for find in (index.stores, index.jobs, index.ledgers)
    ):
        show_report(Store(folder), console, arguments.full, arguments.json)
        return 0
    if arguments.json:
        raise UserError(f"--json with {folder}, which holds several results; expected the folder of one")
    entries = [*index.write_reports(folder), *(_ledger_entry(path, folder) for path in index.ledgers(folder))]
    page = rewrite(folder, entries) if holds_claims(folder) else index.write_index(folder, entries)
    terminal.show_answers(console, [(entry.name, entry.verdict) for entry in entries])
    console.print()
    show_paths(console, {"Index": page})
    return 0


def _ledger_entry(path: Path, folder: Path) -> index.Entry:
    """Write the page of a ledger; return its row of the index."""
    name = str(path.relative_to(folder))
    try:
        results = read_ledger(path)
        page, answer = ledger_page.write_page(results), ledger_page.answer(results)
    except UserError as error:
        return index.Entry(path / REPORT, name, "", str(error), "", "", "")
    date = results.entries[-1].time[: len("2026-01-01")]
    return index.Entry(page, name, "ledger", answer, "", count_of(len(results.attempts), "attempt"), date)
