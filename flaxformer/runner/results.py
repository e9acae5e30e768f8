"""Rows of results, from the progress of runs that were trained together, or from the exception that ended one."""

import dataclasses
import operator
import traceback
from collections.abc import Mapping, Sequence

import jax
from jaxtyping import Array

from flaxformer.diagnostics import Diagnostics, summary
from flaxformer.runner.partial_runs import Progress
from flaxformer.store.rows import DIAGNOSTICS, Row
from flaxformer.study.arm import Trial
from flaxformer.study.divergence import is_diverged
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.user_code.source import place_of
from flaxformer.training.cost import RunCost
from flaxformer.training.step import ALIVE

TRACEBACK = "Traceback (most recent call last):"


def finished_rows(
    group: ProgramGroup,
    trials: Sequence[Trial],
    progress: Progress,
    final: Mapping[str, Array],
    stack_size: int,
    chunk_steps: int,
    device: str,
    cost: RunCost,
    memory_bytes: int,
) -> list[Row]:
    """The rows of trials whose progress is complete; `final` has the metrics that are computed at the end only."""
    evaluations, diagnostics, diverged_at, final = jax.device_get(
        (progress.evaluations, progress.diagnostics, progress.states.diverged_at, final)
    )
    steps = group.steps
    rows = [
        Row(
            trial=trial.name,
            group=group.name,
            seed=trial.seed,
            status="done",
            diverged_at=None if diverged_at[i] == ALIVE else int(diverged_at[i]),
            evaluated_at=list(range(0, steps + 1, trial.run.training.interval)),
            seconds=progress.seconds,
            tokens_per_second=trial.run.tokens_per_step * steps * stack_size / progress.seconds,
            group_size=stack_size,
            chunk_steps=chunk_steps,
            device=device,
            parameters=cost.parameters.total,
            active_parameters=cost.parameters.active,
            parameters_without_embeddings=cost.parameters.without_embeddings,
            flops_per_step=float(cost.flops_per_step),
            flops=float(cost.flops),
            training_tokens=cost.tokens,
            memory_bytes=memory_bytes or None,
            labels=trial.arm.labels,
            metrics=_metrics(evaluations, final, i),
            curves=_curves([_at(evaluation, i) for evaluation in evaluations])
            | {"train_loss": [float(loss) for chunk in progress.losses for loss in chunk[i]]}
            | _diagnostics_curves(diagnostics, i),
        )
        for i, trial in enumerate(trials)
    ]
    return [dataclasses.replace(row, status="diverged") if is_diverged(row) else row for row in rows]


def _metrics(evaluations: Sequence[Mapping[str, Array]], final: Mapping[str, Array], i: int) -> dict[str, float]:
    """The metrics of one run at its end, and those before training."""
    initial = {f"initial_{name}": x for name, x in _at(evaluations[0], i).items()}
    return _at(evaluations[-1], i) | _at(final, i) | initial


def _at(metrics: Mapping[str, Array], i: int) -> dict[str, float]:
    """The metrics of one run of a stack."""
    return {name: float(value[i]) for name, value in metrics.items()}


def _curves(evaluations: Sequence[Mapping[str, float]], prefix: str = "") -> dict[str, list[float]]:
    names = evaluations[0] if evaluations else ()
    return {f"{prefix}{name}": [evaluation[name] for evaluation in evaluations] for name in names}


def _diagnostics_curves(diagnostics: Sequence[Diagnostics | None], i: int) -> dict[str, list[float]]:
    summaries = [
        summary(jax.tree.map(operator.itemgetter(i), stacked)) for stacked in diagnostics if stacked is not None
    ]
    return _curves([{name: float(value) for name, value in numbers.items()} for numbers in summaries], DIAGNOSTICS)


def failed_row(group: ProgramGroup, trial: Trial, error: BaseException) -> Row:
    """The row of a trial that an exception ended."""
    cause, place = error_line(error), place_of(error)
    if place:
        cause = f"{cause} ({place})"
    if is_out_of_memory(error):
        cause = f"out of memory with one run at a time ({cause})"
    return Row(
        trial=trial.name,
        group=group.name,
        seed=trial.seed,
        status="failed",
        cause=cause,
        error="".join(traceback.format_exception(error)),
        labels=trial.arm.labels,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """True if a device or the machine has less memory than was asked for; on a CPU, JAX calls it an internal error."""
    texts = ("RESOURCE_EXHAUSTED", "Out of memory")
    is_device_error = isinstance(error, jax.errors.JaxRuntimeError) and any(text in str(error) for text in texts)
    return is_device_error or isinstance(error, MemoryError)


def error_line(error: BaseException) -> str:
    """An exception in one line; of one with the traceback of a callback from a device in its text, the callback's."""
    text = f"{type(error).__name__}: {error}"
    of_callback = [line for line in text.rpartition(TRACEBACK)[2].splitlines() if line and not line[0].isspace()]
    return of_callback[0] if TRACEBACK in text and of_callback else text.partition("\n")[0]
