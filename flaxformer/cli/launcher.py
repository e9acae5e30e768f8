"""Training the runs of a study by workers elsewhere: the options --launcher and those that go with it."""

import dataclasses
from pathlib import Path

import jax
from rich.console import Console

from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.live import live_page
from flaxformer.cli.show import exit_code, show_report
from flaxformer.jobs.trackers.choose import trackers_of
from flaxformer.jobs.trackers.trials import track
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import check_recipes, missing, plan_of, store_of
from flaxformer.runner.launchers.launching import launch
from flaxformer.runner.launchers.options import Options
from flaxformer.store.store import Store
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan
from flaxformer.system.wording import count_of

NOT_PASSED = ("launcher", "workers", "slurm", "ray", "share", "on_code_change", "track", "live", "overrides")
"""Arguments that a worker does not get as they are: those of the launcher, and what it does once for all workers."""


def words_of(arguments: RunStudy, file: Path, output: Path) -> list[str]:
    """Return what a worker gets after `flaxformer run`: the arguments with absolute paths."""
    arguments = dataclasses.replace(arguments, output=output)
    words = [str(file)]
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if field.name not in ("file", *NOT_PASSED) and value != field.default:
            words += [f"--{field.name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words + (["--set", *arguments.overrides] if arguments.overrides else [])


def launch_workers(arguments: RunStudy, study: Study, execution: Execution, console: Console) -> int:
    """Hand the study to a launcher; the exit code."""
    jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    trackers = trackers_of(arguments.track, study.file)
    store, plan = store_of(study, execution), plan_of(study, execution)
    check_recipes(plan, store)
    todo = missing(plan, store, retry_failed=execution.retry_failed)
    runs = sum(len(group.trials) for group in todo)
    size = f"{count_of(runs, 'run')} to train in {count_of(len(todo), 'program')}"
    console.print(f"{study.name}: {size}; results in {store.root}", soft_wrap=True)
    with live_page(store.root, arguments.live, console):
        has_ended = launch(
            str(arguments.launcher),
            plan,
            execution,
            words_of(arguments, (study.file or arguments.file).resolve(), store.root.resolve()),
            Options(arguments.workers, arguments.slurm, arguments.ray),
            console,
        )
        if not has_ended:
            console.print(
                f"flaxformer status {store.root} shows their progress; the same command later trains what is left."
            )
            return 0
        list(track((), store, trackers))
        return end_of(store, plan, console, arguments.full)


def end_of(store: Store, plan: StudyPlan, console: Console, is_full: bool = False) -> int:
    """Show the report after all workers have ended; the exit code."""
    failed = show_report(store, console, is_full)
    left = sum(len(group.trials) for group in missing(plan, store))
    if left:
        console.print(f"{count_of(left, 'run')} without a result; run the same command again.", style="red")
    return exit_code(failed, console) or (FAILED if left else 0)
