"""Compiled functions of a run: the driver of training in studies and in jobs.

A `CompiledRun` places the data on a device or a mesh and compiles, each at its first call,

| function | from | to |
| --- | --- | --- |
| start | run, initial weights | state before the first step |
| advance | state, run, data | state some steps later, and the metrics of each step |
| evaluate | state, run | metrics of the evaluation set, and of the named evaluations |
| test | state, run | metrics of the test sets, by the programs of `evaluate` |
| diagnose | state, run | diagnostics of the next step |
| evaluation_params | state, run | the weights to evaluate and to sample from |

for one run, or for a stack of runs of one tree structure, whose states and results then have a leading axis. The runs
of a stack are computed together by `vmap`; a stack of one gives, bit for bit, what the run gives alone.
"""

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
from jax.sharding import SingleDeviceSharding
from jaxtyping import PyTree

from flaxformer.devices.sharding import replicated, replicated_axes
from flaxformer.model.layout import Layout
from flaxformer.model.weights import Transformer
from flaxformer.system.garbage import without_collections
from flaxformer.system.interrupts import interrupted
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.evaluations import EvaluationData, TaskData
from flaxformer.training.compiling import compile_lowered
from flaxformer.training.cpu import wait_every_few_calls
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.evaluation import task_columns, without_errors
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.memory import check_compiled
from flaxformer.training.offload import check_offload, state_shardings
from flaxformer.training.run import Run
from flaxformer.training.run_functions import DiagnoseNext, MeasureParams, ProgramCall, RunMetrics, functions_of
from flaxformer.training.step import TrainState, start
from flaxformer.training.training_data import HeldOutPart, PlacedEvaluations, TrainingData, shapes_of

LOG = logging.getLogger(__name__)


