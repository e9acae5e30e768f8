"""Functions that a program computes for its members, shared by all groups of devices.

JAX knows what it has traced and lowered by the function's identity. Slots that compile the same functions trace once.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from flaxformer.diagnostics import Diagnostics, diagnose
from flaxformer.model.layout import Layout
from flaxformer.params import fold_in_name
from flaxformer.study.declare import Measure
from flaxformer.tasks.base import Source
from flaxformer.training import evaluate, evaluation_params, start, train_chunk
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState


class Functions:
    """Each takes stacked arguments of `members` members, and a source; one member after another, or mapped by `vmap`.

    Args:
      members: how many at a time.
      layout: of the weights.
      chunk: steps of `advance`.
      measure: what an evaluation gives besides its own numbers, by name.
    """

    def __init__(self, members: int, layout: Layout, chunk: int, measure: Measure | None) -> None:
        def begin(run: Run, source: Source) -> TrainState:
            return start(run, layout)

        def advance(state: TrainState, run: Run, source: Source) -> tuple[TrainState, dict[str, Array]]:
            return train_chunk(state, run, source, chunk)

        def measured(state: TrainState, run: Run, source: Source) -> dict[str, Array]:
            params = evaluation_params(state, run)
            return evaluate(params, run, source) | dict(measure(params, run) if measure else {})

        self.start, self.advance, self.evaluate, self.diagnose = (
            functools.partial(_mapped, function, members) for function in (begin, advance, measured, _diagnose)
        )
        self.tracing = threading.Lock()
        """Held while one of them is traced and lowered; whoever comes next finds it done."""


def _mapped(function: Callable[..., Any], members: int, *arguments: Any) -> Any:
    *stacked, source = arguments
    batch_size = None if members == 1 else members
    return jax.lax.map(lambda member: function(*member, source), tuple(stacked), batch_size=batch_size)


def _diagnose(state: TrainState, run: Run, source: Source) -> Diagnostics:
    return diagnose(state, run, source.batch(fold_in_name(jax.random.key(run.seed), "data"), state.step))


_SHARED: weakref.WeakValueDictionary[Any, Functions] = weakref.WeakValueDictionary()
_SHARING = threading.Lock()


def functions_of(example: Run, members: int, layout: Layout, chunk: int, measure: Measure | None) -> Functions:
    """The functions for runs like an example: the same ones as long as anybody has them, for what JAX keeps of them.

    Runs of another structure get others, so that what was traced for a group is forgotten with its last program.
    """
    how = (members, layout, chunk, measure)
    with _SHARING:
        key = (jax.tree.structure(example), *how)
        found = _SHARED.get(key) or Functions(*how)
        _SHARED[key] = found
        return found
