"""Runs under way, kept on disk now and then: a process that is stopped or killed costs minutes, not a run.

DIR/unfinished/GROUP/DIGEST holds the checkpoints of the members that one program trains together; the digest is of
their recipes and seeds. Whoever trains the same members next goes on from there, to the same last bits, and removes
them when there are results. What cannot be read, or is of other members, is as if it were not there.
"""

import contextlib
import dataclasses
import json
import operator
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import Array

from flaxformer import distributed
from flaxformer.checkpoint import Checkpoints, SaveFailed
from flaxformer.diagnostics import Diagnostics
from flaxformer.store.store import Store
from flaxformer.struct import UserError
from flaxformer.study.declare import Trial
from flaxformer.study.plan import ProgramGroup, code_by_arm, digest, recipe
from flaxformer.training.step import TrainState

MIN_SECONDS_TO_SAVE = 10.0
"""Seconds of training since the last save that are worth another where the process is told to stop."""


@dataclasses.dataclass
class Progress:
    """Progress of some members: their states, and their losses and evaluations so far."""

    states: TrainState
    evaluations: list[dict[str, Array]]
    diagnostics: list[Diagnostics | None]
    losses: list[Array]
    """Losses of each chunk, [members, steps of the chunk]."""
    seconds: float = 0.0

    def packed(self) -> dict[str, Any]:
        """All of it as one tree of arrays."""
        losses = np.concatenate([np.zeros((self.members, 0), np.float32), *self.losses], axis=1)
        history = {
            "evaluations": _stacked(self.evaluations),
            "diagnostics": _stacked(self.diagnostics),
            "losses": losses,
        }
        return {"states": self.states, "history": history, "seconds": np.float64(self.seconds)}

    def shapes(self, step: int, interval: int) -> dict[str, Any]:
        """The tree of the same members after so many steps."""
        packed, count = dataclasses.replace(self, losses=[]).packed(), 1 + step // interval
        seen = {name: _at(packed["history"][name], 0) for name in ("evaluations", "diagnostics")}
        grown = jax.tree.map(lambda first: np.zeros((count, *first.shape), first.dtype), seen)
        return packed | {"history": grown | {"losses": np.zeros((self.members, step), np.float32)}}

    @classmethod
    def unpacked(cls, tree: dict[str, Any]) -> Self:
        """The inverse of `packed`."""
        history, count = tree["history"], len(jax.tree.leaves(tree["history"]["evaluations"])[0])
        evaluations, own = ([_at(history[name], i) for i in range(count)] for name in ("evaluations", "diagnostics"))
        return cls(tree["states"], evaluations, own, [history["losses"]], float(tree["seconds"]))

    @property
    def members(self) -> int:
        """Number of members that are trained together."""
        return len(self.states.step)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(list(trees)))


def _at(tree: Any, i: int) -> Any:
    return jax.tree.map(operator.itemgetter(i), tree)


class PartialRun:
    """Saved progress of some members, and the times at which more is saved.

    Args:
      root: the study's folder; None keeps nothing.
      group: whose members they are.
      trials: the members.
      size: how many the program trains at a time; more than the trials where the last is repeated.
      minutes: between two saves; 0 keeps nothing.
      tell: hears, in a sentence, what is gone on from, and what could not be saved or read.
    """

    def __init__(
        self,
        root: Path | None,
        group: ProgramGroup,
        trials: Sequence[Trial],
        size: int,
        minutes: float,
        notify: Callable[[str], None],
    ) -> None:
        self._minutes, self._notify, self._group, self._trials = minutes, notify, group, trials
        self._saved = time.monotonic()
        self._kept: Checkpoints | None = None
        if root is not None and minutes:
            who = json.dumps([identity(group, trials), size], sort_keys=True)
            folder = Store(root).unfinished / group.name / digest(who)
            self._kept = Checkpoints(folder, keep_last=2, keep_best=0, report=self._say)

    def resume(self, begun: Progress, chunk: int) -> tuple[int, Progress]:
        """The latest step on disk at which a chunk of so many steps may begin, and what these members came to there.

        Without one, 0 and how they began.
        """
        if self._kept is None:
            return 0, begun
        interval = self._group.example.training.interval
        for step in reversed(distributed.run_on_coordinator(self._kept.steps)):
            if step % chunk:
                self._say(f"not gone on from step {step}: chunks have {chunk} steps now")
                continue
            try:
                _, tree = self._kept.restore(begun.shapes(step, interval), step)
            except UserError as error:
                self._say(f"not gone on from step {step}: {error}")
                continue
            others = f" and {len(self._trials) - 1} more" if len(self._trials) > 1 else ""
            self._notify(f"{self._trials[0].name}{others}: goes on from step {step}")
            return step, Progress.unpacked(tree)
        return 0, begun

    def maybe_save(self, step: int, progress: Progress) -> None:
        """Save, beside the training, where that was last done long enough ago."""
        self._save_after(60 * self._minutes, step, progress)

    def stop(self, step: int, progress: Progress) -> None:
        """Save before the process ends, where that is worth it."""
        self._save_after(MIN_SECONDS_TO_SAVE, step, progress)
        self._wait()

    def remove(self) -> None:
        """Remove what is on disk, where there are results."""
        self._wait()
        if self._kept is not None and distributed.is_coordinator():
            shutil.rmtree(self._kept.folder, ignore_errors=True)

    def _wait(self) -> None:
        if self._kept is not None:
            with contextlib.suppress(SaveFailed):  # it was told when it failed
                self._kept.wait()

    def _save_after(self, seconds: float, step: int, progress: Progress) -> None:
        if self._kept is None or not distributed.run_on_coordinator(lambda: time.monotonic() - self._saved >= seconds):
            return
        self._saved = time.monotonic()
        try:
            self._kept.save(step, progress.packed())
        except UserError as error:  # another process took the members over, and is further
            self._say(f"not saved: {error}")

    def _say(self, text: str) -> None:
        self._notify(f"{self._group.name}: {text}")


def identity(group: ProgramGroup, trials: Sequence[Trial]) -> list[Any]:
    """Return what decides the exact bits of trained members, except the data, which the study's folder records."""
    code = code_by_arm({trial.arm.name: trial.arm for trial in trials}.values(), group.measure, group.file)
    return [[recipe(trial, {}, code[trial.arm.name]), trial.seed] for trial in trials]


def remove_of(store: Store, groups: Iterable[ProgramGroup]) -> None:
    """Remove what is left of groups whose every trial has a result."""
    if not store.unfinished.exists():
        return
    rows = Counter(row["group"] for row in store.rows().values())
    for group in groups:
        if rows[group.name] >= group.size:
            shutil.rmtree(store.unfinished / group.name, ignore_errors=True)
    with contextlib.suppress(OSError):
        store.unfinished.rmdir()
