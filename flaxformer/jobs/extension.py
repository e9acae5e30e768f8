"""Extension of a training job: more steps in its folder, from a checkpoint that a run of that length would have too.

The numbers of a step depend on the length of training by the learning rate alone (`training.schedule`). So the rule is:
the longer run resumes from the newest checkpoint before the first step whose learning rate differs between the two
lengths, and equals an uninterrupted run bit for bit. That is the newest of all for a constant rate and for an inverse
square root; for warm-up, stable, decay, the newest before the decay; for a cosine or a line to zero there is none, and
only `extend=True` goes on from the newest, with the learning rates of the longer schedule from there on.
"""

import dataclasses
import datetime
from pathlib import Path

import jax
import numpy as np

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.config import NAME as CONFIG
from flaxformer.checkpoint.config import extend_config, read_canonical, supersede_after
from flaxformer.core.canonical import canonical
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences, flatten
from flaxformer.system.wording import count_of
from flaxformer.training import Run
from flaxformer.training.schedule import learning_rate

STEPS = "training.steps"


@dataclasses.dataclass(frozen=True)
class Extension:
    """Change of the number of steps of a job."""

    before: int
    """Number of steps of the folder's run."""
    after: int
    resumes: int
    """Step of the checkpoint from which the longer run resumes."""
    taken: int
    """Number of steps that the folder's newest checkpoint has taken."""
    is_exact: bool
    """True if the longer run equals an uninterrupted one."""
    rates: tuple[float, float]
    """Learning rate of the next step by the schedules of both lengths."""

    def __str__(self) -> str:
        """Sentence on what the extension does."""
        extended = (
            f"extended from {self.before:,} to {count_of(self.after, 'step')}: resuming after step {self.resumes:,}"
        )
        if not self.is_exact:
            old, new = self.rates
            change = f"whose learning rate goes from {old:.3g} to {new:.3g}"
            return f"{extended}, {change}; an uninterrupted run of this length would differ"
        later = f"; the {self.taken - self.resumes:,} steps after it are trained again and are kept in superseded/"
        again = later if self.taken > self.resumes else ""
        return f"{extended}, up to which the learning rates are those of the longer run{again}"


def extension_of(folder: Path, run: Run, extend: bool) -> Extension | None:
    """Return the extension by which a folder's job becomes a run; None where more than the number of steps differs.

    Args:
      folder: the job's folder.
      run: the longer run.
      extend: True to go on from the newest checkpoint where no other would give an uninterrupted run.

    Raises:
      UserError: no checkpoint would, and `extend` is False.
    """
    if not (folder / CONFIG).exists():
        return None
    old = read_canonical(folder)
    before, after = flatten(old).get(STEPS), run.training.steps
    changed = [line.partition(":")[0] for line in differences(old, canonical(run))]
    if changed != [STEPS] or not isinstance(before, int) or after < before:
        return None
    steps = Checkpoints(folder).steps()
    newest = max(steps, default=0)
    same = equal_steps(run, before, after, newest)
    exact = [step for step in (steps or [0]) if step <= same]
    extension = Extension(
        before=before,
        after=after,
        resumes=max(exact, default=newest),
        taken=newest,
        is_exact=bool(exact),
        rates=(_rate(run, newest, before), _rate(run, newest, after)),
    )
    if not exact and not extend:
        raise UserError(_refusal(folder, extension, type(run.optimizer.decay).__name__, same))
    return extension


def _refusal(folder: Path, extension: Extension, schedule: str, same: int) -> str:
    held, length, (old, new) = count_of(extension.before, "step"), count_of(extension.after, "step"), extension.rates
    return (
        f"{folder} holds a run of {held}, whose learning rates ({schedule}) are not those of {length} after step "
        f"{same:,}, and no checkpoint is as early. Give --output another folder to train all {length}, or --extend to "
        f"go on after step {extension.taken:,} with the rates of the longer schedule ({new:.3g} there, in place of "
        f"{old:.3g})"
    )


def apply(extension: Extension, folder: Path, run: Run) -> None:
    """Set checkpoints and lines of the log after the step aside, and then write the longer run into the config."""
    if extension.taken > extension.resumes:
        supersede_after(folder, extension.resumes)
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    extend_config(folder, run, dataclasses.asdict(extension) | {"time": time, "rates": list(extension.rates)})


def equal_steps(run: Run, before: int, after: int, taken: int) -> int:
    """Return the number of steps, of those taken, before the first whose learning rate depends on the length."""

    def rates(steps: int) -> np.ndarray:
        return np.asarray(jax.vmap(lambda step: learning_rate(run.optimizer, step, steps))(jax.numpy.arange(taken)))

    differs = rates(before) != rates(after) if taken else np.zeros(0, bool)
    return int(differs.argmax()) if differs.any() else taken


def _rate(run: Run, step: int, steps: int) -> float:
    return float(learning_rate(run.optimizer, min(step, steps - 1), steps))
