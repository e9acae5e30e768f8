"""Log of a training job as it is on the disk: one line of JSON per launch, chunk of steps, evaluation and sample.

    {"kind": "launch", "step": 0, "parameters": 18688, "flops_per_step": 116000000, "tokens_per_step": 1024, ...}
    {"kind": "steps", "step": 50, "loss": [...], "gradient_norm": [...], "learning_rate": [...], "seconds": 1.2,
     "elapsed": 14.0, "goodput": 0.09}
    {"kind": "evaluation", "step": 50, "validation_loss": 2.41, ...}
    {"kind": "test", "step": 500, "test_loss": 2.38, ...}
    {"kind": "sample", "step": 50, "prompt": "To be", "text": " or not to"}
    {"kind": "time", "step": 500, "elapsed": 31.0, "goodput": 0.39, "starting": 4.1, "compiling": 9.0, ...}

`step` is the number of steps taken; a list has one number per step of the chunk. `elapsed` is the number of seconds
since the launch; the last line of a launch says what they were spent on. Each line ends with the digest of its
content.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from flaxformer.system import digests
from flaxformer.system.errors import UserError

NAME = "log.jsonl"
NUMBER = (int, float)
SPENT = ("starting", "compiling", "steps", "evaluation", "samples", "profiling", "saving")
"""Kinds of wall time of a launch (`jobs.goodput`)."""
Types: TypeAlias = type | tuple[type, ...]
LAUNCH: dict[str, Types] = {
    "parameters": NUMBER,
    "flops_per_step": NUMBER,
    "tokens_per_step": NUMBER,
    "device": str,
    "devices": NUMBER,
    "peak": (*NUMBER, type(None)),
}
"""Types of the fields of a launch."""
WALL_TIME: dict[str, Types] = {"elapsed": NUMBER, "goodput": NUMBER}
TYPES: dict[str, dict[str, Types]] = {
    "launch": LAUNCH | {"lost": NUMBER, "command": (str, type(None))},
    "steps": {"seconds": NUMBER} | WALL_TIME,
    "time": dict.fromkeys(SPENT, NUMBER) | WALL_TIME,
    "sample": {"prompt": str, "text": str},
}
"""Types of named fields of a line by its kind; numbers among them are finite and not negative."""
REQUIRED = {"launch": tuple(LAUNCH), "sample": ("prompt", "text")}
"""Fields that a line of a kind has."""
OTHERS: dict[str, Types] = {"evaluation": NUMBER, "test": NUMBER, "steps": list}
"""Type of its other fields; a list is of numbers."""
LogLine: TypeAlias = digests.JsonObject


def read(path: Path) -> list[LogLine]:
    """Return the complete lines of a log, without a last line that a kill cut short.

    Raises:
      UserError: a line is damaged; the message says which.
    """
    lines, wrong = sound_lines(path)
    if wrong:
        raise UserError(f"{path}, {wrong[0]}; expected lines as `train` wrote them")
    return lines


def wall_seconds(lines: Iterable[LogLine]) -> float:
    """Return the seconds that all launches took, up to the last line of each, with those whose lines were dropped."""
    seconds = last = 0.0
    for line in lines:
        if line["kind"] == "launch":
            seconds, last = seconds + last + line.get("lost", 0.0), 0.0
        last = line.get("elapsed", last)
    return seconds + last


def sound_lines(path: Path) -> tuple[list[LogLine], list[str]]:
    """Return the lines of a log, and what is wrong with the damaged ones."""
    lines, wrong = digests.lines(path)
    problems = [_problem(line) for line in lines]
    wrong = [text.replace(": ", " is damaged: ", 1) for text in wrong]
    wrong += [f"a line is damaged: {problem}" for problem in problems if problem]
    return [line for line, problem in zip(lines, problems, strict=True) if not problem], wrong


def _problem(line: LogLine) -> str:
    """Return what is wrong with the types of a line; empty if nothing is."""
    if not (isinstance(line.get("step"), int) and isinstance(line.get("kind"), str)):
        return "it has no step or kind"
    kind = line["kind"]
    other = OTHERS.get(kind, object)
    types = {name: TYPES.get(kind, {}).get(name, other) for name in line if name not in ("kind", "step")}
    wrong = [name for name in REQUIRED.get(kind, ()) if name not in line]
    wrong += [name for name, expected in types.items() if not isinstance(line[name], expected)]
    numbers = {name: line[name] for name in TYPES.get(kind, {}) if isinstance(line.get(name), NUMBER)}
    wrong += [name for name, value in numbers.items() if not 0 <= value <= sys.float_info.max]
    lists = {name: line[name] for name, expected in types.items() if expected is list and name not in wrong}
    wrong += [name for name, values in lists.items() if not all(isinstance(value, NUMBER) for value in values)]
    return f"its {', '.join(wrong)} is absent, of another type, or out of range" if wrong else ""
