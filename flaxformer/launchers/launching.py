"""Launch of the missing runs of a study in other processes."""

import dataclasses
import secrets
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from flaxformer.launchers import local, ray, slurm
from flaxformer.launchers.division import Jobs, Options, names
from flaxformer.launchers.payload import Payload, private
from flaxformer.runner.launch import declare, missing, store_of
from flaxformer.runner.stages import is_staged
from flaxformer.store.provenance import code
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Launcher:
    """Functions of one launcher.

    Args:
      divide: returns the groups of each job, and checks the options before anything is written.
      start: starts the jobs of a payload file; returns true once all have ended, false if they are only submitted.
    """

    divide: Callable[[list[ProgramGroup], Options], Jobs]
    start: Callable[[Path, Payload, Options, Console], bool]


LAUNCHERS = {
    "local": Launcher(local.divide, local.start),
    "slurm": Launcher(slurm.divide, slurm.start),
    "ray": Launcher(ray.divide, ray.start),
}


def launch(kind: str, plan: StudyPlan, payload: Payload, options: Options, console: Console) -> bool:
    """Declare the study and start the jobs that train its missing runs.

    Args:
      kind: name of a launcher in `LAUNCHERS`.
      plan: of the study that `payload.study()` returns.
      payload: the file and the overrides of the command line; the other fields are filled in here.

    Returns:
      true if all workers have ended; false if the jobs are only submitted.

    Raises:
      UserError: unknown launcher, unsupported options, or a folder with results of another recipe.
    """
    if kind not in LAUNCHERS:
        raise UserError(f"launcher is '{kind}'{did_you_mean(kind, list(LAUNCHERS))}")
    options.check(kind)
    study = plan.study
    if is_staged(plan):
        raise UserError(
            f"study '{study.name}' is trained in stages, which launchers do not support; run the command without "
            "--launcher, several times on one folder to share the work"
        )
    store = store_of(study, payload.execution)
    LAUNCHERS[kind].divide([], options)
    declare(plan, store, payload.on_code_change)
    todo = missing(plan, store, retry_failed=payload.retry_failed)
    jobs = LAUNCHERS[kind].divide(todo, options)
    if not todo:
        return True
    payload = dataclasses.replace(
        payload,
        file=payload.file.resolve(),
        jobs=names(jobs),
        interface=options.interface,
        execution=dataclasses.replace(payload.execution, output=store.root.resolve()),
        code=code(payload.file),
    )
    path = private(store.root.resolve() / "launches") / f"{kind}-{secrets.token_hex(4)}.json"
    payload.write(path)
    return LAUNCHERS[kind].start(path, payload, options, console)
