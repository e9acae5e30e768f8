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
from flaxformer.jobs.study_trackers import track
from flaxformer.runner.execute import Finished
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import check_recipes, declare, missing, run, store_of
from flaxformer.runner.progress import follow
from flaxformer.runner.stages import describe_stages, is_staged, remaining_work, resolve_study
from flaxformer.store.columns import statuses
from flaxformer.store.store import Store
from flaxformer.study.declare import Study
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
    if not distributed.is_coordinator():
        return _follow_coordinator(study, execution)
    store, plan = store_of(study, execution), StudyPlan(resolve_study(study, execution))
    check_recipes(plan, store)
    if not is_staged(study):
        declare(plan, store, arguments.on_code_change)
    for line in _work_to_do(study, plan, execution, store, arguments.retry_failed):
        console.print(line, highlight=False, soft_wrap=True)
    runs, steps = remaining_work(study, plan, execution, arguments.retry_failed)
    events = run(
        study,
        execution,
        retry_failed=arguments.retry_failed,
        on_error=arguments.on_error,
        on_code_change=arguments.on_code_change,
        plan=plan,
    )
    follow(track(events, store, arguments.track), console, runs, steps)
    return exit_code(show_report(store, console), console)


def _follow_coordinator(study: Study, execution: Execution) -> int:
    """Train with the first process of a job, which writes and prints all; the exit code."""
    found = [event.row["status"] for event in run(study, execution) if isinstance(event, Finished)]
    return FAILED if "failed" in found else 0


def _work_to_do(study: Study, plan: StudyPlan, execution: Execution, store: Store, retry_failed: bool) -> Iterator[str]:
    """Yield lines that say how many runs are to be trained, how many ended before, and where the results are."""
    todo = missing(plan, store, retry_failed=retry_failed)
    left = sum(len(group.trials) for group in todo)
    known = statuses(store)
    names = [trial.name for group in plan.groups for trial in group.trials]
    ended = Counter(known[name] == "failed" for name in names if name in known)
    parts = [f"{count_of(left, 'run')} to train"]
    parts[0] += f" in {count_of(len(todo), 'compiled program')} on {execution.where}" if left else ""
    parts += [f"{ended[False]} already finished"] if ended[False] else []
    parts += [f"{ended[True]} failed before"] if ended[True] else []
    yield f"{study.name}: {', '.join(parts)}"
    yield f"Results in {store.root}"
    yield from describe_stages(study, plan, execution)
