"""The command `flaxformer status DIR`."""

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from flaxformer.cli.arguments import Status
from flaxformer.cli.show import damage_line
from flaxformer.cli.study_progress import groups_table, is_over, lease_line, summary
from flaxformer.cli.terminal import print_json
from flaxformer.ledger.reading import is_ledger, read_ledger
from flaxformer.report.job import is_job, read_job
from flaxformer.report.width import fit_width
from flaxformer.store.status import StudyStatus, status
from flaxformer.store.store import Store
from flaxformer.system.wording import count_of

SECONDS_BETWEEN_VIEWS, SECONDS_BETWEEN_LINES = 2.0, 15.0
"""Seconds between two readings of the folder: in a terminal, and in a file or pipe."""


def main(arguments: Status, console: Console) -> int:
    """Print the progress once, or until every run has ended."""
    if arguments.serve is not None:
        from flaxformer.cli.folder_page import serve  # here, since it needs the parts of reports

        return serve(arguments.directory, arguments.serve, console)
    if is_ledger(arguments.directory):
        return ledger_status(arguments, console)
    if is_job(arguments.directory):
        return job_status(arguments, console)
    store = Store(arguments.directory)
    if arguments.json:
        print_json(status(store))
    elif not arguments.watch:
        console.print(view(status(store), console.width))
    elif console.is_terminal:
        watch(store, console)
    else:
        log(store, console)
    return 0


def ledger_status(arguments: Status, console: Console) -> int:
    """Print the answer of a ledger, its last attempts, and what limits them; once, since attempts have no end."""
    from flaxformer.ledger.page import as_json, describe  # here, since they import the parts of reports

    results = read_ledger(arguments.directory)
    if arguments.json:
        print_json(as_json(results))
    else:
        for line in describe(results):
            console.print(line)
    return 0


def job_status(arguments: Status, console: Console) -> int:
    """Print the progress of a training job, once or until it has ended."""
    while True:
        job = read_job(arguments.directory)
        if arguments.json:
            print_json({"step": job.step, "steps": job.steps, "best": job.best, "diverged": job.has_diverged})
        else:
            console.print("; ".join([job.state, *job.scores]))
        if not arguments.watch or job.is_finished or job.has_diverged:
            return 0
        time.sleep(SECONDS_BETWEEN_LINES)


def watch(store: Store, console: Console) -> None:
    """Show progress and estimates, read again and again, until every run has ended."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            progress = status(store)
            live.update(Group(view(progress, console.width), estimates(store)), refresh=True)
            if is_over(progress):
                return
            time.sleep(SECONDS_BETWEEN_VIEWS)


def log(store: Store, console: Console) -> None:
    """Print a line for the progress and one per claim, at an interval, until every run has ended."""
    while True:
        progress = status(store)
        console.print(summary(progress))
        console.print(estimates(store))
        if is_over(progress):
            return
        time.sleep(SECONDS_BETWEEN_LINES)


def view(progress: StudyStatus, width: int) -> RenderableType:
    """Progress of a study: a row per program, a line per process; before them the rungs of a halving."""
    renderables: list[RenderableType] = []
    for step, rung in progress["rungs"].items():
        renderables += [Text(f"Runs up to step {step}, after which the worst arms are stopped:", style="dim")]
        renderables += [view(rung, width), Text()]
    if progress["rungs"]:
        renderables.append(Text("Runs to the last step:", style="dim"))
    renderables += [Text(summary(progress)), fit_width(groups_table(progress), width)]
    renderables += [Text(line) for line in map(lease_line, progress["leases"])]
    for name, what in progress["damaged"].items():
        renderables.append(damage_line(Path(progress["folder"]) / name, what))
    return Group(*renderables)


def estimates(store: Store) -> RenderableType:
    """The estimate of each claim from the runs so far, which is recorded as an interim analysis.

    There is no verdict before all runs have ended.
    """
    from flaxformer.analysis.analysis import analyse_to_show  # here, since progress alone needs no analysis
    from flaxformer.report import phrasing, verdicts

    texts, analysis = [], analyse_to_show(store, "status")
    for claim in analysis.claims:
        n = claim.judgement.effect.n
        seeds = count_of(n, "seed") if n else "no seed yet"
        estimate = f"{phrasing.effect(claim)}, claimed {phrasing.claim_text(claim)}, {seeds}" if n else seeds
        style = verdicts.STYLES[claim.judgement.verdict] if not analysis.missing else ""
        texts.append(Text.assemble(f"{claim.text}: ", (estimate, style)))
    return Group(*texts)
