"""Training the trials of a group on one device group: as many runs together as memory holds, in chunks, resumable."""

import functools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flaxformer.diagnostics import Diagnostics, diagnose
from flaxformer.runner.compiled_runs import compiled_run
from flaxformer.runner.events import Finished, Message, Profiled, Progressed
from flaxformer.runner.execution import Execution
from flaxformer.runner.kept_weights import Keep, KeptWeights
from flaxformer.runner.partial_runs import PartialRun, Progress
from flaxformer.runner.profiled import train_with_profile
from flaxformer.runner.results import error_line, failed_row, finished_rows, is_out_of_memory
from flaxformer.store.rows import Row
from flaxformer.study import initial_weights
from flaxformer.study.arm import Arm, Trial
from flaxformer.study.identity import code_by_arm
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.settings import ProfiledSteps
from flaxformer.tasks.batch import Source
from flaxformer.training.cost import run_cost
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.loop import TrainedSteps, chunk_steps
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState

T = TypeVar("T")


class Program:
    """The compiled run of a group on one device group, for a fixed number of runs trained together.

    Args:
      group: the trials.
      device_group: where they are trained.
      execution: the chunks, the layout, and whether diagnostics are recorded.
      stack_size: number of runs trained together.
    """

    def __init__(
        self, group: ProgramGroup, device_group: DeviceGroup, execution: Execution, stack_size: int = 1
    ) -> None:
        began, interval = time.perf_counter(), group.example.training.interval
        self.group, self.device_group, self.stack_size = group, device_group, stack_size
        self.output = execution.output
        self.chunk = chunk_steps(execution.chunk_steps, interval)
        self.compiled = compiled_run(
            group.example,
            device_group,
            execution.layout,
            stack_size=stack_size,
            measure=group.measure,
            diagnose=_diagnose_next if execution.diagnostics else None,
        )
        first = group.trials[:1]
        self.compiled.compile(self.stack(first), self.chunk, self._initial_weights(first))
        source = self.compiled.source if device_group.mesh is None else None
        self.cost = run_cost(group.example, group.steps, source)
        self.compile_seconds = time.perf_counter() - began
        self._errors: dict[str, Array] = {}
        """The standard errors of the latest evaluation, by name."""

    @property
    def bytes(self) -> int:
        """Memory that the program needs on a device; 0 if unknown."""
        return self.compiled.bytes

    def stack(self, trials: Sequence[Trial]) -> Run:
        """The runs as one config of stacked leaves; a short batch repeats its last run."""
        runs = self._fill([trial.run.without_init for trial in trials])
        return self.device_group.device_put(jax.tree.map(lambda *leaves: jnp.asarray(leaves, type(leaves[0])), *runs))

    def _initial_weights(self, trials: Sequence[Trial]) -> InitialWeights | None:
        """The stacked weights that the runs start from; None if they draw all weights."""
        if self.group.example.init is None:
            return None
        declared = self.group.initial_weights
        weights = self._fill([initial_weights.read(trial.run, declared.get(trial.name)) for trial in trials])
        return self.device_group.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *weights))

    def _fill(self, batch: list[T]) -> list[T]:
        """The items of a batch, with the last repeated in a short one."""
        return batch + batch[-1:] * (self.stack_size - len(batch))

    def train(
        self,
        trials: Sequence[Trial],
        stops: Callable[[], bool],
        partial_run: PartialRun,
        weights: KeptWeights | None,
        profile: ProfiledSteps | None = None,
    ) -> Generator[Progressed | Profiled | Message, None, list[Row] | None]:
        """Train the trials to their last step, in chunks, from the step that `partial_run` has on disk.

        Return their rows; None if `stops`, which is called after every chunk, has returned True.
        """
        began, steps, runs = time.perf_counter(), self.group.steps, self.stack(trials)
        self._errors = {}
        states = self.compiled.start(runs, self._initial_weights(trials))
        initial = Progress(states, [self.compiled.evaluate(states, runs)], [self.compiled.diagnose(states, runs)], [])
        step, progress = partial_run.resume(initial)
        before = progress.seconds
        if weights is not None:
            interval = self.group.example.training.interval
            is_evaluated = step % interval == 0
            weights.resume(progress.evaluations[:-1] if is_evaluated else progress.evaluations, interval)
            if is_evaluated:
                self._keep(weights, progress, runs, step)
        yield Progressed(self.group.name, len(trials), step, 0, step)
        if stops():
            return None
        where = self.compiled, runs, progress.states, step, steps, self.chunk
        for chunk in train_with_profile(profile, self.output, *where):
            if not isinstance(chunk, TrainedSteps):
                yield chunk
                continue
            self._add(progress, chunk, runs, weights)
            progress.seconds = before + time.perf_counter() - began
            tokens = len(trials) * chunk.steps * self.group.example.tokens_per_step
            yield Progressed(self.group.name, len(trials), chunk.steps, tokens, chunk.step, chunk.seconds)
            if stops():
                partial_run.stop(chunk.step, progress)
                return None
            if chunk.step < steps:
                partial_run.maybe_save(chunk.step, progress)
        if weights is not None:
            weights.wait()
        final = self._final_scores(progress.states, runs)
        jax.block_until_ready((progress.evaluations, progress.diagnostics, final))
        progress.seconds = before + time.perf_counter() - began
        how = self.stack_size, self.chunk, str(self.device_group)
        return finished_rows(self.group, trials, progress, final, *how, self.cost, self.bytes)

    def _evaluate(self, states: TrainState, runs: Run) -> dict[str, Array]:
        """The metrics of an evaluation; the standard errors are kept aside for the last one."""
        metrics, self._errors = self.compiled.evaluate_with_errors(states, runs)
        return metrics

    def _final_scores(self, states: TrainState, runs: Run) -> dict[str, Array]:
        """The scores of the test sets, and the standard errors of the last evaluation over the examples.

        None for runs that a halving ends before their last step.
        """
        if self.group.steps < self.group.example.training.steps:
            return {}
        if not self._errors:  # resumed after the last step
            self._evaluate(states, runs)
        return self._errors | (self.compiled.test(states, runs) if self.group.test else {})

    def _add(self, progress: Progress, chunk: TrainedSteps, runs: Run, weights: KeptWeights | None) -> None:
        """Add a chunk to the progress, and evaluate and keep weights if an evaluation is due."""
        progress.states = chunk.state
        progress.losses.append(chunk.curves["loss"])
        if chunk.step % self.group.example.training.interval == 0:
            progress.evaluations.append(self._evaluate(progress.states, runs))
            progress.diagnostics.append(self.compiled.diagnose(progress.states, runs))
            if weights is not None:
                self._keep(weights, progress, runs, chunk.step)

    def _keep(self, weights: KeptWeights, progress: Progress, runs: Run, step: int) -> None:
        """Keep the weights of the latest evaluation, of those runs that ask for them."""
        params = functools.partial(self.compiled.evaluation_params, progress.states, runs)
        weights.save(step, progress.evaluations[-1], params)


