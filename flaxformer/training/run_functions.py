"""Functions of a run that are compiled together, for one run or for a stack of runs."""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from flaxformer.model.layout import Layout
from flaxformer.model.weights import Transformer
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.evaluations import EvaluationData
from flaxformer.training.evaluation import score_data, score_task
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, evaluation_params, over_stack, start, train_chunk

RunMetrics = dict[str, Array]
MeasureParams = Callable[[Transformer, Run], Mapping[str, Array]]
DiagnoseNext = Callable[[TrainState, Run, Source], PyTree]


class ProgramCall(NamedTuple):
    """A function of a run, by the name of its program, and what it is called with.

    shardings: of the results; None leaves them to the compiler.
    donate: number of the argument whose memory is given away.
    """

    name: str
    function: Callable[..., PyTree]
    arguments: tuple[PyTree, ...]
    shardings: PyTree = None
    donate: int | None = None


class RunFunctions:
    """Functions of a run and its data, or mapped over stacked runs, as `CompiledRun` compiles them.

    JAX caches traces by a function's identity: device groups that share this object trace each function once.

    Args:
      stack_size: number of stacked runs; None for one run alone.
      layout: of the weights.
      measure: further metrics of an evaluation.
      diagnose: diagnostics of the next step.
    """

    def __init__(
        self,
        stack_size: int | None,
        layout: Layout,
        measure: MeasureParams | None,
        diagnose: DiagnoseNext | None,
    ) -> None:
        def begin(run: Run, initial: InitialWeights | None, data: None) -> TrainState:
            return start(run, layout, initial)

        def evaluate_batches(state: TrainState, run: Run, batches: Batch) -> tuple[RunMetrics, RunMetrics]:
            params = evaluation_params(state, run)
            return score_task(params, run, batches), dict(measure(params, run) if measure else {})

        def scored(state: TrainState, run: Run, data: EvaluationData) -> RunMetrics:
            return score_data(evaluation_params(state, run), run, data)

        def weights(state: TrainState, run: Run, data: None) -> Transformer:
            return evaluation_params(state, run)

        self._mapped = functools.partial(over_stack, stack_size)
        self.start, self.evaluate = self._mapped(begin), self._mapped(evaluate_batches)
        self.evaluation_params = self._mapped(weights)
        self.score, self.has_measure = self._mapped(scored), measure is not None
        self.diagnose = diagnose and self._mapped(diagnose)
        self.tracing = threading.Lock()
        """Held while a function is traced and lowered; the next thread then finds the trace in JAX's cache."""
        self._advance: dict[int, Callable[..., tuple[TrainState, RunMetrics]]] = {}

    def advance(self, steps: int) -> Callable[..., tuple[TrainState, RunMetrics]]:
        """The function that trains `steps` steps; the same object for equal `steps`."""
        function = self._mapped(functools.partial(train_chunk, steps=steps))
        return self._advance.setdefault(steps, function)


_SHARED: weakref.WeakValueDictionary[Hashable, RunFunctions] = weakref.WeakValueDictionary()
_SHARING = threading.Lock()


def functions_of(
    run: Run,
    stack_size: int | None,
    layout: Layout,
    measure: MeasureParams | None = None,
    diagnose: DiagnoseNext | None = None,
) -> RunFunctions:
    """The functions of runs of this tree structure; one object for equal arguments, for as long as any caller holds it.

    JAX drops what it has traced of them with the last holder.
    """
    with _SHARING:
        key = (jax.tree.structure(run), stack_size, layout, measure, diagnose)
        functions = _SHARED.get(key) or RunFunctions(stack_size, layout, measure, diagnose)
        _SHARED[key] = functions
        return functions
