"""Results of a benchmark as a table in the terminal and as JSON."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from flaxformer.bench.declare import Benchmark
from flaxformer.bench.results import Interval, Measurement, conclusions, lines
from flaxformer.report.table import Table
from flaxformer.system.files import make_folder, write_atomically

UNITS = {"_bytes": 1e6, "flops_per_second": 1e9}
"""Divisor of a shown number by the end of its name: MB and GFLOP/s."""


def number(value: float | None, name: str = "") -> str:
    """Format a number in its unit with at least three digits; None is a dash."""
    if value is None or math.isnan(value):
        return "–"
    value /= next((unit for end, unit in UNITS.items() if name.endswith(end)), 1)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval_text(interval: Interval | None, name: str = "", digits: int | None = None) -> str:
    """Format a median, with the range in brackets."""
    if interval is None:
        return "–"
    median, low, high = (
        number(value, name) if digits is None else f"{value:.{digits}f}"
        for value in (interval.median, interval.low, interval.high)
    )
    return f"{median} ({low}–{high})" if interval.rounds > 1 else median


def heading(benchmark: Benchmark) -> str:
    """Return the heading of the compared number."""
    return benchmark.columns.get(benchmark.compared, benchmark.compared.replace("_", " "))


def table(benchmark: Benchmark, measurements: Sequence[Measurement]) -> Table:
    """Return a table with one row per way and point."""
    result_lines = lines(benchmark, measurements)
    ratio, limit = f"× {benchmark.reference}", benchmark.limit.words if benchmark.limit else ""
    headings = [*benchmark.varied_options, "way", heading(benchmark)]
    headings += [ratio] if any(line.ratio for line in result_lines) else []
    headings += [limit] if limit and any(line.share for line in result_lines) else []
    columns = [name for name in benchmark.columns if name != benchmark.compared]
    columns = [name for name in columns if any(name in line.numbers for line in result_lines)]
    rows = []
    for line in result_lines:
        failed = f" (failed {line.errors} ×)" if line.errors else " (not measured)" if line.skipped else ""
        cells = [*(str(line.point[name]) for name in benchmark.varied_options), line.way + failed]
        cells.append(interval_text(line.compared, benchmark.compared))
        cells += [interval_text(line.ratio, digits=2)] if ratio in headings else []
        cells += [interval_text(line.share, digits=2)] if limit and limit in headings else []
        rows.append([*cells, *(number(line.numbers.get(name), name) for name in columns)])
    headings += [benchmark.columns[name] for name in columns]
    return Table("", headings, rows, len(benchmark.varied_options) + 1)


def as_data(benchmark: Benchmark, measurements: Sequence[Measurement], left_out: list[str]) -> dict[str, object]:
    """Return all measured numbers and their summary as plain data."""
    return {
        "options": {name: list(values) for name, values in benchmark.options.items()},
        "compared": benchmark.compared,
        "reference": benchmark.reference,
        "left_out": left_out,
        "results": [dataclasses.asdict(line) for line in lines(benchmark, measurements)],
        "conclusions": conclusions(benchmark, measurements),
        "measurements": [dataclasses.asdict(measurement) for measurement in measurements],
    }


def keep(
    path: Path,
    benchmark: Benchmark,
    measurements: Sequence[Measurement],
    about: Mapping[str, object],
    left_out: list[str],
) -> None:
    """Write all measured numbers, their summary and conditions as JSON."""
    head = {"benchmark": benchmark.name, "question": benchmark.question, **about}
    write_json(path, head | as_data(benchmark, measurements, left_out))


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write plain data as JSON."""
    make_folder(path.parent)
    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False).encode())
