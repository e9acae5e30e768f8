"""A benchmark's results as a table in the terminal, and as JSON."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flaxformer.bench.declare import Benchmark
from flaxformer.bench.results import Interval, Measurement, conclusions, lines
from flaxformer.files import write_atomically

UNITS = {"_bytes": 1e6, "flops_per_second": 1e9}
"""By how much a number is divided where it is shown, by how its name ends: MB and GFLOP/s."""


def number(value: float | None, name: str = "") -> str:
    """Three digits or more, in its unit; a dash for none."""
    if value is None or math.isnan(value):
        return "–"
    value /= next((unit for end, unit in UNITS.items() if name.endswith(end)), 1)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ranged(one: Interval | None, name: str = "", digits: int | None = None) -> str:
    """The median, and the least to the largest in brackets."""
    if one is None:
        return "–"
    median, low, high = (
        number(value, name) if digits is None else f"{value:.{digits}f}" for value in (one.median, one.low, one.high)
    )
    return f"{median} ({low}–{high})" if one.rounds > 1 else median


def heading(benchmark: Benchmark) -> str:
    """Return the heading of the compared number."""
    return benchmark.columns.get(benchmark.compared, benchmark.compared.replace("_", " "))


def table(benchmark: Benchmark, measurements: Sequence[Measurement]) -> Table:
    """A row for each way at each point."""
    found = lines(benchmark, measurements)
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    headings = [*benchmark.varied, "way", heading(benchmark)]
    headings += [f"× {benchmark.reference}"] if any(line.ratio for line in found) else []
    headings += [benchmark.limit.words] if benchmark.limit and any(line.share for line in found) else []
    columns = [name for name in benchmark.columns if name != benchmark.compared]
    columns = [name for name in columns if any(name in line.others for line in found)]
    for i, words in enumerate([*headings, *(benchmark.columns[name] for name in columns)]):
        left = i <= len(benchmark.varied)
        shown.add_column(words, justify="left" if left else "right", no_wrap=left, overflow="fold")
    for line in found:
        cells = [*(str(line.point[name]) for name in benchmark.varied), line.way]
        cells.append(ranged(line.compared, benchmark.compared))
        if f"× {benchmark.reference}" in headings:
            cells.append(ranged(line.ratio, digits=2))
        if benchmark.limit and benchmark.limit.words in headings:
            cells.append(ranged(line.share, digits=2))
        cells += [number(line.others.get(name), name) for name in columns]
        if line.errors:
            cells[len(benchmark.varied)] += f" (failed {line.errors} ×)"
        shown.add_row(*map(Text, cells))
    return shown


def keep(
    path: Path, benchmark: Benchmark, measurements: Sequence[Measurement], about: dict[str, Any], left_out: list[str]
) -> None:
    """Write every number that was measured, and what they say, where and how."""
    data = {
        "benchmark": benchmark.name,
        "question": benchmark.question,
        **about,
        "options": {name: list(values) for name, values in benchmark.options.items()},
        "compared": benchmark.compared,
        "reference": benchmark.reference,
        "left_out": left_out,
        "results": [dataclasses.asdict(line) for line in lines(benchmark, measurements)],
        "conclusions": conclusions(benchmark, measurements),
        "measurements": [dataclasses.asdict(one) for one in measurements],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False).encode())
