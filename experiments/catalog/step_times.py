"""How long does a training step of each arm take, beside a step of the baseline in the same process?

Each arm has ROUNDS rounds: a window of steps of the baseline, then one of the arm, on one device. The result is the
ratio of their times per step: the median of the rounds, the smallest and the largest. Studies compare arms at equal
compute; with these ratios, page.py gives the speed-up in time too.

Command: python experiments/catalog/step_times.py --task text --form small
    writes results/TASK-FORM-times.parquet, with the machine; arms that are there are kept, --again measures them again.
Cost: about a quarter of an hour for all arms of the small form on 2 quiet CPU cores, most of it compilation.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import polars as pl
from effects import BASELINE, FORMS, TASKS, arms_of, baseline_run, families, form_of

from flaxformer import Run, replace_at
from flaxformer.bench.machine import accelerators, processor
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup

RESULTS = Path(__file__).parent / "results"
ROUNDS = 7
STEPS = 2
"""Steps per call."""
WINDOW = 0.3
"""Seconds of a window, about."""


def trainer(run: Run) -> Callable[[], Any]:
    """Return a function that trains `STEPS` steps at each call."""
    compiled = CompiledRun(run, DeviceGroup.of(None))
    source, _ = next(compiled.chunks(run, 0, STEPS, STEPS))
    state = compiled.start(run)

    def call() -> Any:
        nonlocal state
        state, metrics = compiled.advance(state, run, STEPS, source)
        return metrics

    return call


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Return the seconds per call of a window, whose calls are not waited for one by one."""
    began = time.perf_counter()
    for _ in range(calls):
        last = call()
    jax.block_until_ready(last)
    return (time.perf_counter() - began) / calls


def calls_per_window(call: Callable[[], Any]) -> int:
    """Return the number of calls that take about `WINDOW`, after two that compile and warm up."""
    seconds(call, 2)
    return max(1, round(WINDOW / seconds(call, 2)))


def ratios(task: str, form_name: str, family: str, measured: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield a row per arm of a family that is not measured yet."""
    form = form_of(task, form_name)
    reference_run = baseline_run(task, form)
    reference = trainer(reference_run)
    reference_calls = calls_per_window(reference)
    for label, changes in arms_of(task, form, family).items():
        if label == BASELINE or label in measured:
            continue
        call = trainer(replace_at(reference_run, changes))
        calls = calls_per_window(call)
        rounds = [(seconds(reference, reference_calls), seconds(call, calls)) for _ in range(ROUNDS)]
        values = [arm / baseline for baseline, arm in rounds]
        median = statistics.median(values)
        print(f"{family}, {label}: {median:.2f} [{min(values):.2f}, {max(values):.2f}]", flush=True)
        yield {
            "family": family,
            "arm": label,
            "step_time": median,
            "smallest": min(values),
            "largest": max(values),
            "baseline_seconds": statistics.median(baseline for baseline, _ in rounds) / STEPS,
            "machine": ", ".join(accelerators()) or processor(),
        }


def main(arguments: Sequence[str]) -> None:
    """Measure the arms of a task and a form, family by family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=TASKS, default="text")
    parser.add_argument("--form", choices=FORMS, default="small")
    parser.add_argument("--again", action="store_true", help="measure arms again that the file has")
    options = parser.parse_args(arguments)
    file = RESULTS / f"{options.task}-{options.form}-times.parquet"
    table = pl.read_parquet(file) if file.exists() and not options.again else None
    for family in families(options.task, form_of(options.task, options.form)):
        rows = list(ratios(options.task, options.form, family, [] if table is None else table["arm"].to_list()))
        if rows:
            table = pl.DataFrame(rows) if table is None else pl.concat([table, pl.DataFrame(rows)])
            table.write_parquet(file)


if __name__ == "__main__":
    main(sys.argv[1:])
