"""A run's log: one line of JSON for each chunk of steps, each evaluation and each sample, in their order."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flaxformer.files import write_atomically
from flaxformer.struct import UserError

NAME = "log.jsonl"
LogLine = dict[str, Any]


class Log:
    """The log in a run's folder, from a step on: what an earlier launch wrote beyond its last checkpoint is dropped.

    {"kind": "steps", "step": 50, "loss": [...], "gradient_norm": [...], "learning_rate": [...], "seconds": 1.2}
    {"kind": "evaluation", "step": 50, "validation_loss": 2.41, ...}
    {"kind": "sample", "step": 50, "prompt": "To be", "text": " or not to"}

    `step` counts the steps that were taken; a list has one number for each of the chunk's steps. Each of `trackers` is
    told every line, those that are kept first.

    Raises:
      UserError: it cannot be read, or not be written, as on a full disk; a line is then there whole or not at all.
    """

    def __init__(self, folder: Path, step: int, trackers: Sequence[Callable[[LogLine], object]] = ()) -> None:
        self.path, self.trackers = folder / NAME, trackers
        kept = [line for line in read(self.path) if line["step"] <= step] if step else []
        with _recording(self.path):
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for line in kept if trackers else ():
            self._write_to_trackers(line)

    def append(self, **line: Any) -> None:
        """Add one line; it is on the disk when this returns."""
        with _recording(self.path), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._write_to_trackers(line)

    def _write_to_trackers(self, line: LogLine) -> None:
        for tracker in self.trackers:
            tracker(line)


@contextlib.contextmanager
def _recording(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UserError(f"{why}; the checkpoints stay, and the same command goes on from the newest") from error


def read(path: Path) -> list[LogLine]:
    """Return the complete lines of a log, without a last line that a kill cut short.

    Raises:
      UserError: a line is damaged; the message says which.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: bytes) -> LogLine:
    try:
        found = json.loads(line)
        if not isinstance(found["step"], int) or not isinstance(found["kind"], str):
            raise ValueError("step or kind is wrong")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}, line {number} is damaged ({error}); expected JSON with step and kind") from None
    return found
