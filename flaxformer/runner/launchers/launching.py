"""Launch of the missing runs of a study in other processes."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import declare, missing, store_of
from flaxformer.runner.launchers import local, ray, slurm
from flaxformer.runner.launchers.options import Options, Share
from flaxformer.runner.stages import is_staged
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Launcher:
    """Functions of one launcher.

    Args:
      divide: returns the share of each worker, and checks the options before anything is written.
      start: starts one worker per share, given the words of `flaxformer run` and the output folder; returns true once
        all have ended, false if they are only submitted.
    """

    divide: Callable[[list[ProgramGroup], Options], list[Share]]
    start: Callable[[Sequence[str], list[Share], Path, Options, Console], bool]


LAUNCHERS = {
    "local": Launcher(local.divide, local.start),
    "slurm": Launcher(slurm.divide, slurm.start),
    "ray": Launcher(ray.divide, ray.start),
}


def launch(
    kind: str,
    plan: StudyPlan,
    execution: Execution,
    words: Sequence[str],
    options: Options,
    console: Console,
) -> bool:
    """Declare the study and start the workers that train its missing runs.

    Args:
      kind: name of a launcher in `LAUNCHERS`.
      plan: of the study.
      execution: its settings; the workers, which get them by `words`, refuse further changes of code.
      words: what follows `flaxformer run` on the command line of a worker; its share is added here.
      options: of the launcher.
      console: for messages.

    Returns:
      true if all workers have ended; false if the jobs are only submitted.

    Raises:
      UserError: unknown launcher, unsupported options, or a folder with results of another recipe.
    """
    if kind not in LAUNCHERS:
        raise UserError(f"launcher is '{kind}'{did_you_mean(kind, list(LAUNCHERS))}")
    options.check(kind)
    if is_staged(plan):
        raise UserError(
            f"study '{plan.study.name}' is trained in stages, which launchers do not support; run the command without "
            "--launcher, several times on one folder to share the work"
        )
    launcher, store = LAUNCHERS[kind], store_of(plan.study, execution)
    launcher.divide([], options)
    trials = declare(plan, store, execution.on_code_change).trials
    todo = missing(plan, store, retry_failed=execution.retry_failed)
    names = {trial.name for group in todo for trial in group.trials}
    shares = [share for share in launcher.divide(todo, options) if names.intersection(share.names(trials))]
    return not shares or launcher.start(words, shares, store.root.resolve(), options, console)
