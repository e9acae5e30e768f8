"""Second attempts of a SLURM job that was asked to end, or whose process was killed, such as by a lack of memory.

    python -m flaxformer.runner.launchers.resubmit DIR K/N EXIT_CODE

The batch script of a job calls it after a process that a signal ended. The job is queued again, and continues with the
trials of its share that have no row. After `ATTEMPTS` kills without a new result or save, the trials of the program
that was being trained get failed rows with the cause, and the job is queued again for its other trials, if any.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from flaxformer.runner.launchers.options import Share
from flaxformer.store.declaration import DeclaredTrial
from flaxformer.store.leases import owner_is_gone, read_leases
from flaxformer.store.rows import Row
from flaxformer.store.store import LOCK_PATIENCE, Store
from flaxformer.system.digests import JsonObject, digest
from flaxformer.system.errors import UserError, quote
from flaxformer.system.files import write_atomically
from flaxformer.system.json_reader import parse_json
from flaxformer.system.wording import count_of

ATTEMPTS = 3
"""Number of kills without progress after which a program is given up."""
REQUESTS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU}
"""Signals that ask a process to end; an interrupted command ends with the exit code of SIGINT."""


def job_state() -> str:
    """Return the state of this job in SLURM."""
    words = ["squeue", "--noheader", "--format=%T", f"--jobs={os.environ['SLURM_JOB_ID']}"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def ended_by(code: int) -> signal.Signals | None:
    """Return the signal that ended a process, from the exit code that srun gives; None if none did."""
    try:
        return signal.Signals(code - 128)
    except ValueError:
        return None


def after_kill(root: Path, share: Share, killer: signal.Signals, console: Console) -> bool:
    """Record that a signal killed the process of a job; returns true if the job is to be queued again."""
    store = Store(root)
    declared = {trial.trial: trial for trial in store.declaration.trials}
    names = share.names(store.declaration.trials)
    left = [name for name in names if name not in store.rows()]
    groups = {declared[name].group for name in left}
    kills = root / "launches" / f"slurm-{os.environ.get('SLURM_ARRAY_JOB_ID', '0')}_{share.number}.kills.json"
    progress, count = _progress(store, names, groups), 1
    if (former := _read_record(kills)).get("progress") == progress:
        count += former["count"]
    write_atomically(kills, json.dumps({"progress": progress, "count": count}).encode())
    ended = f"its process was ended by {killer.name}"
    if killer == signal.SIGKILL:
        ended += ", which is how a machine without memory ends one"
    if count < ATTEMPTS:
        console.print(f"share {share}: {ended}; it is queued again, {count} of {ATTEMPTS} times without progress")
        return bool(left)
    held = {lease["group"] for lease in read_leases(store.leases) if owner_is_gone(lease)} & groups or groups
    given_up = [name for name in left if declared[name].group in held]
    cause = f"{ended}, {count} times without progress; ask for more memory (--slurm mem=…), or make the model smaller"
    with store.locked(LOCK_PATIENCE):
        for name in given_up:
            store.append(declared[name].group, _failed_row(declared[name], cause))
    kills.unlink()
    console.print(f"share {share}: {cause}. {count_of(len(given_up), 'run')} failed; --retry-failed trains them again")
    return len(given_up) < len(left)


def _progress(store: Store, trials: Collection[str], groups: Collection[str]) -> str:
    """Return a digest of the results and the saved progress of a job's trials."""
    rows = store.rows()
    saved = [path.relative_to(store.root) for group in groups for path in store.unfinished.glob(f"{group}/*/*")]
    return digest("\n".join(sorted([name for name in trials if name in rows] + list(map(str, saved)))).encode())


def _failed_row(trial: DeclaredTrial, cause: str) -> Row:
    """The failed row of a declared trial."""
    return Row(
        trial=trial.trial,
        group=trial.group,
        seed=trial.seed,
        status="failed",
        fingerprint=trial.fingerprint,
        cause=cause,
        error=cause,
        labels=trial.labels,
    )


def _read_record(path: Path) -> JsonObject:
    """Return the record of a job's earlier ends; an empty one if there is none.

    Raises:
      UserError: it is damaged.
    """
    if not path.is_file():
        return {}
    try:
        record = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and submit the job again") from None
    if not isinstance(record, dict) or type(record.get("count")) is not int:
        raise UserError(f"{path} is damaged ({quote(record)}); remove it, and submit the job again")
    return record


def main() -> int:
    """Entry point; return the exit code."""
    root, share, ending = Path(sys.argv[1]), Share.parse(sys.argv[2]), ended_by(int(sys.argv[3]))
    if ending is None or job_state() != "RUNNING":  # cancelled, or queued again by SLURM
        return 0
    if ending in REQUESTS or after_kill(root, share, ending, Console(width=200)):
        return subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
