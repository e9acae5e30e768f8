"""Ray: one task per group, on the cluster at RAY_ADDRESS or on a local cluster started here.

A task gets the path of the payload and the number of its job. It runs in a process of its own and is retried if that
process is lost. All nodes must see the output folder. A local cluster is started without a dashboard, because anyone
who reaches a dashboard can run code.
"""

import os
from pathlib import Path
from types import ModuleType

from rich.console import Console

from flaxformer.launchers.division import Jobs, Options, assign, parse_int, parse_key_values
from flaxformer.launchers.payload import Payload
from flaxformer.launchers.work import work
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.startup.compilation_cache import keep_compiled_programs
from flaxformer.system.startup.cpu_devices import one_cpu_device_per_core

RETRIES = 10
KEYS = {"cpus": "num_cpus", "gpus": "num_gpus"}


def divide(groups: list[ProgramGroup], options: Options) -> Jobs:
    """Return one job per group, or as many as --workers.

    Raises:
      UserError: Ray is not installed, or --ray has an unsupported value.
    """
    resources(options)
    library("ray", "ray", "launcher 'ray'")
    return assign(groups, options.workers or len(groups))


def resources(options: Options) -> dict[str, int]:
    """Return the resources of a task as arguments of `ray.remote`.

    Raises:
      UserError: a key other than cpus and gpus, or a value that is not an integer.
    """
    given = parse_key_values("--ray", options.ray)
    if unknown := [key for key in given if key not in KEYS]:
        raise UserError(f"--ray is given {unknown[0]}={given[unknown[0]]}; expected cpus=N or gpus=N")
    return {KEYS[key]: parse_int("--ray", key, value) for key, value in given.items()}


def start(path: Path, payload: Payload, options: Options, console: Console) -> bool:
    """Run all tasks to their end; report those that are lost after all retries."""
    import ray

    own = not ray.is_initialized()
    if own:
        _begin(ray)
    try:
        task = ray.remote(max_calls=1, max_retries=RETRIES, **resources(options))(_task)
        waiting = {task.remote(str(path), index): index for index in range(len(payload.jobs))}
        while waiting:
            for done in ray.wait(list(waiting))[0]:
                _report_end(ray, done, waiting.pop(done), console)
    finally:
        if own:
            ray.shutdown()
    return True


def _begin(ray: ModuleType) -> None:
    """Join the cluster at RAY_ADDRESS, or start one that listens on the loopback interface only."""
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address)
    else:
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1")


def _report_end(ray: ModuleType, done: object, index: int, console: Console) -> None:
    try:
        console.print(f"task {index} has ended; {ray.get(done)} of its runs failed", highlight=False)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
        console.print(f"task {index} was lost ({said}); its runs are kept", style="red", markup=False)


def _task(path: str, index: int) -> int:
    """Train the trials of one job, in a process started by Ray."""
    keep_compiled_programs()
    one_cpu_device_per_core()
    return work(Path(path), index, Console(width=200))
