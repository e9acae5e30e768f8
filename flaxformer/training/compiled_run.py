"""Compiled functions of a run: the driver of training in studies and in jobs.

A `CompiledRun` places the data on a device or a mesh and compiles, each at its first call,

| function | from | to |
| --- | --- | --- |
| start | run, initial weights | state before the first step |
| advance | state, run, data | state some steps later, and the metrics of each step |
| evaluate | state, run | metrics of the evaluation set |
| test | state, run | metrics of the test set, by the program of `evaluate` |
| diagnose | state, run | diagnostics of the next step |
| evaluation_params | state, run | the weights to evaluate and to sample from |

for one run, or for a stack of runs of one tree structure, whose states and results then have a leading axis. The runs
of a stack are computed together by `vmap`; a stack of one gives, bit for bit, what the run gives alone.
"""

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Literal

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from flaxformer.model.layout import Layout
from flaxformer.model.weights import Transformer
from flaxformer.sharding import replicated, replicated_axes, shardings_of
from flaxformer.tasks.base import Batch, Source
from flaxformer.tasks.host import HostSource, prefetch
from flaxformer.training.compiling import compile_once
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.evaluation import LOSS_ERROR, score
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.memory import check_compiled
from flaxformer.training.offload import check_offload, host_shardings
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, evaluation_params, start, train_chunk

LOG = logging.getLogger(__name__)
_Metrics = dict[str, Array]
_Measure = Callable[[Transformer, Run], Mapping[str, Array]]
_Diagnose = Callable[[TrainState, Run, Source], PyTree]


class RunFunctions:
    """Functions of a run and its data, or mapped over stacked runs, as `CompiledRun` compiles them.

    JAX caches traces by a function's identity: device groups that share this object trace each function once.

    Args:
      stack_size: number of stacked runs; None for one run without a stack axis.
      layout: of the weights.
      measure: further metrics of an evaluation.
      diagnose: diagnostics of the next step.
    """

    def __init__(
        self, stack_size: int | None, layout: Layout, measure: _Measure | None, diagnose: _Diagnose | None
    ) -> None:
        def begin(run: Run, initial: InitialWeights | None, source: Source) -> TrainState:
            return start(run, layout, initial)

        def evaluated(state: TrainState, run: Run, batches: Batch) -> tuple[_Metrics, _Metrics]:
            params = evaluation_params(state, run)
            return score(params, run, batches), dict(measure(params, run) if measure else {})

        def weights(state: TrainState, run: Run, source: Source) -> Transformer:
            return evaluation_params(state, run)

        over_stack = functools.partial(_over_stack, stack_size)
        self.start, self.evaluate, self.evaluation_params = map(over_stack, (begin, evaluated, weights))
        self.diagnose = diagnose and over_stack(diagnose)
        self.tracing = threading.Lock()
        """Held while a function is traced and lowered; the next thread then finds the trace in JAX's cache."""
        self._over_stack = over_stack
        self._advance: dict[int, Callable[..., tuple[TrainState, _Metrics]]] = {}

    def advance(self, steps: int) -> Callable[..., tuple[TrainState, _Metrics]]:
        """The function that trains `steps` steps; the same object for equal `steps`."""
        function = self._over_stack(lambda state, run, source: train_chunk(state, run, source, steps))
        return self._advance.setdefault(steps, function)


