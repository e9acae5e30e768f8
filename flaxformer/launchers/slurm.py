"""SLURM: a job array with one group per job, submitted with submitit.

submitit writes the batch script and receives the warning (SIGUSR2) that SLURM sends before a job's time is up; it
pickles the path of the payload and a number, in a folder that only its owner can read. The job is then requeued and
trains the trials that have no row, as it does after a lost node or a preemption. The study's folder, not SLURM, says
whether a job is done.
"""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from flaxformer.extras import library
from flaxformer.interrupts import interrupt
from flaxformer.launchers.division import Jobs, Options, assign, parse_int, parse_key_values
from flaxformer.launchers.payload import Payload, private, read
from flaxformer.launchers.rendezvous import rendezvous
from flaxformer.launchers.work import work
from flaxformer.startup.compilation_cache import keep_compiled_programs
from flaxformer.startup.cpu_devices import one_cpu_device_per_core
from flaxformer.struct import UserError
from flaxformer.study.plan import ProgramGroup

MOST_JOBS = 1000
"""Of one array: SLURM's own limit by default (MaxArraySize is 1001)."""
NUMBERS = {
    "nodes": "nodes",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "parallel": "array_parallelism",
    "warning": "signal_delay_s",
}
"""Keys of --slurm that are whole numbers, and what submitit calls them; gpus and cpus are of a node."""
OURS = ("array", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "ntasks", "ntasks-per-node")
"""Options of sbatch that this launcher sets itself."""
MINUTES = 60
WARNING = 90
"""Seconds before its time is up that a job is warned, where --slurm does not say."""
SLACK = 50
RESTARTS = 1_000_000
"""Times that submitit may requeue a job: what is to be done gets less each time."""


def divide(groups: list[ProgramGroup], options: Options) -> Jobs:
    """A job a group, or as many as --workers says; no more than `MOST_JOBS`.

    Raises:
      UserError: there is no SLURM or no submitit here, or --slurm says what cannot be followed.
    """
    parameters(options)
    if not all(map(shutil.which, ("sbatch", "srun"))):
        raise UserError("launcher is 'slurm', and there is no sbatch and srun here; expected a machine of the cluster")
    library("submitit", "slurm", "launcher 'slurm'")
    return assign(groups, min(options.workers or len(groups), MOST_JOBS))


def parameters(options: Options) -> dict[str, Any]:
    """Return the options of --slurm in submitit's terms; those that it does not know go to sbatch unchanged.

    Raises:
      UserError: a value that is none, or an option that the launcher sets itself.
    """
    given = parse_key_values("--slurm", options.slurm)
    found: dict[str, Any] = {"time": minutes(given.pop("time", str(MINUTES))), "signal_delay_s": WARNING}
    for key, own in NUMBERS.items():
        if key in given:
            found[own] = parse_int("--slurm", key, given.pop(key))
    time, warning = found["time"], found["signal_delay_s"]
    if 60 * time < warning + SLACK:
        raise UserError(
            f"--slurm is given time={time} and warning={warning}; expected a limit that is {SLACK} s longer at least, "
            "since SLURM may warn half a minute early"
        )
    if found.get("nodes", 1) > 1 and options.interface is None:
        raise UserError(
            f"--slurm is given nodes={found['nodes']} and interface is None; expected --interface NAME, the network "
            "on which the nodes of a job find each other, such as eth0"
        )
    if taken := [key for key in given if key in OURS]:
        raise UserError(f"--slurm is given {taken[0]}={given[taken[0]]}, which the launcher sets itself")
    return found | {"ntasks_per_node": 1, "additional_parameters": given | {"requeue": True}}


def minutes(text: str) -> int:
    """A time limit in minutes, rounded up, from one of sbatch's forms: 90, 1:30:00, 1-12:00:00.

    Raises:
      UserError: it is none.
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
    """Submit the jobs, say their numbers, and return."""
    import submitit

    asked = parameters(options)
    executor = submitit.SlurmExecutor(folder=private(path.with_suffix("")), max_num_timeout=RESTARTS)
    executor.update_parameters(job_name=f"flaxformer-{path.parent.parent.name}", **asked)
    try:
        jobs = executor.map_array(SlurmJob(str(path)), range(len(payload.jobs)))
    except submitit.core.utils.FailedJobError as error:
        said = " ".join(str(error).split())
        raise UserError(f"sbatch refused the jobs: {said}") from None
    numbers = [job.job_id for job in jobs]
    shown = ", ".join(numbers) if len(numbers) < 4 else f"{numbers[0]} … {numbers[-1]}"
    console.print(f"submitted {len(numbers)} jobs: {shown}; their words are in {path.with_suffix('')}", soft_wrap=True)
    return False


@dataclasses.dataclass(frozen=True)
class SlurmJob:
    """Callable that submitit pickles; it holds the payload's path."""

    path: str

    def __call__(self, index: int) -> int:
        """Train the trials of one job; the number of runs that failed."""
        processes, process = int(os.environ.get("SLURM_NTASKS", "1")), int(os.environ.get("SLURM_PROCID", "0"))
        keep_compiled_programs()
        one_cpu_device_per_core()
        if processes > 1:
            path = Path(self.path)
            name = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
            rendezvous(path.with_suffix(""), name, read(path).interface or "lo", processes, process)
        _stop_on_terminate(process)
        return work(Path(self.path), index, Console(width=200))

    def checkpoint(self, index: int) -> Any:
        """Return what submitit runs when the job starts again: the same, which resumes from the folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, index)


def _stop_on_terminate(process: int) -> None:
    """Stop at SIGTERM; where SLURM sent it to a running job as a warning, requeue the job as at SIGUSR2.

    A job that its user cancelled, or that SLURM requeues itself, is not running any more when SIGTERM comes.
    """
    requeue: Any = signal.getsignal(signal.SIGUSR2)

    def terminated(number: int, frame: FrameType | None) -> None:
        if process > 0:  # the first process decides; if it ends, SLURM ends the others
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requeuing sends another
        if _state() == "RUNNING":
            requeue(number, frame)
        interrupt(number, frame)

    signal.signal(signal.SIGTERM, terminated)


def _state() -> str:
    """Return SLURM's state of this job."""
    words = ["squeue", "--noheader", "--format=%T", f"--jobs={os.environ['SLURM_JOB_ID']}"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
