"""Places of kept weights: DIR/weights/NAME for each trial, where NAME is its name, made safe for a file system."""

from pathlib import Path
from typing import Literal, get_args

from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.files import safe_name

WEIGHTS = "weights"
WeightsToKeep = Literal["final", "best", "all"]
"""Weights of a trial that are kept: at its last step, at its best evaluation so far, or at every evaluation."""


def check_weights_to_keep(which: str | None) -> None:
    """Raise UserError unless it is one of `WeightsToKeep`, or None for no weights."""
    if which is not None and which not in get_args(WeightsToKeep):
        raise UserError(f"keep is '{which}'{did_you_mean(which, get_args(WeightsToKeep))}")


def weights_folder(root: Path, trial: str) -> Path:
    """Return the folder of a trial's kept weights."""
    return root / WEIGHTS / safe_name(trial, distinct=trial)
