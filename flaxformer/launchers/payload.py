"""Payload of a launcher for its workers: a JSON file; only the study file that it names is executed."""

import dataclasses
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from flaxformer.devices.sharding import parse_devices
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import OnError
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.json_reader import parse_json
from flaxformer.system.user_code.changes import OnCodeChange

FORMAT = 1
READ: dict[str, Callable[[str], object]] = {"output": Path, "mesh": parse_devices}
"""Parsers of the fields of an execution that are text in JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload:
    """One launch.

    Args:
      file: file of the study.
      jobs: names of the trials of each job; None for all missing trials, shared with the other jobs.
      execution: execution settings.
      overrides: changes to the baseline from the command line.
      seeds: seeds, as the command line names them; None for those of the study.
      retry_failed: train failed trials again.
      on_error: continue after a failed run, or stop.
      on_code_change: what to do with results whose user code has changed when the study is submitted.
      interface: network interface on which the processes of a job connect.
      code: commit and digests of the code that submitted the study.
    """

    file: Path
    jobs: tuple[tuple[str, ...] | None, ...]
    execution: Execution
    overrides: tuple[str, ...] = ()
    seeds: str | None = None
    retry_failed: bool = False
    on_error: OnError = "continue"
    on_code_change: OnCodeChange = "refuse"
    interface: str | None = None
    code: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def study(self) -> Study:
        """Execute the file and return the study."""
        return load_study(self.file, self.overrides, None if self.seeds is None else parse_seeds(self.seeds))

    def job(self, index: int) -> tuple[str, ...] | None:
        """Return the names of the trials of a job.

        Raises:
          UserError: the payload has no job of this number.
        """
        if not 0 <= index < len(self.jobs):
            raise UserError(f"job is {index}; expected one from 0 to {len(self.jobs) - 1}")
        return self.jobs[index]

    def write(self, path: Path) -> None:
        """Write the payload for the workers."""
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
    """Read a payload from its file.

    Raises:
      UserError: the file does not exist, is damaged, or has another format.
    """
    try:
        values = parse_json(path.read_bytes())
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise UserError(f"'{path}' is not a payload of format {FORMAT}; expected a file written by --launcher")
        execution = values.pop("execution")
        execution |= {name: parse(execution[name]) for name, parse in READ.items() if execution[name] is not None}
        values |= {
            "file": Path(values["file"]),
            "jobs": tuple(job if job is None else tuple(job) for job in values["jobs"]),
        }
        values["overrides"] = tuple(values["overrides"])
        return Payload(execution=Execution(**execution), **values)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); expected a file written by --launcher") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"'{path}' is damaged ({error}); expected a file written by --launcher") from None


def private(folder: Path) -> Path:
    """Create a folder that only its owner can read and write; some launchers store and load pickles there.

    Raises:
      UserError: the folder is a link or belongs to another user.
    """
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(f"'{folder}' is a link or belongs to another user; expected a folder of your own")
    folder.chmod(0o700)
    return folder
