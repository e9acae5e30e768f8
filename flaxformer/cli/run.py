"""The command `flaxformer run FILE`, in this process; see `launcher` for workers elsewhere."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.launcher import check_options, launch_workers
from flaxformer.cli.show import exit_code, show_report
from flaxformer.cli.study import load
from flaxformer.devices import distributed
from flaxformer.jobs import trackers
from flaxformer.jobs.progress import Totals, follow
from flaxformer.jobs.study_trackers import track
from flaxformer.runner.events import Finished
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import check_recipes, declare, missing, plan_of, run_plan, store_of
from flaxformer.runner.launchers import Share
from flaxformer.runner.stages import describe_stages, is_staged, remaining_work
from flaxformer.store.columns import statuses
from flaxformer.store.store import Store
from flaxformer.study.plan import StudyPlan
from flaxformer.system.wording import count_of


def main(arguments: RunStudy, console: Console) -> int:
    """Train the missing runs, then write and show the report."""
    check_options(arguments)
    trackers.check(arguments.track)
    if arguments.launcher is not None:
        return launch_workers(arguments, *load(arguments), console)
    distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    study, execution = load(arguments)
    plan = plan_of(study, execution)
    only, retry, on_code_change = (
        _names_of_share(arguments.share, plan),
        arguments.retry_failed,
        arguments.on_code_change,
    )
    events = run_plan(plan, execution, only, retry, arguments.on_error, on_code_change)
    if not distributed.is_coordinator():  # the first process writes and prints all
        failed = [isinstance(event, Finished) and event.row["status"] == "failed" for event in events]
        return FAILED if any(failed) else 0
    store = store_of(study, execution)
    if is_staged(plan):
        check_recipes(plan, store)
    else:
        declare(plan, store, on_code_change)
    for line in describe(plan, execution, store, only, retry):
        console.print(line, highlight=False, soft_wrap=True)
    totals = Totals(*remaining_work(plan, execution, only, retry))
    failures = follow(track(events, store, arguments.track), console, totals)
    if arguments.share is not None:  # the launcher shows the report of all shares
        return FAILED if failures else 0
    return exit_code(show_report(store, console, arguments.full), console)


def _names_of_share(text: str | None, plan: StudyPlan) -> list[str] | None:
    """Return the names of the runs of a share; None for all, which processes divide among themselves by leases."""
    share = Share(1, 1) if text is None else Share.parse(text)
    return None if share.parts == 1 else share.names(plan.declaration.trials)


def describe(
    plan: StudyPlan, execution: Execution, store: Store, only: list[str] | None, retry_failed: bool
) -> Iterator[str]:
    """Yield lines that say how many runs are to be trained, how many ended before, and where the results are."""
    todo = missing(plan, store, only, retry_failed)
    left = sum(len(group.trials) for group in todo)
    known = statuses(store)
    names = only or [trial.name for group in plan.groups for trial in group.trials]
    ended = Counter(known[name] == "failed" for name in names if name in known)
    clauses = [f"{count_of(left, 'run')} to train"]
    clauses[0] += f" in {count_of(len(todo), 'compiled program')} on {execution.where}" if left else ""
    clauses += [f"{ended[False]} already finished"] if ended[False] else []
    clauses += [f"{ended[True]} failed before"] if ended[True] else []
    yield f"{plan.study.name}: {', '.join(clauses)}"
    yield f"Results in {store.root}"
    yield from describe_stages(plan, execution)
