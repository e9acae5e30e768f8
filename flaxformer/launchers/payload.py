"""Payload of a launcher for its workers: a file of names and numbers; nothing is executed but the study's file."""

import dataclasses
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flaxformer.files import write_atomically
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import OnError
from flaxformer.sharding import parse_devices
from flaxformer.struct import UserError
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.user_code.changes import OnCodeChange

FORMAT = 1
READ: dict[str, Callable[[str], Any]] = {"output": Path, "mesh": parse_devices}
"""Fields of an execution that JSON holds as text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload:
    """One launch.

    Args:
      file: the study's file.
      jobs: the names of the trials that each job is to train; None for all that is missing, shared with others.
      execution: how.
      overrides: what the command line changes in the baseline.
      seeds: how many seeds to use; the study's own when None.
      retry_failed: whether a trial whose run failed is trained again.
      on_error: whether a worker goes on after a failed run, or stops.
      on_code_change: what becomes of results whose user code has changed since, when the study is submitted.
      interface: where the processes of a job that has several find each other.
      code: the commit and digests of the code that submitted it.
    """

    file: Path
    jobs: tuple[tuple[str, ...] | None, ...]
    execution: Execution
    overrides: tuple[str, ...] = ()
    seeds: int | None = None
    retry_failed: bool = False
    on_error: OnError = "continue"
    on_code_change: OnCodeChange = "refuse"
    interface: str | None = None
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def study(self) -> Study:
        """The study; its file is executed."""
        return load_study(self.file, self.overrides, self.seeds)

    def job(self, index: int) -> tuple[str, ...] | None:
        """The trials of a job.

        Raises:
          UserError: there is none of this number.
        """
        if not 0 <= index < len(self.jobs):
            raise UserError(f"job is {index}; expected one from 0 to {len(self.jobs) - 1}")
        return self.jobs[index]

    def write(self, path: Path) -> None:
        """Write it for the workers."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        execution = {field.name: getattr(self.execution, field.name) for field in dataclasses.fields(self.execution)}
        write_atomically(
            path,
            json.dumps(
                {"format": FORMAT} | values | {"file": str(self.file), "execution": execution},
                indent=1,
                ensure_ascii=False,
                default=str,
            ).encode(),
        )


def read(path: Path) -> Payload:
    """A payload from its file.

    Raises:
      UserError: there is none, or it is damaged or of another format.
    """
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise UserError(f"'{path}' is no launch of format {FORMAT}; expected a file that --launcher wrote")
        execution = {
            name: READ[name](value) if name in READ and value is not None else value
            for name, value in values.pop("execution").items()
        }
        values |= {
            "file": Path(values["file"]),
            "jobs": tuple(job if job is None else tuple(job) for job in values["jobs"]),
        }
        values["overrides"] = tuple(values["overrides"])
        return Payload(execution=Execution(**execution), **values)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); expected a file that --launcher wrote") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"'{path}' is damaged ({error}); expected a file that --launcher wrote") from None


def private(folder: Path) -> Path:
    """Make a folder that its owner alone can read and write: some launchers keep pickles there, and load them.

    Raises:
      UserError: it is a link, or somebody else's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(f"'{folder}' is a link or another user's; expected a folder of your own")
    folder.chmod(0o700)
    return folder
