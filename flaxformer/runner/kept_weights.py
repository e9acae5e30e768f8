"""Kept weights of each trial: at its last step, at its best evaluation, or at every evaluation, on request.

DIR/weights/NAME holds the weights of one trial: config.json with its run, and a checkpoint for each kept step, written
and verified as those of a training job. The weights are those that evaluations use, such as their running mean.
"""

import contextlib
import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import jax
from jaxtyping import Array

from flaxformer.checkpoint import Checkpoints, SaveError, write_config
from flaxformer.checkpoint.steps import step_numbers
from flaxformer.devices import distributed
from flaxformer.model.weights import Transformer
from flaxformer.runner.execution import Execution
from flaxformer.runner.partial_runs import CodeByArm
from flaxformer.store.places import SUPERSEDED, WeightsToKeep, weights_folder
from flaxformer.store.rows import is_finished
from flaxformer.store.store import Store
from flaxformer.study.arm import Trial
from flaxformer.study.declare import Study
from flaxformer.study.divergence import on_validation
from flaxformer.study.halving import goal_of
from flaxformer.system import files
from flaxformer.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Keep:
    """Rule of the weights to keep.

    Args:
      which: "final", "best" or "all". The best is among the evaluations whose metric is finite; a run without one has
        no best, and keeps no weights.
      metric: metric whose best evaluation counts.
      lower_is_better: direction of the metric.
      code_copy: path in the study's folder of the copy of its file that runs; None if there is none.
    """

    which: WeightsToKeep
    metric: str
    lower_is_better: bool
    code_copy: str | None

    @classmethod
    def of(cls, study: Study, execution: Execution, code_copy: str | None) -> Self | None:
        """The rule of an execution, or else of the study; None to keep no weights."""
        which, goal = execution.keep or study.keep, goal_of(study.metric, study.goal)
        return which and cls(which, on_validation(study.metric), goal == "lower", code_copy)

    def scores(self, metrics: Mapping[str, Array]) -> list[float]:
        """The metric of every stacked run, such that lower is better."""
        sign = 1 if self.lower_is_better else -1
        return [sign * float(value) for value in metrics[self.metric]]


class KeptWeights:
    """The kept weights of runs that are trained together.

    Args:
      root: the study's folder.
      trials: the runs.
      keep: which weights to keep.
      steps: number of training steps.
      notify: called with a sentence on what could not be saved.
      code: digests of the user code behind each arm.
    """

    def __init__(
        self,
        root: Path,
        trials: Sequence[Trial],
        keep: Keep,
        steps: int,
        notify: Callable[[str], None],
        code: CodeByArm,
    ) -> None:
        self._keep, self._steps, self._trials, self._notify = keep, steps, trials, notify
        folders = [weights_folder(root, trial.name) for trial in trials]
        for trial, folder in zip(trials, folders, strict=True):
            distributed.run_on_coordinator(functools.partial(_prepare, folder, trial, code, keep.code_copy))
        last = sys.maxsize if keep.which == "all" else 1
        ranking = functools.partial(Checkpoints, metric=keep.metric, lower_is_better=keep.lower_is_better)
        self._checkpoints = [ranking(folder, keep_last=last, keep_best=0, report=notify) for folder in folders]
        self._newest = [
            max(distributed.run_on_coordinator(checkpoints.steps), default=-1) for checkpoints in self._checkpoints
        ]
        """The newest step of each run that is on disk or being saved."""
        self._best = [math.nan] * len(trials)
        """The best score of each run whose weights were kept; NaN for none."""

    def resume(self, evaluations: Sequence[Mapping[str, Array]], interval: int) -> None:
        """Take earlier evaluations of resumed runs into account; those without kept weights are reported.

        Args:
          evaluations: metrics of the stacked runs at the steps 0, `interval`, and so on, before the resumed step.
          interval: steps between two evaluations.
        """
        if self._keep.which == "final" or not evaluations:
            return
        history = [self._keep.scores(metrics) for metrics in jax.device_get(list(evaluations))]
        for i, trial in enumerate(self._trials):
            scores = [scores[i] for scores in history]
            finite = [number for number, score in enumerate(scores) if math.isfinite(score)]
            best = min(finite, key=scores.__getitem__, default=None)
            wanted = range(len(scores)) if self._keep.which == "all" else [best] if best is not None else []
            lost = [number * interval for number in wanted if number * interval > self._newest[i]]
            if lost:
                self._notify(f"{trial.name}: resumed; the weights of {_list_steps(lost)} were not kept before")
            elif best is not None:
                self._best[i] = scores[best]

    def save(self, step: int, metrics: Mapping[str, Array], params: Callable[[], Transformer]) -> None:
        """Save the weights of those runs whose weights at this evaluation are to be kept.

        Args:
          step: the step of the evaluation.
          metrics: of the stacked runs.
          params: returns the stacked weights.
        """
        if self._keep.which == "final" and step < self._steps:
            return
        values = jax.device_get(dict(metrics))
        scores = self._keep.scores(values)
        chosen = [i for i in range(len(self._trials)) if self._is_kept(i, scores[i])]
        for i in chosen:
            self._best[i] = scores[i]
        # An earlier process may have saved a step, and been killed before it saved its progress.
        new = [i for i in chosen if step > self._newest[i]]
        weights = jax.device_get(params()) if new else None
        for i in new:
            self._newest[i] = step
            run_weights = jax.tree.map(operator.itemgetter(i), weights)
            self._checkpoints[i].save(step, {"params": run_weights}, {name: value[i] for name, value in values.items()})
        if step >= self._steps:
            self._report_missing()

    def _report_missing(self) -> None:
        """Report the runs without kept weights, which no evaluation with a finite metric was the best of."""
        for trial, newest in zip(self._trials, self._newest, strict=True):
            if newest < 0:
                metric = self._keep.metric.replace("_", " ")
                self._notify(f"{trial.name}: no weights are kept, since no evaluation has a finite {metric}")

    def wait(self) -> None:
        """Wait until all weights are on disk."""
        for checkpoints in self._checkpoints:
            with contextlib.suppress(SaveError):  # it was reported when it failed
                checkpoints.wait()

    def _is_kept(self, i: int, score: float) -> bool:
        """True if the weights of a run with this score are to be kept."""
        if self._keep.which != "best":
            return True
        return math.isfinite(score) and not score >= self._best[i]


def finished_without_weights(store: Store) -> int:
    """Return the number of finished runs of a folder whose weights were not kept."""
    finished = [row for row in store.rows().values() if is_finished(row) and row.status != "stopped"]
    return sum(not step_numbers(weights_folder(store.root, row.trial), published=True) for row in finished)


def _prepare(folder: Path, trial: Trial, code: CodeByArm, code_copy: str | None) -> None:
    """Write the run of a trial into its folder; weights of another run or of other code are set aside."""
    write = functools.partial(write_config, folder, trial.run, code[trial.arm.name], source=code_copy)
    try:
        write()
    except UserError:
        files.set_aside(folder, SUPERSEDED)
        write()


def _list_steps(steps: Sequence[int]) -> str:
    """Steps in words, at most three of them."""
    shown = map(str, steps) if len(steps) < 4 else [str(steps[0]), str(steps[1]), f"… {steps[-1]}"]
    return f"step{'s' * (len(steps) > 1)} {', '.join(shown)}"
