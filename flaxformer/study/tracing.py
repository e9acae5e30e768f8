"""Mistakes in user code that tracing finds, before anything is trained."""

import contextlib
import inspect
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from flaxformer.core.canonical import classes_in
from flaxformer.study.declare import Measure, Study
from flaxformer.system.errors import UserError
from flaxformer.system.user_code.source import describe, is_user_class, place_of
from flaxformer.system.wording import printable
from flaxformer.tasks.batch import Source, batch_shapes
from flaxformer.tasks.evaluations import EvaluationData
from flaxformer.training import Run, TrainState, start, train_step
from flaxformer.training.evaluation import score, score_data
from flaxformer.training.flops import flops_per_step
from flaxformer.training.step import evaluation_params

_TRACED: set[object] = set()
"""Structures of runs, with `measure`, that were traced in this process."""


def check_traces(study: Study) -> None:
    """Trace one arm of every program of a study that has user code, without computing it.

    Raises:
      UserError: an exception in user code, with its file, line, function and arm.
    """
    examples = {jax.tree.structure(arm.run): arm for arm in reversed(study.arms())}
    for arm in examples.values():
        trace(arm.run, f"arm '{arm.name}'", study.measure)


def trace(run: Run, who: str, measure: Measure | None = None) -> None:
    """Trace a step and an evaluation of a run that has user code, and `measure`, without computing them.

    Raises:
      UserError: an exception in user code, with its file, line and function; it begins with `who`.
    """
    user_classes, key = [kind for kind in classes_in(run) if is_user_class(kind)], (jax.tree.structure(run), measure)
    if key in _TRACED or not (user_classes or measure):
        return
    with _explain_errors(who, user_classes):
        arrays, source = jax.tree.map(jnp.asarray, run.without_init), run.task.load()
        state = jax.eval_shape(start, arrays)
        flops_per_step(run, source)  # traces a step in float32 and whole batches, and keeps the count
        how = run.training
        if how.precision != "float32" or how.remat != "none" or how.micro_batches not in (None, 1):
            jax.eval_shape(train_step, state, arrays, batch_shapes(source))
        jax.eval_shape(_evaluate, state, arrays, source)
        for evaluation in run.evaluations:
            jax.eval_shape(_score, state, arrays, evaluation.load())
        if measure is not None:
            jax.eval_shape(lambda state, run: measure(evaluation_params(state, run), run), state, arrays)
    _TRACED.add(key)


def _evaluate(state: TrainState, run: Run, source: Source) -> object:
    return score(evaluation_params(state, run), run, source.evaluation())


def _score(state: TrainState, run: Run, data: EvaluationData) -> object:
    return score_data(evaluation_params(state, run), run, data)


@contextlib.contextmanager
def _explain_errors(who: str, user_classes: list[type]) -> Iterator[None]:
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        where = "" if place_of(error) else f"; its own classes: {', '.join(map(_place_of_class, user_classes))}"
        raise UserError(
            f"{who} fails when it is traced, before training: {printable(describe(error))}{where}"
        ) from error


def _place_of_class(kind: type) -> str:
    """A class with the file and line of its definition."""
    try:
        return f"{kind.__name__} ({inspect.getsourcefile(kind)}, line {inspect.getsourcelines(kind)[1]})"
    except (OSError, TypeError):
        return kind.__name__
