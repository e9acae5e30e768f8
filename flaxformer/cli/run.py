"""The command `flaxformer run FILE`, in this process; see `launcher` for workers elsewhere."""

from collections import Counter

from rich.console import Console

from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.launcher import check_options, launch_workers
from flaxformer.cli.study import exit_code, load, show_report
from flaxformer.devices import distributed
from flaxformer.jobs import trackers
from flaxformer.jobs.study_trackers import track
from flaxformer.runner.execute import Finished
from flaxformer.runner.launch import check_recipes, declare, missing, run, store_of
from flaxformer.runner.progress import follow
from flaxformer.runner.stages import describe_stages, is_staged, remaining_work, resolve_study
from flaxformer.store.columns import statuses
from flaxformer.system.wording import counted


def main(arguments: RunStudy, console: Console) -> int:
    """Train the missing runs, then write and show the report."""
    check_options(arguments)
    trackers.check(arguments.track)
    if arguments.launcher is not None:
        return launch_workers(arguments, *load(arguments), console)
    distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    study, execution = load(arguments)
    if not distributed.is_coordinator():
        found = [event.row["status"] for event in run(study, execution) if isinstance(event, Finished)]
        return FAILED if "failed" in found else 0
    store, ordinary = store_of(study, execution), resolve_study(study, execution)
    check_recipes(ordinary, store)
    if not is_staged(study):
        declare(study, store, arguments.on_code_change)
    todo = missing(ordinary, store, retry_failed=arguments.retry_failed)
    left = sum(len(group.trials) for group in todo)
    known = statuses(store)
    ended = Counter(known[trial.name] == "failed" for trial in ordinary.trials() if trial.name in known)
    parts = [f"{counted(left, 'run')} to train"]
    parts[0] += f" in {counted(len(todo), 'compiled program')} on {execution.where}" if left else ""
    parts += [f"{ended[False]} already finished"] if ended[False] else []
    parts += [f"{ended[True]} failed before"] if ended[True] else []
    console.print(f"{study.name}: {', '.join(parts)}", highlight=False)
    console.print(f"Results in {store.root}", highlight=False, soft_wrap=True)
    for line in describe_stages(study, execution):
        console.print(line, highlight=False)
    runs, steps = remaining_work(study, execution, arguments.retry_failed)
    events = run(
        study,
        execution,
        retry_failed=arguments.retry_failed,
        on_error=arguments.on_error,
        on_code_change=arguments.on_code_change,
    )
    follow(track(events, store, arguments.track), console, runs, steps)
    return exit_code(show_report(store, console), console)
