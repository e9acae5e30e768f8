"""Ray: plain tasks, one group each, on the cluster that RAY_ADDRESS names, or on one that is started here.

A task is given the payload's path and a number. It is run in a process of its own, and again when that is lost. The
study's folder has to be one that all nodes see. A cluster that is started here has no dashboard: whoever reaches a
dashboard runs code.
"""

import os
from pathlib import Path
from typing import Any

from rich.console import Console

from flaxformer.extras import library
from flaxformer.launchers.division import Jobs, Options, assign, parse_int, parse_key_values
from flaxformer.launchers.payload import Payload
from flaxformer.launchers.work import work
from flaxformer.startup.compilation_cache import keep_compiled_programs
from flaxformer.startup.cpu_devices import one_cpu_device_per_core
from flaxformer.struct import UserError
from flaxformer.study.plan import ProgramGroup

RETRIES = 10
KEYS = {"cpus": "num_cpus", "gpus": "num_gpus"}


def divide(groups: list[ProgramGroup], options: Options) -> Jobs:
    """A task a group, or as many as --workers says.

    Raises:
      UserError: there is no Ray here, or --ray says what cannot be followed.
    """
    resources(options)
    library("ray", "ray", "launcher 'ray'")
    return assign(groups, options.workers or len(groups))


def resources(options: Options) -> dict[str, int]:
    """Return the resources that a task asks for, in Ray's terms.

    Raises:
      UserError: another key than cpus and gpus, or a value that is no number.
    """
    given = parse_key_values("--ray", options.ray)
    if unknown := [key for key in given if key not in KEYS]:
        raise UserError(f"--ray is given {unknown[0]}={given[unknown[0]]}; expected cpus=N or gpus=N")
    return {KEYS[key]: parse_int("--ray", key, value) for key, value in given.items()}


def start(path: Path, payload: Payload, options: Options, console: Console) -> bool:
    """Run the tasks to their end; one that is lost for good is told, and the others go on."""
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


def _begin(ray: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one, which listens on the loopback alone."""
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address)
    else:
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1")


def _report_end(ray: Any, done: Any, index: int, console: Console) -> None:
    try:
        console.print(f"task {index} has ended; {ray.get(done)} of its runs failed", highlight=False)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
        console.print(f"task {index} was lost ({said}); its runs are kept", style="red", markup=False)


def _task(path: str, index: int) -> int:
    """Train the trials of one job, in a process that Ray has started for it."""
    keep_compiled_programs()
    one_cpu_device_per_core()
    return work(Path(path), index, Console(width=200))