def _diagnose_next(state: TrainState, run: Run, source: Source) -> Diagnostics:
    """The diagnostics of the next step's batch."""
    return diagnose(state, run, source.with_numbers(run.task).batch(run.data_key, state.step))


class MemoryFittedProgram:
    """A group's program on one device group, for as many runs together as fit by the compiler's memory analysis.

    If memory still runs out, in compilation or in training, half as many are trained together from then on.

    Args:
      group: the trials.
      device_group: where they are trained.
      execution: how.
      sharing: number of device groups that share the group.
      notify: called with a sentence each time that fewer runs are tried.
      keep: the weights to keep; None for none.
    """

    def __init__(
        self,
        group: ProgramGroup,
        device_group: DeviceGroup,
        execution: Execution,
        sharing: int,
        notify: Callable[[str], None],
        keep: Keep | None = None,
    ) -> None:
        self.group, self.device_group, self.execution = group, device_group, execution
        self.notify, self.keep = notify, keep
        self._code = functools.cache(lambda: code_by_arm(_arms(group), group.measure, group.file))
        self.compile_seconds = 0.0
        self.program: Program | None = None
        self._compile(execution.runs_together(group.size, sharing))

    def train(
        self, trials: Sequence[Trial], stops: Callable[[], bool], profile: ProfiledSteps | None = None
    ) -> Iterator[Progressed | Profiled | Message | Finished]:
        """Train trials, and yield their progress and rows; a trial that an exception ended has a failed row.

        After an exception in a batch of several trials, each of them is trained by itself, in a stack of the same size,
        so that the failure of a trial is not that of others.

        Args:
          stops: called after every chunk; trials that are in progress when it returns True have no row.
          profile: steps of the first batch that are traced.

        Raises:
          Exception: a smaller program does not compile; trials that were not yielded have no row.
        """
        left, alone = list(trials), 0
        """Trials without a row; the number of them, from the first on, that are trained by themselves."""
        while left and self.program is not None:
            stack_size, cause = self.program.stack_size, ""
            batch, execution = left[: 1 if alone else stack_size], self.execution
            partial_run = PartialRun(
                execution.output, self.group, batch, stack_size, execution.save_minutes, self.notify, self._code
            )
            try:
                weights = self._weights_of(batch)
                rows = yield from self.program.train(batch, stops, partial_run, weights, profile)
            except Exception as error:
                if stack_size > 1 and is_out_of_memory(error):
                    cause = error_line(error)
                elif len(batch) > 1:
                    alone = len(batch)
                    self.notify(f"{self.group.name}: {error_line(error)}; its {alone} runs are trained one by one")
                    continue
                else:
                    rows = [failed_row(self.group, trial, error) for trial in batch]
            if cause:  # outside `except`, since the exception holds the arrays of the program that ran out of memory
                self.program = None
                self._compile(self._fewer(stack_size // 2, cause))
                continue
            if rows is None:
                return
            left, alone, profile = left[len(batch) :], max(0, alone - 1), None
            yield from (Finished(self.group.name, row) for row in rows)
            partial_run.remove()

    def _weights_of(self, batch: Sequence[Trial]) -> KeptWeights | None:
        """The kept weights of runs; None if none are to be kept."""
        root = self.execution.output
        if self.keep is None or root is None:
            return None
        return KeptWeights(root, batch, self.keep, self.group.steps, self.notify, self._code())

    def _compile(self, stack_size: int) -> None:
        """Compile for this number of runs together, or for as many as fit."""
        while self.program is None:
            cause, fewer = "", stack_size // 2
            try:
                self.program = Program(self.group, self.device_group, self.execution, stack_size)
            except Exception as error:
                if stack_size == 1 or not is_out_of_memory(error):
                    raise
                cause = error_line(error)
            if self.program is not None:
                self.compile_seconds += self.program.compile_seconds
                need, memory = self.program.bytes, self.device_group.memory
                if stack_size > 1 and self.execution.group_size is None and need > memory:
                    fewer = min(fewer, max(1, int(memory / need * stack_size)))
                    cause = f"{stack_size} need {need / 1e9:,.1f} GB of {memory / 1e9:,.1f}"
                    self.program = None
            if cause:
                stack_size = self._fewer(fewer, cause)

    def _fewer(self, stack_size: int, cause: str) -> int:
        """The next number of runs to try: the greatest power of two up to `stack_size`."""
        stack_size = 1 << (stack_size.bit_length() - 1)
        self.notify(
            f"{self.group.name}: out of memory ({cause}); {stack_size} runs at a time on {self.device_group} from here"
        )
        return stack_size


def _arms(group: ProgramGroup) -> list[Arm]:
    """The arms of a group's trials, each once."""
    return list({trial.arm.name: trial.arm for trial in group.trials}.values())
