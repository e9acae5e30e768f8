"""Training the runs of a study by workers elsewhere: the options --launcher and those that go with it."""

import jax
from rich.console import Console

from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import exit_code, show_report
from flaxformer.jobs.study_trackers import track
from flaxformer.launchers import Options, Payload, launch
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import check_recipes, missing, store_of
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of


def options_of(arguments: RunStudy) -> Options:
    """Options of the launcher."""
    return Options(arguments.workers, arguments.slurm, arguments.ray, arguments.interface)


def check_options(arguments: RunStudy) -> None:
    """Refuse options that the launcher, or its absence, has no use for."""
    options_of(arguments).check(arguments.launcher)
    for name in ("coordinator", "processes", "process"):
        if arguments.launcher is not None and (value := getattr(arguments, name)) is not None:
            raise UserError(f"--{name} is given {value} and launcher is {arguments.launcher}; expected one of them")


def launch_workers(arguments: RunStudy, study: Study, execution: Execution, console: Console) -> int:
    """Hand the study to a launcher; the exit code."""
    jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    store = store_of(study, execution)
    plan = StudyPlan(study)
    check_recipes(plan, store)
    todo = missing(plan, store, retry_failed=arguments.retry_failed)
    runs = sum(len(group.trials) for group in todo)
    size = f"{count_of(runs, 'run')} to train in {count_of(len(todo), 'program')}"
    console.print(f"{study.name}: {size}; results in {store.root}", highlight=False, soft_wrap=True)
    payload = Payload(
        file=study.file or arguments.file,
        jobs=(),
        execution=execution,
        overrides=arguments.overrides,
        seeds=arguments.seeds,
        retry_failed=arguments.retry_failed,
        on_error=arguments.on_error,
        on_code_change=arguments.on_code_change,
    )
    if not launch(str(arguments.launcher), plan, payload, options_of(arguments), console):
        console.print(
            f"flaxformer status {store.root} shows their progress; the same command later trains what is left.",
            highlight=False,
        )
        return 0
    list(track((), store, arguments.track))
    failed = show_report(store, console)
    left = sum(len(group.trials) for group in missing(plan, store))
    if left:
        console.print(f"{count_of(left, 'run')} without a result; run the same command again.", style="red")
    return exit_code(failed, console) or (FAILED if left else 0)
