"""Arm and trial: one combination of levels, and one run of it."""

import dataclasses
import functools

from flaxformer.core.canonical import canonical_parts
from flaxformer.core.paths import replace_at
from flaxformer.store.declaration import Labels
from flaxformer.study.claim import arm_name
from flaxformer.system.errors import UserError
from flaxformer.training.run import Run


@dataclasses.dataclass(frozen=True)
class Arm:
    """One combination of levels, one per axis."""

    labels: Labels
    run: Run

    @functools.cached_property
    def name(self) -> str:
        """Unique name in the study, such as "norm=pre,warmup=none"."""
        return arm_name(self.labels)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of the study: an arm at a seed."""

    arm: Arm
    seed: int
    until: int | None = None
    """Step of the halving's rung to which the trial is trained; None for the end of training."""

    @property
    def name(self) -> str:
        """Unique name in the study, such as "norm=pre,seed=0"."""
        return f"{self.arm.name},seed={self.seed}"

    @property
    def run(self) -> Run:
        """Run of the arm at this seed."""
        return replace_at(self.arm.run, {"seed": self.seed})


def distinct(arms: list[Arm]) -> list[Arm]:
    """Return the arms; raise UserError if two are the same run."""
    names: dict[tuple[tuple[str, str], ...], str] = {}
    texts: dict[int, tuple[object, str]] = {}
    for arm in arms:
        twin = names.setdefault(canonical_parts(arm.run, texts), arm.name)
        if twin != arm.name:
            raise UserError(f"arms '{twin}' and '{arm.name}' are the same run; expected every level to change it")
    return arms
