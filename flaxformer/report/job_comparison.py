"""Two training jobs side by side: scores, cost, configs, and the loss at equal steps, tokens and FLOPs."""

import math
from collections.abc import Iterator

import numpy as np

from flaxformer.report.job import METRIC, JobResults
from flaxformer.report.numbers import number
from flaxformer.report.table import Table
from flaxformer.store.job_log import LogLine
from flaxformer.system.json_differences import differences
from flaxformer.system.wording import duration, with_prefix

MOST_POINTS = 5
"""Largest number of points at which two curves are compared."""
PER_STEP = {"steps": "", "tokens": "tokens_per_step", "FLOPs": "flops_per_step"}
"""Field of a launch that turns steps into each measure of cost."""
NO_VERDICT = "No verdict: each job is a single seed, so a difference has no interval; a study of several seeds has one."


def config_differences(a: JobResults, b: JobResults) -> list[str]:
    """Return what differs in the configs, as "path: A -> B"."""
    return differences(a.run, b.run)


def remarks(a: JobResults, b: JobResults) -> Iterator[str]:
    """Yield sentences on what the comparison does not say."""
    if a.run.get("task") != b.run.get("task") or a.run.get("evaluations") != b.run.get("evaluations"):
        yield "The tasks differ, so the losses may be of different data."
    yield NO_VERDICT


def scores_table(a: JobResults, b: JobResults) -> Table:
    """Scores and cost of both jobs, and B − A of the scores."""
    rows = []
    for name, lines in (("last", [_last(job, "evaluation") for job in (a, b)]), ("best", [a.best or {}, b.best or {}])):
        losses = [_value(line, METRIC) for line in lines]
        steps = [f" (step {line['step']:,})" if line else "" for line in lines]
        shown = [f"{_shown(loss)}{step}" for loss, step in zip(losses, steps, strict=True)]
        rows.append([f"{name} {METRIC.replace('_', ' ')}", *shown, _difference(*losses)])
    tests = [_last(job, "test") for job in (a, b)]
    for name in dict.fromkeys(name for line in tests for name in line if name.startswith("test_")):
        if not name.endswith("_se"):
            values = [_value(line, name) for line in tests]
            rows.append([name.replace("_", " "), *map(_shown, values), _difference(*values)])
    rows += [[name, cell, other, ""] for (name, cell), (_, other) in zip(_cost(a), _cost(b), strict=True)]
    return Table("", ["", "A", "B", "B − A"], rows, 1)


def _last(job: JobResults, kind: str) -> LogLine:
    """Return the last line of a kind; an empty one without any."""
    return next(iter(job.of(kind)[-1:]), {})


def _cost(job: JobResults) -> list[tuple[str, str]]:
    launch = _last(job, "launch")
    tokens, flops, weights = (_value(launch, name) for name in ("tokens_per_step", "flops_per_step", "parameters"))
    return [
        ("steps", f"{job.step:,} of {job.steps:,}"),
        ("tokens", f"{job.step * tokens:,.0f}" if math.isfinite(tokens) else "–"),
        ("FLOPs of products", with_prefix(job.step * flops, "FLOP") if math.isfinite(flops) else "–"),
        ("time in steps", duration(job.seconds)),
        ("parameters", f"{weights:,.0f}" if math.isfinite(weights) else "–"),
    ]


def curve_tables(a: JobResults, b: JobResults) -> list[Table]:
    """Return the validation loss of both at equal steps, and at equal tokens and FLOPs where steps differ in them."""
    tables = []
    for measure, field in PER_STEP.items():
        scales = [_scale(job, field) for job in (a, b)]
        is_new = measure == "steps" or scales[0] != scales[1]
        curves = [_curve(job, scale) for job, scale in zip((a, b), scales, strict=True)]
        if is_new and all(map(math.isfinite, scales)) and all(curves):
            tables.append(_curve_table(measure, *curves))
    return [table for table in tables if table.rows]


def _scale(job: JobResults, field: str) -> float:
    return 1.0 if not field else _value(_last(job, "launch"), field)


def _curve(job: JobResults, scale: float) -> dict[float, float]:
    """Finite validation losses by the steps that were taken, times a scale."""
    losses = {line["step"] * scale: _value(line, METRIC) for line in job.of("evaluation")}
    return {x: loss for x, loss in sorted(losses.items()) if math.isfinite(loss)}


def _curve_table(measure: str, a: dict[float, float], b: dict[float, float]) -> Table:
    """The losses at evaluations of A that lie in the range of B; B is interpolated linearly between its evaluations."""
    shared = [x for x in a if x > 0 and min(b) <= x <= max(b)]
    chosen = np.unique(np.linspace(0, len(shared) - 1, MOST_POINTS).round().astype(int)) if shared else ()
    rows = []
    for x in (shared[place] for place in chosen):
        loss_a, loss_b = a[x], float(np.interp(x, [*b], [*b.values()]))
        mark = "" if x in b else " (interpolated)"
        shown = f"{x:,.0f}" if measure != "FLOPs" else with_prefix(x, "FLOP")
        rows.append([shown, number(loss_a), f"{number(loss_b)}{mark}", _difference(loss_a, loss_b)])
    return Table("", [f"at equal {measure}", "loss of A", "loss of B", "B − A"], rows, 0)


def _value(line: LogLine, name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _shown(value: float) -> str:
    return number(value) if math.isfinite(value) else "–"


def _difference(a: float, b: float) -> str:
    return number(b - a, sign="+") if math.isfinite(b - a) else "–"
