"""Executing a plan: a worker thread a device, each training its share of a group with one compiled program.

Members of a group are mapped with `lax.map`, one after another (bitwise what a lone run gives, on any number of
devices) or `group_size` at a time (`vmap`, for accelerators). Workers run one-device programs rather than one program
sharded over the devices, because XLA's partitioner compiles slightly different arithmetic: the last bits would depend
on the number of devices.
"""

import contextlib
import dataclasses
import operator
import os
import queue
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer.diagnostics import Diagnostics, diagnose, summary
from flaxformer.model.transformer import Layout
from flaxformer.params import stream
from flaxformer.struct import UserError
from flaxformer.study.declare import Cell
from flaxformer.study.plan import Group
from flaxformer.study.schedule import Scheduler
from flaxformer.study.store import Row
from flaxformer.tasks.base import Source
from flaxformer.training import evaluate, evaluation_params, start, train_chunk
from flaxformer.training.run import Run
from flaxformer.training.step import ALIVE, State


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How results are computed; nothing here changes a result, save in the last bits where group_size is above 1.

    Args:
      output: the folder of results; runs/NAME by default.
      devices: how many devices to use; all by default. On a CPU there is one device a core.
      group_size: members trained at a time on one device; 1 is exact, more fill an accelerator.
      chunk_steps: steps between two looks at progress; rounded down to a divisor of the evaluation interval.
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      diagnostics: at every evaluation, also record what `diagnostics.summary` tells of the next step's batch.
    """

    output: Path | None = None
    devices: int | None = None
    group_size: int | None = None
    chunk_steps: int = 50
    layout: Layout = "auto"
    diagnostics: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "group_size", "chunk_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; expected at least 1")

    @property
    def members(self) -> int:
        """Members at a time on one device: 1 on a CPU, where vmap does not pay, 8 elsewhere."""
        return self.group_size or (1 if jax.default_backend() == "cpu" else 8)

    def use_devices(self) -> list[jax.Device]:
        """The devices to work on.

        Raises:
          UserError: more are asked for than there are.
        """
        found = jax.local_devices()
        if self.devices is not None and self.devices > len(found):
            raise UserError(f"devices is {self.devices}; expected at most {len(found)}, which this machine has")
        return found[: self.devices]


def one_cpu_device_per_core() -> None:
    """Split the CPU into a device a core, where JAX has not started yet: a small model keeps one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", cores)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A worker has compiled a group's program."""

    group: str
    device: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Advanced:
    """A worker has trained some members for some steps."""

    group: str
    cells: int
    steps: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Finished:
    """A member is done, or failed: its row of results."""

    group: str
    row: Row


Event = Compiled | Advanced | Finished


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
        """Train the cells from start to end, in chunks; `report` hears the steps taken, and may raise to stop."""
        training, began = self.group.example.training, time.perf_counter()
        runs = self.stacked(cells)
        states = self._start(runs, self.source)
        evaluations, chunks, looks = [self._evaluate(states, runs, self.source)], [], [self._look(states, runs)]
        for step in range(self.chunk, training.steps + 1, self.chunk):
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
        training, tokens = cell.run.training, cell.run.tokens_per_step * cell.run.training.steps
        losses = [float(loss) for chunk in chunks for loss in chunk["loss"][i]]
        return {
            "status": "done" if diverged_at == ALIVE else "diverged",
            "diverged_at": None if diverged_at == ALIVE else diverged_at,
            **{name: float(evaluations[-1][name][i]) for name in evaluations[-1]},
            **{f"initial_{name}": float(evaluations[0][name][i]) for name in evaluations[0]},
            "evaluated_at": list(range(0, training.steps + 1, training.interval)),
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


class Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """Raised in a worker at a chunk boundary once `Scheduler.stopping` is set."""


def execute(groups: Sequence[Group], execution: Execution) -> Iterator[Event]:
    """Train every cell of the groups; yields what happens, in the caller's thread, as it happens.

    An exception in a batch makes its cells failed rows, with the traceback, and the rest goes on. Closing the iterator
    (or an exception in the caller) stops the workers at their next chunk.
    """
    scheduler = Scheduler(groups, execution.members)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    devices = execution.use_devices()
    with ThreadPoolExecutor(len(devices)) as pool:
        workers = [pool.submit(_work, device, scheduler, execution, events.put) for device in devices]
        for worker in workers:
            worker.add_done_callback(lambda _: events.put(None))
        try:
            running = len(workers)
            while running:
                event = events.get()
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            scheduler.stopping.set()
    for worker in workers:
        worker.result()


def _work(device: jax.Device, scheduler: Scheduler, execution: Execution, emit: Callable[[Event], None]) -> None:
    """One device's worker: take a batch, compile if its group is new here, train it, say so."""
    program: Program | None = None
    while not scheduler.stopping.is_set():
        task = scheduler.take(device, program.group.name if program else None)
        if task is None:
            return
        group, cells = task

        def report(steps: int, group: Group = group, cells: Sequence[Cell] = cells) -> None:
            emit(Advanced(group.name, len(cells), steps, steps * len(cells) * group.example.tokens_per_step))
            if scheduler.stopping.is_set():
                raise Stopped

        try:
            if program is None or program.group.name != group.name:
                program = None
                program = Program(group, device, execution)
                scheduler.learn(group.name, compile_seconds=program.compile_seconds)
                emit(Compiled(group.name, str(device), program.compile_seconds))
            began = time.perf_counter()
            rows = program.train(cells, report)
            scheduler.learn(group.name, batch_seconds=time.perf_counter() - began)
        except Stopped:
            return
        except Exception as error:
            if program is None:  # it does not compile: no other batch of the group would
                cells = (*cells, *scheduler.abandon(group.name))
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            rows = [{"status": "failed", "cause": cause, "error": traceback.format_exc()} for _ in cells]
        for cell, row in zip(cells, rows, strict=True):
            emit(
                Finished(
                    group.name, {"cell": cell.name, "group": group.name, "seed": cell.seed} | cell.arm.labels | row
                )
            )
