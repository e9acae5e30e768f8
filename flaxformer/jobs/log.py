"""A run's log: one line of JSON for each chunk of steps and for each evaluation, in their order."""

import json
import os
from pathlib import Path
from typing import Any

from flaxformer.files import write_atomically

NAME = "log.jsonl"


class Log:
    """The log in a run's folder, from a step on: what an earlier launch wrote beyond its last checkpoint is dropped.

    {"kind": "steps", "step": 50, "loss": [...], "gradient_norm": [...], "learning_rate": [...], "seconds": 1.2}
    {"kind": "evaluation", "step": 50, "validation_loss": 2.41, ...}

    `step` counts the steps that were taken; a list has one number for each of the chunk's steps.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / NAME
        kept = [line for line in read(self.path) if line["step"] <= step] if step else []
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def append(self, **line: Any) -> None:
        """Add one line; it is on the disk when this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that a kill cut short does not count."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
