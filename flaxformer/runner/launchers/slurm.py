"""SLURM: a job array with one share of the runs per job, submitted by `sbatch` with a short script.

SLURM sends SIGUSR2 to a job before its time limit, and SIGTERM to one that it preempts: the command saves and ends.
The end of the script queues such a job again, and one whose process was killed (`resubmit`); SLURM does so after a lost
node or a preemption. The job continues with the trials of its share that have no row. It is done when its trials have
rows in the output folder, whatever SLURM reports. The tasks of a job over several nodes find each other as those of
any `srun` do (`devices.distributed`).
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flaxformer.runner.launchers.options import Options, Share, parse_int, parse_key_values, shares
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder
from flaxformer.system.wording import count_of

MOST_JOBS = 1000
"""Largest number of jobs in an array: the default limit of SLURM (MaxArraySize is 1001)."""
NUMBERS = {"nodes": "nodes", "gpus": "gpus-per-node", "cpus": "cpus-per-task"}
"""Integer keys of --slurm and the options of sbatch that they set; there is one task per node."""
OURS = ("array", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "ntasks", "ntasks-per-node")
"""Options of sbatch that this launcher sets; the user cannot."""
MINUTES, WARNING, SLACK = 60, 90, 50
"""Default time limit, in minutes; default seconds from the warning to the limit; seconds that a job needs beside."""
SCRIPT = """#!/bin/bash
srun{options} {python} -m flaxformer.cli run {words} --share "$SLURM_ARRAY_TASK_ID/{parts}"
code=$?
[ "$code" -le 128 ] || {python} -m flaxformer.runner.launchers.resubmit {root} "$SLURM_ARRAY_TASK_ID/{parts}" "$code"
exit "$code"
"""


def divide(groups: list[ProgramGroup], options: Options) -> list[Share]:
    """Return one share per program, or as many as --workers, at most `MOST_JOBS`.

    Raises:
      UserError: SLURM is missing, or --slurm has an unsupported value.
    """
    parameters(options)
    if not all(map(shutil.which, ("sbatch", "srun"))):
        raise UserError("launcher is 'slurm', but sbatch and srun are not found; run it on a machine of the cluster")
    return shares(min(options.workers or len(groups), MOST_JOBS))


def parameters(options: Options) -> dict[str, str]:
    """Return --slurm as options of sbatch, and `parallel`, the number of jobs at a time; unknown ones stay as they are.

    Raises:
      UserError: an invalid value, or an option that the launcher sets.
    """
    values = parse_key_values("--slurm", options.slurm)
    time = minutes(values.pop("time", str(MINUTES)))
    numbers = {
        key: parse_int("--slurm", key, values.pop(key)) for key in (*NUMBERS, "warning", "parallel") if key in values
    }
    warning = numbers.pop("warning", WARNING)
    if 60 * time < warning + SLACK:
        raise UserError(
            f"--slurm is given time={time} and warning={warning}; expected a time limit at least {SLACK} s longer "
            "than the warning, which SLURM may send half a minute early"
        )
    if taken := [key for key in values if key in OURS]:
        raise UserError(f"--slurm is given {taken[0]}={values[taken[0]]}, which the launcher sets itself")
    named = {NUMBERS.get(key, key): str(number) for key, number in numbers.items()}
    return {"time": str(time), "signal": f"USR2@{warning}"} | named | values


def minutes(text: str) -> int:
    """Return a time limit in minutes, rounded up, from a format of sbatch: 90, 1:30:00 or 1-12:00:00.

    Raises:
      UserError: the text has another format.
    """
    match = re.fullmatch(r"(\d+)|(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text, re.ASCII)
    if match is None:
        raise UserError(f"--slurm is given time={text}; expected minutes, as 90, or [DAYS-]HOURS:MINUTES:SECONDS")
    whole, days, hours, minute, seconds = (int(number or 0) for number in match.groups())
    total = whole + days * 1440 + hours * 60 + minute + (seconds > 0)
    if not total:
        raise UserError(f"--slurm is given time={text}; expected at least a minute")
    return total


def start(words: Sequence[str], workers: list[Share], root: Path, options: Options, console: Console) -> bool:
    """Submit the jobs, print their number, and return."""
    asked = parameters(options)
    limit = f"%{number}" if (number := asked.pop("parallel", None)) else ""
    logs = root / "launches"
    make_folder(logs)
    asked |= {
        "job-name": asked.get("job-name", f"flaxformer-{root.name}"),
        "array": ",".join(str(share.number) for share in workers) + limit,
        "ntasks-per-node": "1",
        "open-mode": "append",
        "output": f"{str(logs).replace('%', '%%')}/slurm-%A_%a.out",
    }
    command = ["sbatch", "--parsable", "--requeue", *(f"--{key}={value}" for key, value in asked.items())]
    done = subprocess.run(
        command, input=script(words, workers, root, asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"sbatch refused the jobs: {' '.join(done.stderr.split())}")
    number = done.stdout.strip().partition(";")[0]
    console.print(f"submitted {count_of(len(workers), 'job')} as {number}; their output is in {logs}", soft_wrap=True)
    return False


def script(words: Sequence[str], workers: list[Share], root: Path, asked: dict[str, str]) -> str:
    """Return the batch script of a job."""
    cpus = asked.get("cpus-per-task")  # srun does not take it from sbatch
    return SCRIPT.format(
        options=f" --cpus-per-task={cpus}" if cpus else "",
        python=shlex.quote(sys.executable),
        words=shlex.join(words),
        parts=workers[0].parts,
        root=shlex.quote(str(root)),
    )
