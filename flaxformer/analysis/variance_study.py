"""Studies of the variance between seeds: an arm per source of randomness, which varies it alone; the noise floor."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from flaxformer.analysis.noise import CHANGED, SOURCES, TOGETHER
from flaxformer.core.overrides import override
from flaxformer.core.paths import get_at
from flaxformer.study.declare import Study
from flaxformer.study.search import Points
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.training.run import Run

AXIS = "varied"
RATE = "optimizer.learning_rate"
FACTOR = 1.1


def variance_of_seeds(
    run: Run,
    seeds: int | Sequence[int] = 8,
    *,
    sources: Sequence[str] | None = None,
    name: str = "variance_of_seeds",
    metric: str = "validation_loss",
) -> Study:
    """Return the study of how much of the variance between seeds is due to each source of randomness.

    One arm varies initialisation, data order and dropout together, as the seeds of an ordinary study do. Every other
    arm varies one source and keeps the others at `run.seed`. The report has the standard deviation of the metric in
    each arm: sd(L | others fixed) over the seeds, in the unit of the metric.

    >>> study = variance_of_seeds(run, seeds=8)

    Args:
      run: the run; its seed is that of the sources that are fixed.
      seeds: the seeds, or their number.
      sources: fields of `Seeds` to vary alone, of "init", "data" and "dropout"; by default all three, without dropout
        for a model that has none.
      name: name of the study.
      metric: metric of the study.

    Raises:
      UserError: an unknown source, a run with `seeds` of its own, or fewer than two seeds.
    """
    chosen = _default_sources(run) if sources is None else tuple(sources)
    for source in chosen:
        if source not in SOURCES:
            raise UserError(f"sources has '{source}'{did_you_mean(source, list(SOURCES))}")
    preset = {field: value for field in SOURCES if (value := getattr(run.seeds, field)) is not None}
    if preset:
        raise UserError(f"run.seeds are {preset}; expected None, since the study sets them")
    seeds = range(seeds) if isinstance(seeds, int) else tuple(seeds)
    if len(seeds) < 2:
        raise UserError(f"seeds are {list(seeds)}; expected at least 2, to estimate a standard deviation")
    fixed: Mapping[str, Mapping[str, object]] = {
        SOURCES[source]: {f"seeds.{field}": None if field == source else run.seed for field in SOURCES}
        for source in chosen
    }
    condition = "the others are fixed at one draw each, so that a share holds for that draw"
    return Study(
        name=name,
        question="How much of the variance between seeds is due to initialisation, data order and dropout?",
        baseline=run,
        axes=[Points(AXIS, {TOGETHER: {f"seeds.{field}": None for field in SOURCES}, **fixed})],
        seeds=seeds,
        metric=metric,
        caveats=[f"Where one source varies, {condition}; shares need not add up to 100 %, since sources interact."],
    )


def _default_sources(run: Run) -> tuple[str, ...]:
    stacks = [stack for stack in (run.model, run.model.encoder) if stack is not None]
    has_dropout = any(stack.dropout is not None for stack in stacks)
    return tuple(field for field in SOURCES if field != "dropout" or has_dropout)


def small_change(run: Run, text: str | None = None) -> str:
    """Return the small change as an override: the one that is asked for, or a learning rate that is 10 % higher.

    Raises:
      UserError: the optimizer has no learning rate to raise.
    """
    if text is not None:
        return text
    try:
        rate = get_at(run, RATE)
    except UserError:
        rate = None
    if not isinstance(rate, float | int):
        raise UserError(f"{type(run.optimizer).__name__} has no number {RATE}; expected --change PATH=VALUE")
    return f"{RATE}={float(rate) * FACTOR:.6g}"


def noise_study(run: Run, change: str, seeds: int | Sequence[int], name: str, measured: Mapping[str, Any]) -> Study:
    """Return the study of the noise floor.

    Args:
      run: the run.
      change: the small change, as an override.
      seeds: seeds, or their number.
      name: name of the study.
      measured: fields of the study that say what is measured: metric, measure and others.
    """
    study = variance_of_seeds(run, seeds, name=name)
    [axis] = study.axes
    path = change.partition("=")[0]
    levels = {label: axis.changes(label) for label in axis.levels}
    levels[CHANGED] = levels[TOGETHER] | {path: get_at(override(run, [change]), path)}
    question = "How large is the effect that seeds can show, and where does the spread between seeds come from?"
    return dataclasses.replace(study, **{"question": question, "axes": [Points(AXIS, levels)], **measured})