def _over_stack(stack_size: int | None, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function(*arguments, data)`, mapped over the leading axis of the arguments if there is a stack."""
    if stack_size is None:
        return function

    def mapped(*arguments: PyTree) -> PyTree:
        *stacked, source = arguments
        batch_size = None if stack_size == 1 else stack_size
        return jax.lax.map(lambda own: function(*own, source), tuple(stacked), batch_size=batch_size)

    return mapped


_SHARED: weakref.WeakValueDictionary[Hashable, RunFunctions] = weakref.WeakValueDictionary()
_SHARING = threading.Lock()


def functions_of(
    run: Run,
    stack_size: int | None,
    layout: Layout,
    measure: _Measure | None = None,
    diagnose: _Diagnose | None = None,
) -> RunFunctions:
    """The functions of runs of this tree structure; one object for equal arguments, for as long as any caller holds it.

    JAX drops what it has traced of them with the last holder.
    """
    with _SHARING:
        key = (jax.tree.structure(run), stack_size, layout, measure, diagnose)
        found = _SHARED.get(key) or RunFunctions(stack_size, layout, measure, diagnose)
        _SHARED[key] = found
        return found


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
        measure: _Measure | None = None,
        diagnose: _Diagnose | None = None,
    ) -> None:
        check_offload(run, device_group.devices, is_stacked=stack_size is not None)
        self.device_group, self.stack_size = device_group, stack_size
        self.source = device_group.put_source(run.task.load())
        self.programs: dict[str, jax.stages.Compiled] = {}
        """The compiled functions so far, by name."""
        self.bytes = 0
        """Memory that the largest of them needs on a device; 0 where the compiler does not tell."""
        self._evaluation: dict[str, Batch | None] = {}
        self._functions = functions_of(run, stack_size, layout, measure, diagnose)
        self._state = self._replicated = None
        if device_group.mesh is not None:
            state = jax.eval_shape(functools.partial(start, layout=layout), run)
            self._state = _state_shardings(run, state, device_group.mesh, is_stacked=stack_size is not None)
            self._replicated = replicated(device_group.mesh)
            for line in replicated_axes(state.params, device_group.mesh):
                LOG.info("replicated on the mesh: %s", line)

    def compile(self, run: Run, steps: int, initial: InitialWeights | None = None) -> None:
        """Compile what a training calls, before its first call; `advance` for this number of steps."""
        state = self.start(run, initial)
        self._advance(state, run, self.source, steps)
        self._evaluate(state, run)
        if self._functions.diagnose is not None:
            self._diagnose(state, run)

    def start(self, run: Run, initial: InitialWeights | None = None) -> TrainState:
        """The state before the first step; the first call decides whether there are weights to start from."""
        arguments = (run, initial, self.source)
        return self._compile("start", self._functions.start, self._state, arguments)(*arguments)

    def advance(
        self, state: TrainState, run: Run, steps: int, source: Source | None = None
    ) -> tuple[TrainState, _Metrics]:
        """The state some steps later, and the metrics of each step; the former state is donated.

        Args:
          source: a chunk of `chunks`; by default, all data.
        """
        source = self.source if source is None else source
        return self._advance(state, run, source, steps)(state, run, source)

    def evaluate(self, state: TrainState, run: Run, with_error: bool = False) -> _Metrics:
        """The metrics of the evaluation set.

        Args:
          with_error: True to return validation_loss_se too, the standard error over the examples (`evaluation.score`).
        """
        scores, measured = self._evaluate(state, run)(state, run, self._batches("evaluation"))
        kept = {name: value for name, value in scores.items() if with_error or name != LOSS_ERROR}
        return {f"validation_{name}": value for name, value in kept.items()} | measured

    def test(self, state: TrainState, run: Run) -> _Metrics:
        """The metrics of the test set: test_loss, test_loss_se, and test_accuracy where there is one; none without it.

        They are for the end of training: choices by them would make them optimistic.
        """
        batches = self._batches("test")
        if batches is None:
            return {}
        scores, _ = self._evaluate(state, run, batches)(state, run, batches)
        return {f"test_{name}": value for name, value in scores.items()}

    def _batches(self, part: Literal["evaluation", "test"]) -> Batch | None:
        """The batches of a part of the data, on the devices."""
        if part not in self._evaluation:
            with self.device_group.mesh_context():
                self._evaluation[part] = jax.jit(lambda source: getattr(source, part)())(self.source)
        return self._evaluation[part]

    def diagnose(self, state: TrainState, run: Run) -> PyTree:
        """The diagnostics of the next step; None if the driver was given no such function."""
        return None if self._functions.diagnose is None else self._diagnose(state, run)(state, run, self.source)

    def evaluation_params(self, state: TrainState, run: Run) -> Transformer:
        """The weights to evaluate and to sample from, whole on a device of this process."""
        arguments = (state, run, self.source)
        params = self._compile("evaluation_params", self._functions.evaluation_params, self._replicated, arguments)(
            *arguments
        )
        return params if self._replicated is None else jax.tree.map(lambda leaf: leaf.addressable_data(0), params)

    def chunks(self, run: Run, first: int, last: int, steps: int) -> Iterator[tuple[Source, int]]:
        """Yield the data from step `first` to `last` in chunks of at most `steps`, each with its number of steps.

        Data that stay on the host are gathered one chunk ahead, while the device works on the one before.
        """
        if not isinstance(self.source, HostSource):
            yield from ((self.source, min(steps, last - at)) for at in range(first, last, steps))
            return
        for chunk, count in prefetch(self.source, run.data_key, first, last, steps, self.device_group.put_batches):
            yield self.device_group.shard_batches(chunk), count

    def _advance(self, state: TrainState, run: Run, source: Source, steps: int) -> jax.stages.Compiled:
        shardings = None if self._state is None else (self._state, self._replicated)
        function = self._functions.advance(steps)
        return self._compile(f"advance {steps}", function, shardings, (state, run, source), donate=0)

    def _evaluate(self, state: TrainState, run: Run, batches: Batch | None = None) -> jax.stages.Compiled:
        """The program of an evaluation; the test set has one of its own if its shapes are others."""
        own = self._batches("evaluation")
        is_alike = batches is None or _shapes(batches) == _shapes(own)
        arguments = (state, run, own if is_alike else batches)
        return self._compile("evaluate" if is_alike else "test", self._functions.evaluate, self._replicated, arguments)

    def _diagnose(self, state: TrainState, run: Run) -> jax.stages.Compiled:
        function = self._functions.diagnose
        assert function is not None
        return self._compile("diagnose", function, self._replicated, (state, run, self.source))

    def _compile(
        self,
        name: str,
        function: Callable[..., PyTree],
        shardings: PyTree,
        arguments: tuple[PyTree, ...],
        donate: int | None = None,
    ) -> jax.stages.Compiled:
        """The compiled function of this name; compiled for such arguments if it is not yet."""
        if name not in self.programs:
            with self.device_group.mesh_context():
                with self._functions.tracing:
                    lowered = jax.jit(function, out_shardings=shardings, donate_argnums=donate).lower(*arguments)
                platform = self.device_group.devices[0].platform
                compiled = compile_once(lowered, platform) if name == "start" else lowered.compile()
            if (own := compiled.memory_analysis()) is not None:
                used = own.argument_size_in_bytes + own.output_size_in_bytes + own.temp_size_in_bytes
                self.bytes = max(self.bytes, used - own.alias_size_in_bytes)
                check_compiled(used - own.alias_size_in_bytes, name)
            self.programs[name] = compiled
        return self.programs[name]


def _shapes(batches: Batch | None) -> PyTree:
    """Structure, shapes and shardings of batches, on which a compiled program depends."""
    return jax.tree.structure(batches), [(x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(batches)]


def _state_shardings(run: Run, state: TrainState, mesh: Mesh, is_stacked: bool) -> PyTree[NamedSharding]:
    """The shardings of a state on a mesh; the axis of a stack is not sharded."""
    alone = shardings_of(state, mesh)
    alone = alone.replace(optimizer=host_shardings(run, alone.optimizer, state.optimizer))
    if not is_stacked:
        return alone
    return jax.tree.map(lambda own: NamedSharding(mesh, PartitionSpec(None, *own.spec)), alone)
