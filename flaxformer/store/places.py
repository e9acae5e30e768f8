"""Names of the files and folders in a study's folder; `store.store` says what each holds."""

import itertools
import os
from pathlib import Path
from typing import Literal, get_args

from flaxformer.store.line_forms import LINES
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.files import make_folder, safe_name
from flaxformer.system.links import DEEPEST

RUNGS = "rungs"
"""Folder of the rungs of a halving: DIR/rungs/STEP is a study's folder with the results of all arms at that step."""
SUPERSEDED = "superseded"
"""Folder of what was set aside after a change of code, or for another training, by number."""
FIGURES, TABLES = "figures", "tables"
"""Folders that a report writes from the others."""
TRACKERS = {"tensorboard": 0, "trackio": 1, "wandb": 0}
"""Folders of trackers, whose files are their own, with the levels in them that are checked for links."""
PROFILE = "profile"
"""Folder of traces; jax.profiler makes plugins/profile/TIME in it at each launch."""
WEIGHTS = "weights"
"""Folder of kept weights: DIR/weights/NAME for each trial, where NAME is its name, made safe for a file system."""
FOLDERS = dict.fromkeys(["groups", "leases", "code", "reads", FIGURES, TABLES, "trackers", SUPERSEDED], DEEPEST)
FOLDERS |= {WEIGHTS: 1, "unfinished": 2, RUNGS: 1, PROFILE: DEEPEST} | TRACKERS
"""Folders in a study's folder, with the levels in them that `check_links` checks.

A folder of checkpoints is checked when a step of it is read or written.
"""
REPORT, LIVE = "report.html", "live.html"
"""The report, and the page of `--live`."""
SECONDS_BETWEEN_PAGES = 5
"""Time after which a browser asks for that page again, and least time between two that are written."""
DERIVED = ["results.parquet", "results.csv", "results.md", "results.tex", "quantities.parquet"]
DERIVED += [REPORT, "replication.html", LIVE]
"""Files that a report writes from the others."""
FILES = ["study.json", "declarations.jsonl", "declarations.head", *LINES]
FILES += DERIVED
"""Files in a study's folder."""

STUDY, JOB, LEDGER = "a study", "a training job", "a ledger"
MARKS = {
    "study.json": STUDY,
    "declarations.jsonl": STUDY,
    "config.json": JOB,
    "ledger.jsonl": LEDGER,
    "data.json": "prepared data",
}
"""Files that only one kind of output folder has at its top, and that kind."""
MOST_LISTED = 4
"""Number of folders that a message lists."""
WeightsToKeep = Literal["final", "best", "all"]
"""Weights of a trial that are kept: at its last step, at its best evaluation so far, or at every evaluation."""


def check_kind(root: Path, kind: str) -> None:
    """Check, before anything is written, that a folder, which need not exist, is not an output of another kind.

    Raises:
      UserError: it is.
    """
    for name, other in MARKS.items():
        if other != kind and os.path.lexists(root / name):
            raise UserError(f"{root} holds {other} ({name}); expected a folder of its own for {kind} (--output)")


def describe_without_study(root: Path) -> str:
    """Return the message for a folder without a study: what it holds, or the folders in it that are outputs."""
    message = f"{root} holds no study (no study.json)"
    if (kind := kind_of(root)) not in (None, STUDY):
        return f"{message}, but {kind}; expected the output folder of 'run'"
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir() and kind_of(path) is not None)
    except OSError:
        inner = []
    listed = ", ".join(map(str, inner[:MOST_LISTED])) + (", …" if len(inner) > MOST_LISTED else "")
    return f"{message}; expected the output folder of 'run'" + (f": {listed}" if inner else "")


def kind_of(root: Path) -> str | None:
    """Return the kind of output that a folder is, one of `MARKS`; None for another folder."""
    return next((kind for name, kind in MARKS.items() if os.path.lexists(root / name)), None)


def next_superseded(root: Path, ending: str = "") -> Path:
    """Return root/superseded/N with an ending, for the first N from 1 on that is free; root/superseded is made."""
    make_folder(root / SUPERSEDED)
    paths = (root / SUPERSEDED / f"{number}{ending}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def check_weights_to_keep(which: str | None) -> None:
    """Raise UserError unless it is one of `WeightsToKeep`, or None for no weights."""
    if which is not None and which not in get_args(WeightsToKeep):
        raise UserError(f"keep is '{which}'{did_you_mean(which, get_args(WeightsToKeep))}")


def weights_folder(root: Path, trial: str) -> Path:
    """Return the folder of a trial's kept weights."""
    return root / WEIGHTS / safe_name(trial, distinct=trial)
