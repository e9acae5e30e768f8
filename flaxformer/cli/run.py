"""The command `flaxformer run FILE`, in this process; see `launcher` for workers elsewhere."""

import dataclasses

from rich.console import Console

from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.launcher import launch_workers
from flaxformer.cli.live import live_page
from flaxformer.cli.show import exit_code, show_report
from flaxformer.cli.study import load
from flaxformer.devices import distributed
from flaxformer.jobs.progress import follow
from flaxformer.jobs.run_study import begin
from flaxformer.jobs.trackers.choose import trackers_of
from flaxformer.jobs.trackers.trials import track
from flaxformer.runner.events import Finished
from flaxformer.runner.launch import plan_of, run_plan
from flaxformer.runner.launchers.options import Share
from flaxformer.study.plan import StudyPlan


def main(arguments: RunStudy, console: Console) -> int:
    """Train the missing runs, then write and show the report."""
    if arguments.launcher is not None:
        return launch_workers(arguments, *load(arguments), console)
    distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    study, execution = load(arguments)
    trackers = trackers_of(arguments.track, study.file)
    if arguments.share is not None and Share.parse(arguments.share).number > 1:  # one trace is enough
        execution = dataclasses.replace(execution, profile=None)
    plan = plan_of(study, execution)
    only = _names_of_share(arguments.share, plan)
    events = run_plan(plan, execution, only)
    if not distributed.is_coordinator():  # the first process writes and prints all
        failed = [isinstance(event, Finished) and event.row["status"] == "failed" for event in events]
        return FAILED if any(failed) else 0
    store, lines, totals = begin(plan, execution, only)
    for line in lines if not arguments.json else ():
        console.print(line, soft_wrap=True)
    console = Console(quiet=True) if arguments.json else console
    with live_page(store.root, arguments.live, console):
        failures = follow(track(events, store, trackers), console, totals)
        if arguments.share is not None:  # the launcher shows the report of all shares
            return FAILED if failures else 0
        return exit_code(show_report(store, console, arguments.full, arguments.json), console)


def _names_of_share(text: str | None, plan: StudyPlan) -> list[str] | None:
    """Return the names of the runs of a share; None for all, which processes divide among themselves by leases."""
    share = Share(1, 1) if text is None else Share.parse(text)
    return None if share.parts == 1 else share.names(plan.declaration.trials)
