"""Partial runs: checkpoints of the runs in progress, so that a stopped or killed process loses minutes, not a run.

DIR/unfinished/GROUP/DIGEST holds the checkpoints of the runs that one program trains together; the digest is of their
recipes and seeds. The next process that trains the same runs resumes them, bit for bit, and removes the checkpoints
when there are results. A checkpoint that cannot be read, or is of other runs, is ignored.
"""

import contextlib
import dataclasses
import json
import operator
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import jax
import numpy as np
from jaxtyping import Array, PyTree

from flaxformer.checkpoint import Checkpoints, SaveError
from flaxformer.devices import distributed
from flaxformer.diagnostics import Diagnostics
from flaxformer.store.store import Store
from flaxformer.study.arm import Trial
from flaxformer.study.identity import digest, recipe
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import first_of
from flaxformer.training.step import TrainState

CodeByArm = Mapping[str, Mapping[str, str]]
MIN_SECONDS_TO_SAVE = 10.0
"""Seconds of training since the last save from which on a process that is interrupted saves again."""


@dataclasses.dataclass
class Progress:
    """Progress of stacked runs: their states, and their losses and evaluations so far."""

    states: TrainState
    evaluations: list[dict[str, Array]]
    diagnostics: list[Diagnostics | None]
    losses: list[np.ndarray]
    """Losses of each chunk, [runs, steps of the chunk]."""
    seconds: float = 0.0

    def pack(self) -> dict[str, PyTree]:
        """All of it as one tree of arrays."""
        losses = np.concatenate([np.zeros((self.size, 0), np.float32), *self.losses], axis=1)
        history = {
            "evaluations": _stack(self.evaluations),
            "diagnostics": _stack(self.diagnostics),
            "losses": losses,
        }
        return {"states": self.states, "history": history, "seconds": np.float64(self.seconds)}

    def shapes(self, step: int, interval: int) -> dict[str, PyTree]:
        """The tree that `pack` gives for the same runs after `step` steps."""
        packed, count = dataclasses.replace(self, losses=[]).pack(), 1 + step // interval
        seen = {name: _at(packed["history"][name], 0) for name in ("evaluations", "diagnostics")}
        grown = jax.tree.map(lambda first: np.zeros((count, *first.shape), first.dtype), seen)
        return packed | {"history": grown | {"losses": np.zeros((self.size, step), np.float32)}}

    @classmethod
    def unpack(cls, tree: dict[str, PyTree]) -> Self:
        """The inverse of `pack`."""
        history, count = tree["history"], len(jax.tree.leaves(tree["history"]["evaluations"])[0])
        evaluations, diagnostics = (
            [_at(history[name], i) for i in range(count)] for name in ("evaluations", "diagnostics")
        )
        return cls(tree["states"], evaluations, diagnostics, [history["losses"]], float(tree["seconds"]))

    @property
    def size(self) -> int:
        """Number of stacked runs."""
        return len(self.states.step)


def _stack(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(list(trees)))


def _at(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(operator.itemgetter(i), tree)


class PartialRun:
    """Saved progress of runs that are trained together, and the times at which more is saved.

    Args:
      root: the study's folder; None saves nothing.
      group: the group of the runs.
      trials: the runs.
      size: number of runs that the program trains together; more than `trials` where the last is repeated.
      minutes: between two saves; 0 saves nothing.
      notify: called with a sentence on what is resumed, and on what could not be saved or read.
      code: returns the digests of the user code behind each arm (`code_by_arm`); called only if progress is saved.
    """

    def __init__(
        self,
        root: Path | None,
        group: ProgramGroup,
        trials: Sequence[Trial],
        size: int,
        minutes: float,
        notify: Callable[[str], None],
        code: Callable[[], CodeByArm],
    ) -> None:
        self._minutes, self._notify, self._group, self._trials = minutes, notify, group, trials
        self._saved = time.monotonic()
        self._checkpoints: Checkpoints | None = None
        if root is not None and minutes:
            who = json.dumps([identity(trials, code()), size], sort_keys=True)
            folder = Store(root).unfinished / group.name / digest(who)
            self._checkpoints = Checkpoints(folder, keep_last=2, keep_best=0, report=self._say)

    def resume(self, initial: Progress) -> tuple[int, Progress]:
        """The latest step on disk, and the progress there; without one, 0 and the initial progress."""
        if self._checkpoints is None:
            return 0, initial
        interval = self._group.example.training.interval
        for step in reversed(distributed.run_on_coordinator(self._checkpoints.steps)):
            try:
                _, tree = self._checkpoints.restore(initial.shapes(step, interval), step)
            except UserError as error:
                self._say(f"not resumed from step {step}: {error}")
                continue
            names = first_of([trial.name for trial in self._trials], 1)
            self._notify(f"{names}: resumed from step {step}")
            return step, Progress.unpack(tree)
        return 0, initial

    def maybe_save(self, step: int, progress: Progress) -> None:
        """Save in the background, if the last save was at least `minutes` ago."""
        self._save_after(60 * self._minutes, step, progress)

    def stop(self, step: int, progress: Progress) -> None:
        """Save before the process ends, if enough was trained since the last save."""
        self._save_after(MIN_SECONDS_TO_SAVE, step, progress)
        self._wait()

    def remove(self) -> None:
        """Remove the checkpoints, once there are results."""
        distributed.all_processes().run(self._wait)
        if self._checkpoints is not None and distributed.is_coordinator():
            shutil.rmtree(self._checkpoints.folder, ignore_errors=True)

    def _wait(self) -> None:
        if self._checkpoints is not None:
            with contextlib.suppress(SaveError):  # it was reported when it failed
                self._checkpoints.wait()

    def _save_after(self, seconds: float, step: int, progress: Progress) -> None:
        if self._checkpoints is None:
            return
        if not distributed.run_on_coordinator(lambda: time.monotonic() - self._saved >= seconds):
            return
        self._saved = time.monotonic()
        try:
            self._checkpoints.save(step, progress.pack())
        except UserError as error:  # another process took the runs over, and has trained further
            self._say(f"not saved: {error}")

    def _say(self, text: str) -> None:
        self._notify(f"{self._group.name}: {text}")


def identity(trials: Iterable[Trial], code: CodeByArm) -> list[list[object]]:
    """The recipes and seeds that decide the exact bits of trained runs; the study's folder records the data."""
    return [[plain(recipe(trial, {}, code[trial.arm.name])), trial.seed] for trial in trials]


def remove_of(store: Store, groups: Iterable[ProgramGroup]) -> None:
    """Remove the partial runs of groups whose trials all have results."""
    if not store.unfinished.exists():
        return
    counts = Counter(row.group for row in store.rows().values())
    for group in groups:
        if counts[group.name] >= group.size:
            shutil.rmtree(store.unfinished / group.name, ignore_errors=True)
    with contextlib.suppress(OSError):
        store.unfinished.rmdir()
