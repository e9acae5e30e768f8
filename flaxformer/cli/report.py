"""The command `flaxformer report DIR`."""

import os

from rich.console import Console

from flaxformer.claims.record import holds_claims
from flaxformer.claims.table import rewrite
from flaxformer.cli.arguments import Report
from flaxformer.cli.show import show_job, show_ledger, show_paths, show_report
from flaxformer.ledger.reading import is_ledger, read_ledger
from flaxformer.report import index, terminal
from flaxformer.report.job import is_job
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError


def main(arguments: Report, console: Console) -> int:
    """Write the report of a study, job or ledger, or of all studies and jobs in a folder, with an index page."""
    folder = arguments.directory
    if is_ledger(folder):
        show_ledger(read_ledger(folder), console, arguments.json)
        return 0
    if is_job(folder) and arguments.json:
        raise UserError(f"--json with {folder}, a training job; expected 'flaxformer status {folder} --json'")
    if is_job(folder):
        show_job(folder, console)
        return 0
    if os.path.lexists(folder / "study.json") or not (index.stores(folder) or index.jobs(folder)):
        show_report(Store(folder), console, arguments.full, arguments.json)
        return 0
    if arguments.json:
        raise UserError(f"--json with {folder}, which holds several results; expected the folder of one")
    entries = index.write_reports(folder)
    page = rewrite(folder, entries) if holds_claims(folder) else index.write_index(folder, entries)
    terminal.show_answers(console, [(entry.name, entry.verdict) for entry in entries])
    console.print()
    show_paths(console, {"Index": page})
    return 0
