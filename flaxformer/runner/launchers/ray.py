"""Ray: one task per share of the runs, on the cluster at RAY_ADDRESS or on a local cluster started here.

A task runs the command in a process of its own, and is retried if that process is lost. All nodes must see the study's
file and the output folder. A local cluster is started without a dashboard, because anyone who reaches a dashboard can
run code.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from flaxformer.runner.launchers.options import Options, Share, parse_int, parse_key_values, shares
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library

RETRIES = 10
KEYS = {"cpus": "num_cpus", "gpus": "num_gpus"}


def divide(groups: list[ProgramGroup], options: Options) -> list[Share]:
    """Return one share per program, or as many as --workers.

    Raises:
      UserError: Ray is not installed, or --ray has an unsupported value.
    """
    resources(options)
    library("ray", "ray", "launcher 'ray'")
    return shares(options.workers or len(groups))


def resources(options: Options) -> dict[str, int]:
    """Return the resources of a task as arguments of `ray.remote`.

    Raises:
      UserError: a key other than cpus and gpus, or a value that is not an integer.
    """
    values = parse_key_values("--ray", options.ray)
    if unknown := [key for key in values if key not in KEYS]:
        raise UserError(f"--ray is given {unknown[0]}={values[unknown[0]]}; expected cpus=N or gpus=N")
    return {KEYS[key]: parse_int("--ray", key, value) for key, value in values.items()}


def start(words: Sequence[str], workers: list[Share], root: Path, options: Options, console: Console) -> bool:
    """Run all tasks to their end; report those that are lost after all retries."""
    import ray

    starts_ray = not ray.is_initialized()
    if starts_ray:
        _begin(ray)
    try:
        task = ray.remote(max_calls=1, max_retries=RETRIES, **resources(options))(_task)
        waiting = {task.remote([*words, "--share", str(share)]): index for index, share in enumerate(workers)}
        while waiting:
            for done in ray.wait(list(waiting))[0]:
                _report_end(ray, done, waiting.pop(done), console)
    finally:
        if starts_ray:
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
        console.print(f"task {index} has ended with exit code {ray.get(done)}")
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        console.print(f"task {index} was lost ({reason}); its runs are kept", style="red")


def _task(words: Sequence[str]) -> object:
    """Run `flaxformer run` in this process, which Ray has started for it, and return its exit code."""
    sys.argv = ["flaxformer", "run", *words]
    try:
        runpy.run_module("flaxformer.cli", run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0
