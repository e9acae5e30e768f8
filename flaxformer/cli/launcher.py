"""The options of `flaxformer run` that say where it runs."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import jax
from rich.console import Console

from flaxformer.cli.options import FAILED, option
from flaxformer.launchers import Options, Payload, launch
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import missing, store_of
from flaxformer.struct import UserError
from flaxformer.study.declare import Study

if TYPE_CHECKING:
    from flaxformer.cli.study import RunStudy


@dataclasses.dataclass(frozen=True)
class LauncherArguments:
    """Options that choose where the runs are trained."""

    launcher: Annotated[
        Literal["local", "slurm", "ray"] | None,
        option("KIND", "this process", "train in worker processes (local), SLURM jobs (slurm) or Ray tasks (ray)"),
    ] = None
    workers: Annotated[int | None, option("N", "one a device; a job a program", "worker processes or jobs")] = None
    slurm: Annotated[
        tuple[str, ...],
        option("KEY=VALUE …", "time=60", "time, nodes, gpus and cpus of a node, parallel, or any option of sbatch"),
    ] = ()
    ray: Annotated[tuple[str, ...], option("KEY=VALUE …", "cpus=1", "cpus and gpus of a task")] = ()
    interface: Annotated[
        str | None, option("NAME", "none", "the network on which the nodes of one job meet, such as eth0")
    ] = None

    def options(self) -> Options:
        """Options of the launcher."""
        return Options(workers=self.workers, slurm=self.slurm, ray=self.ray, interface=self.interface)


def launched(run: "RunStudy", study: Study, execution: Execution, console: Console) -> int:
    """Hand the study to a launcher; the exit code."""
    from flaxformer.cli.study import exit_code, show_report

    for name in ("coordinator", "processes", "process"):
        if (value := getattr(run, name)) is not None:
            raise UserError(f"--{name} is given {value} and launcher is {run.launcher}; expected one of them")
    jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    store = store_of(study, execution)
    todo = missing(study, store, retry_failed=run.retry_failed)
    runs = sum(len(group.trials) for group in todo)
    console.print(f"{study.name}: {runs} runs to train in {len(todo)} programs; results in {store.root}")
    payload = Payload(
        file=run.file,
        jobs=(),
        execution=execution,
        overrides=run.overrides,
        seeds=run.seeds,
        retry_failed=run.retry_failed,
        on_error=run.on_error,
        on_code_change=run.on_code_change,
    )
    if not launch(str(run.launcher), study, payload, run.options(), console):
        console.print(f"flaxformer status {store.root} shows how they fare; the same command again does what is left.")
        return 0
    failed = show_report(store, console)
    left = sum(len(group.trials) for group in missing(study, store))
    if left:
        console.print(f"[red]{left} runs have no result; run the same command again.[/]")
    return exit_code(failed, console) or (FAILED if left else 0)
