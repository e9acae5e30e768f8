"""Log of a training job as it is on the disk: one line of JSON per launch, chunk of steps, evaluation and sample.

    {"kind": "launch", "step": 0, "parameters": 18688, "flops_per_step": 116000000, "tokens_per_step": 1024, ...}
    {"kind": "steps", "step": 50, "loss": [...], "gradient_norm": [...], "learning_rate": [...], "seconds": 1.2}
    {"kind": "evaluation", "step": 50, "validation_loss": 2.41, ...}
    {"kind": "test", "step": 500, "test_loss": 2.38, ...}
    {"kind": "sample", "step": 50, "prompt": "To be", "text": " or not to"}

`step` is the number of steps taken; a list has one number per step of the chunk. Each line ends with the digest of its
content.
"""

from pathlib import Path
from typing import TypeAlias

from flaxformer.system import digests
from flaxformer.system.errors import UserError

NAME = "log.jsonl"
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


def sound_lines(path: Path) -> tuple[list[LogLine], list[str]]:
    """Return the lines of a log, and what is wrong with the damaged ones."""
    lines, wrong = digests.lines(path)
    kinds = [isinstance(line.get("step"), int) and isinstance(line.get("kind"), str) for line in lines]
    wrong = [text.replace(": ", " is damaged: ", 1) for text in wrong]
    if not all(kinds):
        wrong.append("a line is damaged: it has no step or kind")
    return [line for line, is_line in zip(lines, kinds, strict=True) if is_line], wrong
