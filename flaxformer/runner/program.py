"""A group's compiled functions on one device group."""

import functools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer.diagnostics import Diagnostics, summary
from flaxformer.runner.execution import DeviceGroup, Execution
from flaxformer.runner.functions import functions_of
from flaxformer.runner.partial_runs import PartialRun, Progress
from flaxformer.sharding import replicated, shardings_of
from flaxformer.store.store import Row
from flaxformer.study.declare import Trial
from flaxformer.study.plan import ProgramGroup
from flaxformer.training import start
from flaxformer.training.step import ALIVE, TrainState


class Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """Raised by what a program reports to, at a chunk boundary, to end there."""


class Program:
    """One group's compiled functions on one device group, over a fixed number of members.

    Each device group has a program of its own, rather than one program for all whose members a sharding or `shard_map`
    distributes. Neither makes the devices exchange anything, but for a part of a whole XLA compiles slightly different
    arithmetic, and a member's last bits would depend on the number of devices.

    Args:
      group: what is trained.
      device_group: where.
      execution: the chunks, the layout, and what is recorded.
      members: how many at a time.
    """

    def __init__(self, group: ProgramGroup, device_group: DeviceGroup, execution: Execution, members: int = 1) -> None:
        training = group.example.training
        self.group, self.device_group, self.members = group, device_group, members
        self.chunk = next(
            n for n in range(min(execution.chunk_steps, training.interval), 0, -1) if training.interval % n == 0
        )
        began = time.perf_counter()
        self.bytes, self.source = 0, device_group.shard_source(group.example.task.load())
        runs = self.stacked(group.trials[:1])
        self.functions = functions_of(group.example, members, execution.layout, self.chunk, group.measure)
        state = whole = both = None
        if device_group.mesh is not None:
            whole = replicated(device_group.mesh)
            initial = functools.partial(start, layout=execution.layout)
            state = _stacked_shardings(jax.eval_shape(initial, group.example), device_group.mesh)
            both = (state, whole)
        self._start = self._compile(self.functions.start, state, runs)
        states = self._start(runs, self.source)
        self._advance = self._compile(self.functions.advance, both, states, runs, donate=0)
        self._evaluate = self._compile(self.functions.evaluate, whole, states, runs)
        self._diagnose = self._compile(self.functions.diagnose, whole, states, runs) if execution.diagnostics else None
        self.compile_seconds = time.perf_counter() - began

    def _compile(
        self, function: Callable[..., Any], shardings: Any, *members: Any, donate: int | None = None
    ) -> Callable[..., Any]:
        with self.device_group.mesh_context():
            with self.functions.tracing:
                lowered = jax.jit(function, out_shardings=shardings, donate_argnums=donate).lower(*members, self.source)
            compiled = lowered.compile()
        if (own := compiled.memory_analysis()) is not None:
            used = own.argument_size_in_bytes + own.output_size_in_bytes + own.temp_size_in_bytes
            self.bytes = max(self.bytes, used - own.alias_size_in_bytes)
        return compiled

    def stacked(self, trials: Sequence[Trial]) -> Any:
        """The members' runs as one config of stacked leaves; a short batch repeats its last member."""
        runs = [trial.run for trial in trials]
        runs += runs[-1:] * (self.members - len(runs))
        return self.device_group.device_put(jax.tree.map(lambda *leaves: jnp.asarray(leaves, type(leaves[0])), *runs))

    def train(self, trials: Sequence[Trial], report: Callable[[int, int], None], kept: PartialRun) -> list[Row]:
        """Train the trials to their last step, in chunks, from where `kept` has them.

        `report` hears by how many steps they are further, and how many of those were taken here; it may raise Stopped.
        """
        began, steps, runs = time.perf_counter(), self.group.steps, self.stacked(trials)
        states = self._start(runs, self.source)
        begun = Progress(states, [self._evaluate(states, runs, self.source)], [self._diagnostics(states, runs)], [])
        step, progress = kept.resume(begun, self.chunk)
        before = progress.seconds
        report(step, 0)
        while step < steps:
            self._go_on(progress, runs, step := step + self.chunk)
            progress.seconds = before + time.perf_counter() - began
            try:
                report(self.chunk, self.chunk)
            except Stopped:
                kept.stop(step, progress)
                raise
            if step < steps:
                kept.maybe_save(step, progress)
        seen = (progress.evaluations, progress.diagnostics, progress.states.diverged_at)
        progress.evaluations, progress.diagnostics, diverged_at = jax.device_get(seen)
        progress.seconds = before + time.perf_counter() - began
        return [
            self._row(trial, i, progress, int(diverged_at[i])) | _diagnostics_columns(progress.diagnostics, i)
            for i, trial in enumerate(trials)
        ]

    def _go_on(self, progress: Progress, runs: Any, step: int) -> None:
        """Train a chunk, which ends at `step`, and look at the members where that is due."""
        progress.states, metrics = self._advance(progress.states, runs, self.source)
        progress.losses.append(jax.device_get(metrics["loss"]))
        if step % self.group.example.training.interval == 0:
            progress.evaluations.append(self._evaluate(progress.states, runs, self.source))
            progress.diagnostics.append(self._diagnostics(progress.states, runs))

    def _diagnostics(self, states: TrainState, runs: Any) -> Diagnostics | None:
        """The diagnostics of the next step, if they are wanted."""
        return self._diagnose(states, runs, self.source) if self._diagnose else None

    def _row(self, trial: Trial, i: int, progress: Progress, diverged_at: int) -> Row:
        steps, tokens = self.group.steps, trial.run.tokens_per_step * self.group.steps
        evaluations = progress.evaluations
        return {
            "status": "done" if diverged_at == ALIVE else "diverged",
            "diverged_at": None if diverged_at == ALIVE else diverged_at,
            **{name: float(evaluations[-1][name][i]) for name in evaluations[-1]},
            **{f"initial_{name}": float(evaluations[0][name][i]) for name in evaluations[0]},
            "evaluated_at": list(range(0, steps + 1, trial.run.training.interval)),
            **_curves(evaluations, i),
            "train_loss_curve": [float(loss) for chunk in progress.losses for loss in chunk[i]],
            "seconds": progress.seconds,
            "tokens_per_second": tokens * self.members / progress.seconds,
            "group_size": self.members,
            "chunk_steps": self.chunk,
            "device": str(self.device_group),
        }


def _stacked_shardings(state: Any, mesh: Mesh) -> Any:
    """Return the shardings of stacked states: each member's as one run has alone, the member axis replicated."""
    cut = shardings_of(state, mesh)
    return jax.tree.map(lambda own: NamedSharding(mesh, PartitionSpec(None, *own.spec)), cut)


def _curves(evaluations: Sequence[dict[str, Any]], i: int) -> dict[str, list[float]]:
    """Each number of a member over the evaluations."""
    return {f"{name}_curve": [float(one[name][i]) for one in evaluations] for name in evaluations[0]}


def _diagnostics_columns(diagnostics: Sequence[Diagnostics | None], i: int) -> dict[str, list[float]]:
    """A member's diagnostics as columns."""
    own = [summary(jax.tree.map(operator.itemgetter(i), one)) for one in diagnostics if one is not None]
    return {f"diagnostics/{name}_curve": [float(one[name]) for one in own] for name in own[0]} if own else {}
