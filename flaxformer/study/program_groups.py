"""Groups of trials that share a compiled program."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax

from flaxformer.study.arm import Arm, Trial
from flaxformer.study.declare import Measure
from flaxformer.system.files import safe_name
from flaxformer.training import Run


@dataclasses.dataclass(frozen=True)
class ProgramGroup:
    """Trials whose runs have the same tree structure, and so share one compiled program."""

    name: str
    trials: tuple[Trial, ...]
    size: int
    """Number of trials of the whole group; `trials` may be only the missing ones."""
    measure: Measure | None = None
    """Function of further metrics, called at every evaluation."""
    file: Path | None = None
    """The study's file."""
    initial_weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Digest, when the study was declared, of the weights that a trial starts from, by the trial's name."""
    test: bool = True
    """False if the test data are not looked at."""

    @property
    def example(self) -> Run:
        """Run of the first trial, for what all trials share: shapes, steps and data."""
        return self.trials[0].run

    @property
    def steps(self) -> int:
        """Number of training steps of each trial: all, or those to a rung of a halving."""
        return self.trials[0].until or self.example.training.steps


def groups(
    trials: Sequence[Trial], measure: Measure | None = None, file: Path | None = None, test: bool = True
) -> list[ProgramGroup]:
    """Group trials by the tree structure of their runs, in the order of first appearance.

    Runs that start from weights share a program, whatever the source of each; runs that draw all weights have another.
    """
    arms = {id(trial.arm): trial.arm for trial in trials}
    structures = {key: _structure(arm.run) for key, arm in arms.items()}  # a seed is a leaf
    members: dict[tuple[jax.tree_util.PyTreeDef, bool], list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        members[structures[id(trial.arm)]].append(trial)
    levels = _levels(arms.values())
    return [
        ProgramGroup(_group_name(group, levels), tuple(group), len(group), measure, file, test=test)
        for group in members.values()
    ]


def _structure(run: Run) -> tuple[jax.tree_util.PyTreeDef, bool]:
    """The tree structure of a run as its program sees it, and whether weights are loaded."""
    return jax.tree.structure(run.without_init), run.init is not None


def _levels(arms: Iterable[Arm]) -> dict[str, set[str]]:
    """Return the labels of arms on each axis."""
    levels: dict[str, set[str]] = {}
    for arm in arms:
        for name, label in arm.labels.items():
            levels.setdefault(name, set()).add(label)
    return levels


def _group_name(trials: Sequence[Trial], levels: Mapping[str, set[str]]) -> str:
    """Return the labels that only this group has, made safe for a file name, with a digest of its structure."""
    shared = _levels({id(trial.arm): trial.arm for trial in trials}.values())
    distinct = [
        f"{name}={next(iter(labels))}" for name, labels in shared.items() if len(labels) == 1 < len(levels[name])
    ]
    return safe_name(",".join(distinct) or "all", distinct=str(_structure(trials[0].run)))
