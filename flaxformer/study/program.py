"""A group's compiled functions on one device."""

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer.diagnostics import Diagnostics, diagnose, summary
from flaxformer.params import stream
from flaxformer.study.declare import Cell
from flaxformer.study.execution import Execution
from flaxformer.study.plan import Group
from flaxformer.study.store import Row
from flaxformer.tasks.base import Source
from flaxformer.training import evaluate, evaluation_params, start, train_chunk
from flaxformer.training.run import Run
from flaxformer.training.step import ALIVE, State


class Program:
    """One group's compiled functions on one device, over a fixed number of members."""

    def __init__(self, group: Group, device: jax.Device, execution: Execution) -> None:
        training = group.example.training
        self.group, self.device, self.members = group, device, min(execution.members, group.size)
        self.chunk = next(
            n for n in range(min(execution.chunk_steps, training.interval), 0, -1) if training.interval % n == 0
        )
        began = time.perf_counter()
        self.source = jax.device_put(group.example.task.load(), device)
        runs = self.stacked(group.cells[:1])
        self._start = self._compile(lambda run, source: start(run, execution.layout), runs)
        states = self._start(runs, self.source)
        self._advance = self._compile(
            lambda state, run, source: train_chunk(state, run, source, self.chunk), states, runs
        )
        self._evaluate = self._compile(self._measure, states, runs)
        self._diagnose = self._compile(_diagnose, states, runs) if execution.diagnostics else None
        self.compile_seconds = time.perf_counter() - began

    def _measure(self, state: State, run: Run, source: Source) -> dict[str, Array]:
        """What an evaluation gives, and what else the study measures."""
        measure = self.group.measure
        params = evaluation_params(state, run)
        return evaluate(params, run, source) | dict(measure(params, run) if measure else {})

    def _compile(self, function: Callable[..., Any], *members: Any) -> Callable[..., Any]:
        batch_size = None if self.members == 1 else self.members

        def mapped(*arguments: Any) -> Any:
            *members, source = arguments
            return jax.lax.map(lambda member: function(*member, source), tuple(members), batch_size=batch_size)

        return jax.jit(mapped).lower(*members, self.source).compile()

    def stacked(self, cells: Sequence[Cell]) -> Any:
        """The members' runs as one config of stacked leaves; a short batch repeats its last member."""
        runs = [cell.run for cell in cells]
        runs += runs[-1:] * (self.members - len(runs))
        return jax.device_put(jax.tree.map(lambda *leaves: jnp.asarray(leaves, type(leaves[0])), *runs), self.device)

    def train(self, cells: Sequence[Cell], report: Callable[[int], None]) -> list[Row]:
        """Train the cells to their last step, in chunks; `report` hears the steps taken, and may raise to stop."""
        training, began = self.group.example.training, time.perf_counter()
        runs = self.stacked(cells)
        states = self._start(runs, self.source)
        evaluations, chunks, looks = [self._evaluate(states, runs, self.source)], [], [self._look(states, runs)]
        for step in range(self.chunk, self.group.steps + 1, self.chunk):
            states, metrics = self._advance(states, runs, self.source)
            chunks.append(jax.device_get(metrics))
            if step % training.interval == 0:
                evaluations.append(self._evaluate(states, runs, self.source))
                looks.append(self._look(states, runs))
            report(self.chunk)
        evaluations, looks, diverged_at = jax.device_get((evaluations, looks, states.diverged_at))
        seconds = time.perf_counter() - began
        rows = [self._row(cell, i, chunks, evaluations, int(diverged_at[i]), seconds) for i, cell in enumerate(cells)]
        return [row | _told(looks, i) for i, row in enumerate(rows)]

    def _look(self, states: State, runs: Any) -> Diagnostics | None:
        """The diagnostics of the next step, if they are wanted."""
        return self._diagnose(states, runs, self.source) if self._diagnose else None

    def _row(self, cell: Cell, i: int, chunks: Any, evaluations: Any, diverged_at: int, seconds: float) -> Row:
        steps, tokens = self.group.steps, cell.run.tokens_per_step * self.group.steps
        losses = [float(loss) for chunk in chunks for loss in chunk["loss"][i]]
        return {
            "status": "done" if diverged_at == ALIVE else "diverged",
            "diverged_at": None if diverged_at == ALIVE else diverged_at,
            **{name: float(evaluations[-1][name][i]) for name in evaluations[-1]},
            **{f"initial_{name}": float(evaluations[0][name][i]) for name in evaluations[0]},
            "evaluated_at": list(range(0, steps + 1, cell.run.training.interval)),
            **_curves(evaluations, i),
            "train_loss_curve": losses,
            "seconds": seconds,
            "tokens_per_second": tokens * self.members / seconds,
            "group_size": self.members,
            "chunk_steps": self.chunk,
            "device": str(self.device),
        }


def _curves(looks: Sequence[dict[str, Any]], i: int) -> dict[str, list[float]]:
    """Each number of a member over the evaluations."""
    return {f"{name}_curve": [float(look[name][i]) for look in looks] for name in looks[0]}


def _diagnose(state: State, run: Run, source: Source) -> Diagnostics:
    return diagnose(state, run, source.batch(stream(jax.random.key(run.seed), "data"), state.step))


def _told(looks: Sequence[Diagnostics | None], i: int) -> dict[str, list[float]]:
    """A member's diagnostics as columns."""
    own = [summary(jax.tree.map(operator.itemgetter(i), look)) for look in looks if look is not None]
    return {f"diagnostics/{name}_curve": [float(one[name]) for one in own] for name in own[0]} if own else {}
