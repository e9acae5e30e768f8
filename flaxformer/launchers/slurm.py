"""SLURM: a job array with one group per job, submitted with submitit.

submitit writes the batch script, and pickles the path of the payload and the number of the job in a folder that only
its owner can read. SLURM sends SIGUSR2 before the time limit of a job; submitit then requeues the job, which continues
with the trials that have no row, as after a lost node or a preemption. A job whose process was killed is queued again
by the end of its batch script (`resubmit`). A job is done when its trials have rows in the output folder, whatever
SLURM reports.
"""

import dataclasses
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from flaxformer.launchers.division import Jobs, Options, assign, parse_int, parse_key_values
from flaxformer.launchers.payload import Payload, private, read
from flaxformer.launchers.rendezvous import rendezvous
from flaxformer.launchers.resubmit import job_state
from flaxformer.launchers.work import work
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.interrupts import interrupt
from flaxformer.system.startup.compilation_cache import keep_compiled_programs
from flaxformer.system.startup.cpu_devices import one_cpu_device_per_core

MOST_JOBS = 1000
"""Largest number of jobs in an array: the default limit of SLURM (MaxArraySize is 1001)."""
NUMBERS = {
    "nodes": "nodes",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "parallel": "array_parallelism",
    "warning": "signal_delay_s",
}
"""Integer keys of --slurm and their names in submitit; gpus and cpus are per node."""
OURS = ("array", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "ntasks", "ntasks-per-node")
"""Options of sbatch that this launcher sets; the user cannot."""
MINUTES = 60
WARNING = 90
"""Default of the seconds between the warning (SIGUSR2) and the time limit of a job."""
SLACK = 50
RESTARTS = 1_000_000
"""Largest number of times that submitit requeues a job; each time fewer trials are left."""


def divide(groups: list[ProgramGroup], options: Options) -> Jobs:
    """Return one job per group, or as many as --workers, at most `MOST_JOBS`.

    Raises:
      UserError: SLURM or submitit is missing, or --slurm has an unsupported value.
    """
    parameters(options)
    if not all(map(shutil.which, ("sbatch", "srun"))):
        raise UserError("launcher is 'slurm', but sbatch and srun are not found; run it on a machine of the cluster")
    library("submitit", "slurm", "launcher 'slurm'")
    return assign(groups, min(options.workers or len(groups), MOST_JOBS))


def parameters(options: Options) -> dict[str, object]:
    """Return the options of --slurm as parameters of submitit; unknown ones are passed to sbatch unchanged.

    Raises:
      UserError: an invalid value, or an option that the launcher sets.
    """
    given = parse_key_values("--slurm", options.slurm)
    found = {"time": minutes(given.pop("time", str(MINUTES))), "signal_delay_s": WARNING}
    for key, own in NUMBERS.items():
        if key in given:
            found[own] = parse_int("--slurm", key, given.pop(key))
    time, warning = found["time"], found["signal_delay_s"]
    if 60 * time < warning + SLACK:
        raise UserError(
            f"--slurm is given time={time} and warning={warning}; expected a time limit at least {SLACK} s longer "
            "than the warning, which SLURM may send half a minute early"
        )
    if found.get("nodes", 1) > 1 and options.interface is None:
        raise UserError(
            f"--slurm is given nodes={found['nodes']} and interface is None; expected --interface NAME, the network "
            "interface on which the nodes of a job connect, such as eth0"
        )
    if taken := [key for key in given if key in OURS]:
        raise UserError(f"--slurm is given {taken[0]}={given[taken[0]]}, which the launcher sets itself")
    return {**found, "ntasks_per_node": 1, "additional_parameters": given | {"requeue": True}}


def minutes(text: str) -> int:
    """Return a time limit in minutes, rounded up, from a format of sbatch: 90, 1:30:00 or 1-12:00:00.

    Raises:
      UserError: the text has another format.
    """
    match = re.fullmatch(r"(\d+)|(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text, re.ASCII)
    if match is None:
        raise UserError(f"--slurm is given time={text}; expected minutes, as 90, or [DAYS-]HOURS:MINUTES:SECONDS")
    whole_minutes, days, hours, rest, seconds = (int(part or 0) for part in match.groups())
    total = whole_minutes + days * 1440 + hours * 60 + rest + (seconds > 0)
    if not total:
        raise UserError(f"--slurm is given time={text}; expected at least a minute")
    return total


def start(path: Path, payload: Payload, options: Options, console: Console) -> bool:
    """Submit the jobs, print their numbers, and return."""
    import submitit

    asked = parameters(options)
    executor = submitit.SlurmExecutor(folder=private(path.with_suffix("")), max_num_timeout=RESTARTS)
    executor.update_parameters(job_name=f"flaxformer-{path.parent.parent.name}", teardown=_teardown(path), **asked)
    try:
        jobs = executor.map_array(SlurmJob(str(path)), range(len(payload.jobs)))
    except submitit.core.utils.FailedJobError as error:
        said = " ".join(str(error).split())
        raise UserError(f"sbatch refused the jobs: {said}") from None
    numbers = [job.job_id for job in jobs]
    shown = ", ".join(numbers) if len(numbers) < 4 else f"{numbers[0]} … {numbers[-1]}"
    console.print(f"submitted {len(numbers)} jobs: {shown}; their output is in {path.with_suffix('')}", soft_wrap=True)
    return False


def _teardown(path: Path) -> list[str]:
    """Return the end of the batch script, which queues a job again whose process was killed."""
    words = shlex.join([sys.executable, "-m", "flaxformer.launchers.resubmit", str(path)])
    return ["code=$?", f'[ "$code" -le 128 ] || {words} "${{SLURM_ARRAY_TASK_ID:-0}}" "$code"', 'exit "$code"']


@dataclasses.dataclass(frozen=True)
class SlurmJob:
    """Callable that submitit pickles: trains one job of the payload at `path`."""

    path: str

    def __call__(self, index: int) -> int:
        """Train the trials of one job, and return the number of failed runs."""
        processes, process = int(os.environ.get("SLURM_NTASKS", "1")), int(os.environ.get("SLURM_PROCID", "0"))
        keep_compiled_programs()
        one_cpu_device_per_core()
        if processes > 1:
            path = Path(self.path)
            name = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
            rendezvous(path.with_suffix(""), name, read(path).interface or "lo", processes, process)
        _stop_on_terminate(process)
        return work(Path(self.path), index, Console(width=200))

    def checkpoint(self, index: int) -> object:
        """Return the call for submitit to run after requeuing: the same one, which resumes from the output folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, index)


def _stop_on_terminate(process: int) -> None:
    """Handle SIGTERM: stop, and if the job is still in state RUNNING, requeue it as for SIGUSR2.

    A job that was cancelled, or that SLURM requeues itself, has left the state RUNNING when SIGTERM arrives.
    """
    requeue = signal.getsignal(signal.SIGUSR2)

    def terminated(number: int, frame: FrameType | None) -> None:
        if process > 0:  # process 0 decides; when it ends, SLURM ends the others
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requeuing sends another
        if callable(requeue) and job_state() == "RUNNING":
            requeue(number, frame)
        interrupt(number, frame)

    signal.signal(signal.SIGTERM, terminated)
