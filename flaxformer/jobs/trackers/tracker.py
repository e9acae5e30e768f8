"""Base class of all trackers: three functions that a user's own tracker overrides; and the name of its run."""

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path

from flaxformer.system.digests import JsonObject
from flaxformer.system.files import make_folder, write_atomically

PROJECT = "flaxformer"
"""Project of all runs, where the user names no other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Names and config of a run that a tracker receives: a training job, or a trial of a study.

    Args:
      folder: output folder of the job or of the study.
      name: name of the folder for a job, "ARM,seed=N" for a trial.
      config: the run as plain data.
      seed: its seed.
      study, arm: names of a trial's study and arm; empty for a job.
      key: text that no other trial of the folder has, now or before; empty for a job.
    """

    folder: Path
    name: str
    config: JsonObject
    seed: int
    study: str = ""
    arm: str = ""
    key: str = ""


class Tracker:
    """Receiver of the numbers and texts of runs, besides their log.

    A subclass in the file of a study or a job is chosen by its name, `--track NAME`, and is created without arguments;
    `flaxformer.run(study, track=[NAME(...)])` takes an object. It has three functions, which are called in this order:

    | function | called |
    | --- | --- |
    | `start(run)` | once per job, or per trial of a study when the trial has finished |
    | `log(step, values)` | for every training step, evaluation and sample, in the order of the steps |
    | `close()` | at the end of the run; another trial may start after it |

    A launch that resumes a job calls `log` from the first step again: a tracker that cannot replace what it has keeps
    the last step that it was called with. An exception is reported once, and the tracker is not used again.
    """

    def start(self, run: TrackedRun) -> None:
        """Begin a run, or continue it after an earlier launch; nothing by default."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Record numbers and texts of a run.

        Args:
          step: number of steps that the run has taken.
          values: numbers by name, such as "training/loss" and "evaluation/validation_loss"; the text "sample".
        """
        raise NotImplementedError(f"{type(self).__name__} has no function log(step, values)")

    def close(self) -> None:
        """Write what is left of the run; nothing by default."""


def folder_id(folder: Path) -> str:
    """Return the text in the file `id` of a folder; a file that is not there is made with 12 random digits."""
    make_folder(folder)
    if not (folder / "id").exists():
        write_atomically(folder / "id", uuid.uuid4().hex[:12].encode())
    return (folder / "id").read_text()