class CompiledRun:
    """Compiled functions of runs of one tree structure on one device group, with their data placed there.

    Each device group compiles its own program. One program for all groups, with the stack distributed over them by a
    sharding or by `shard_map`, would exchange nothing either, but XLA compiles slightly different arithmetic for a part
    of a whole, and the last bits of a run would depend on the number of devices.

    Args:
      run: the run, or any run of a stack.
      device_group: where arrays lie and are computed.
      layout: of the layers.
      stack_size: number of stacked runs; None for one run without a stack axis.
      measure: further metrics of an evaluation.
      diagnose: diagnostics of the next step.
    """

    def __init__(
        self,
        run: Run,
        device_group: DeviceGroup,
        layout: Layout = "auto",
        *,
        stack_size: int | None = None,
        measure: MeasureParams | None = None,
        diagnose: DiagnoseNext | None = None,
    ) -> None:
        check_offload(run, device_group.devices, is_stacked=stack_size is not None)
        self.example, self.device_group, self.stack_size = run, device_group, stack_size
        self.data = TrainingData(run.task, device_group, stack_size)
        self._platform = device_group.devices[0].platform
        self.programs: dict[str, jax.stages.Compiled] = {}
        """The compiled functions so far, by name."""
        self._bytes: dict[str, int] = {}
        self._held_out = PlacedEvaluations(run.evaluations, device_group)
        self._has_parts = bool(run.task.evaluation_parts())
        self._scores: dict[tuple[object, ...], str] = {}
        """Names of the programs of named evaluations, by the shapes of their data."""
        self._functions = functions_of(run, stack_size, layout, measure, diagnose)
        self._background: Future[None] | None = None
        """Compilation of the programs that are not needed for the first step, by a thread."""
        self._state = self._replicated = None
        if device_group.mesh is not None:
            state = jax.eval_shape(functools.partial(start, layout=layout), run)
            self._state = state_shardings(run, state, device_group.mesh, is_stacked=stack_size is not None)
            self._replicated = replicated(device_group.mesh)
            for line in replicated_axes(state.params, device_group.mesh):
                LOG.info("replicated on the mesh: %s", line)

    @property
    def source(self) -> Source:
        """The data of the task; those that stay on the host are not on the devices."""
        return self.data.source

    @property
    def bytes(self) -> int:
        """Memory that the largest program needs on a device; 0 where the compiler does not tell."""
        return max(self._bytes.values(), default=0)

    def compile(
        self, run: Run, steps: int, initial: InitialWeights | None = None, *, evaluations_later: bool = False
    ) -> None:
        """Compile what a training calls, before its first call; `advance` for this number of steps.

        Threads compile them while the next one is traced; one thread for a GPU, on which the compiler measures kernels.

        Args:
          run: the run.
          steps: number of steps per call of `advance`.
          initial: weights to start from.
          evaluations_later: return once `start` and `advance` are compiled. A thread compiles the other programs
            meanwhile, and the first of them that is called waits for it.
        """
        self._wait_for_background()
        if run.training.offload_optimizer:
            state = self.start(run, initial)  # its shapes do not show which arrays lie in the host's memory
            training = []
        else:
            training = [self._start(run, initial)]
            state = self._shapes(training[0])
        training.append(self._advance(state, run, self.data.shapes(run, steps), steps))
        evaluations = self._evaluation_calls(state, run)
        if not evaluations_later:
            self._compile_all(itertools.chain(training, evaluations))
            return
        self._compile_all(training)
        thread = ThreadPoolExecutor(1)
        self._background = thread.submit(self._compile_all, evaluations)
        thread.shutdown(wait=False)

    def compile_advance(self, state: TrainState, run: Run, steps: int) -> None:
        """Compile `advance` for another number of steps."""
        self._compile_all([self._advance(state, run, self.data.shapes(run, steps), steps)])

    def _compile_all(self, calls: Iterable[ProgramCall]) -> None:
        """Compile the programs of calls that are not compiled yet."""
        compiling: dict[str, Future[None]] = {}
        threads = ThreadPoolExecutor(1 if self._platform == "gpu" else None)
        try:
            for call in calls:
                if call.name not in self.programs and call.name not in compiling:
                    compiling[call.name] = threads.submit(self._compile, call, self._lower(call))
            for pending in compiling.values():
                pending.result()
        finally:  # a compilation cannot be interrupted
            threads.shutdown(not interrupted.is_set(), cancel_futures=True)

    def _evaluation_calls(self, state: TrainState, run: Run) -> Iterator[ProgramCall]:
        """Yield the calls of evaluations and diagnostics."""
        yield self._evaluate(state, run, self._batches("evaluation"))
        for data in self._held_out.load_named("evaluation").values():
            if not self._is_like_task(run, data):
                yield self._score(state, run, data)
        if self._functions.diagnose is not None:
            yield self._diagnose(state, run, self.data.shapes(run, 1))

    def _wait_for_background(self) -> None:
        """Wait for the programs that `compile` left to a thread."""
        if self._background is not None:
            background, self._background = self._background, None
            background.result()

    def _shapes(self, call: ProgramCall) -> TrainState:
        """The shapes of the state that a call gives, without calling it, and where its arrays will lie."""
        shapes = jax.eval_shape(call.function, *call.arguments)
        sharding = SingleDeviceSharding(self.device_group.devices[0])
        shardings = jax.tree.map(lambda x: sharding, shapes) if self._state is None else self._state
        return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, shardings)

    def start(self, run: Run, initial: InitialWeights | None = None) -> TrainState:
        """The state before the first step; the first call decides whether there are weights to start from."""
        return self._run(self._start(run, initial))

    def advance(
        self, state: TrainState, run: Run, steps: int, source: Source | None = None
    ) -> tuple[TrainState, RunMetrics]:
        """The state some steps later, and the metrics of each step; the former state is donated.

        Args:
          source: a chunk of `chunks`; by default, all data.
        """
        source = self.source if source is None else source
        return self._run(self._advance(state, run, source, steps))

    def evaluate(self, state: TrainState, run: Run) -> RunMetrics:
        """The metrics of the evaluation set, of the named evaluations, and of `measure`."""
        return self.evaluate_with_errors(state, run)[0]

    def evaluate_with_errors(self, state: TrainState, run: Run) -> tuple[RunMetrics, RunMetrics]:
        """The metrics of `evaluate`; and their standard errors over the examples, such as validation_loss_se."""
        self._wait_for_background()
        scores, measured = self._run(self._evaluate(state, run, self._batches("evaluation")))
        columns = task_columns(scores) | self._score_named(state, run, "evaluation")
        kept = without_errors(columns)
        return kept | measured, {name: value for name, value in columns.items() if name not in kept}

    def test(self, state: TrainState, run: Run) -> RunMetrics:
        """The metrics of the test sets: test_loss, test_loss_se, and test_accuracy where there is one; none without it.

        They are for the end of training: choices by them would make them optimistic.
        """
        self._wait_for_background()
        batches, metrics = self._batches("test"), self._score_named(state, run, "test")
        if batches is None:
            return metrics
        scores, _ = self._run(self._evaluate(state, run, batches))
        return task_columns(scores, is_test=True) | metrics

    def _batches(self, part: HeldOutPart) -> Batch | None:
        """The batches of the task's own evaluation set or test set, on the devices."""
        return self._held_out.batches(self.source, part)

    def _score_named(self, state: TrainState, run: Run, part: HeldOutPart) -> RunMetrics:
        """The metrics of the named evaluations, with standard errors."""
        prefix = "test_" if part == "test" else ""
        metrics: RunMetrics = {}
        for name, data in self._held_out.load_named(part).items():
            if self._is_like_task(run, data):
                scores = self._run(self._evaluate(state, run, data.batches))[0]
            else:
                scores = self._run(self._score(state, run, data))
            metrics |= {f"{prefix}{name}_{metric}": value for metric, value in scores.items()}
        return metrics

    def _is_like_task(self, run: Run, data: EvaluationData) -> bool:
        """True if the program of the task's own evaluation set gives the scores of these data too."""
        if self._has_parts or self._functions.has_measure or type(data) is not TaskData:
            return False  # a subclass may have scores of another kind
        is_alike = shapes_of(data.batches) == shapes_of(self._batches("evaluation"))
        return is_alike and data.bits_per_nat == run.task.bits_per_nat

    def diagnose(self, state: TrainState, run: Run) -> PyTree:
        """The diagnostics of the next step; None if the driver was given no such function."""
        self._wait_for_background()
        if self._functions.diagnose is None:
            return None
        return self._run(self._diagnose(state, run, self.data.at(run, state.step)))

    def evaluation_params(self, state: TrainState, run: Run) -> Transformer:
        """The weights to evaluate and to sample from, whole on a device of this process."""
        function, arguments = self._functions.evaluation_params, (state, run, None)
        params = self._run(ProgramCall("evaluation_params", function, arguments, self._replicated))
        return params if self._replicated is None else jax.tree.map(lambda leaf: leaf.addressable_data(0), params)

    def chunks(self, run: Run, first: int, last: int, steps: int) -> Iterator[tuple[Source, int]]:
        """Yield the data from step `first` to `last` in chunks of at most `steps`, each with its number of steps."""
        return self.data.chunks(run, first, last, steps)

    def _start(self, run: Run, initial: InitialWeights | None) -> ProgramCall:
        return ProgramCall("start", self._functions.start, (run, initial, None), self._state)

    def _advance(self, state: TrainState, run: Run, source: Source, steps: int) -> ProgramCall:
        shardings = None if self._state is None else (self._state, self._replicated)
        return ProgramCall(
            f"advance {steps}", self._functions.advance(steps), (state, run, source), shardings, donate=0
        )

    def _evaluate(self, state: TrainState, run: Run, batches: Batch | None) -> ProgramCall:
        """An evaluation; the program of the test set is another one if its shapes are others."""
        name = "evaluate" if shapes_of(batches) == shapes_of(self._batches("evaluation")) else "test"
        return ProgramCall(name, self._functions.evaluate, (state, run, batches), self._replicated)

    def _score(self, state: TrainState, run: Run, data: EvaluationData) -> ProgramCall:
        """A named evaluation; there is one program per shape of data."""
        name = self._scores.setdefault(shapes_of(data), f"score {len(self._scores)}")
        return ProgramCall(name, self._functions.score, (state, run, data), self._replicated)

    def _diagnose(self, state: TrainState, run: Run, source: Source) -> ProgramCall:
        function = self._functions.diagnose
        assert function is not None
        return ProgramCall("diagnose", function, (state, run, source), self._replicated)

    def _run(self, call: ProgramCall) -> PyTree:
        """Call the program of this name, which is compiled for such arguments if it is not yet."""
        if call.name not in self.programs:
            self._compile(call, self._lower(call))
        return wait_every_few_calls(self.programs[call.name](*call.arguments), self.device_group.mesh)

    def _lower(self, call: ProgramCall) -> jax.stages.Lowered:
        with self.device_group.context(), self._functions.tracing, without_collections():
            function = jax.jit(call.function, out_shardings=call.shardings, donate_argnums=call.donate)
            return function.lower(*call.arguments)

    def _compile(self, call: ProgramCall, lowered: jax.stages.Lowered) -> None:
        with self.device_group.context():
            compiled = compile_lowered(lowered, runs_once=call.name == "start")
        if (memory := compiled.memory_analysis()) is not None:
            used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
            self._bytes[call.name] = used - memory.alias_size_in_bytes
            check_compiled(self._bytes[call.name], call.name)
        self.programs[call.name] = compiled
