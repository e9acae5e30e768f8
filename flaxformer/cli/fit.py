"""The command `flaxformer fit FILE`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console

from flaxformer.cli.arguments import Fit
from flaxformer.cli.terminal import print_json
from flaxformer.report.scaling_text import interval
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.statistics.finite import finite
from flaxformer.statistics.law_losses import DESCRIPTIONS
from flaxformer.statistics.points_fit import PointsFit, fit_joint_law
from flaxformer.statistics.scaling_law import Vector
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.wording import count_of

READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": lambda path: pl.read_csv(path, infer_schema_length=None),
    ".jsonl": lambda path: pl.read_ndjson(path, infer_schema_length=None),
    ".parquet": pl.read_parquet,
}
NAMES = {"parameters": ("parameters", "N"), "tokens": ("tokens", "D"), "losses": ("loss", "L")}
"""Columns that are looked for where none is named."""
FLOPS = 6.0
"""FLOPs of training per parameter and token (Kaplan et al. 2020)."""


def main(arguments: Fit, console: Console) -> int:
    """Print the law of the points of a file."""
    columns = _columns(arguments)
    order = np.argsort(columns["losses"], kind="stable")
    if not len(order):
        raise UserError(f"'{arguments.file}' has no rows; expected one per trained model")
    if not 0 <= arguments.leave_out < len(order):
        raise UserError(f"--leave-out is {arguments.leave_out}; expected a number of points, of {len(order)}")
    used = np.sort(order[: len(order) - arguments.leave_out])
    points = {name: values[used] for name, values in columns.items()}
    fit = fit_joint_law(
        points["parameters"],
        points["tokens"],
        points["losses"],
        embeddings=points.get("embeddings"),
        loss=arguments.minimise,
        delta=arguments.delta,
        resamples=arguments.resamples,
        seed=arguments.seed,
    )
    if arguments.json:
        print_json(_as_json(fit))
        return 0
    rows = [[name, interval(estimate), f"{fit.errors[name]:.2g}"] for name, estimate in fit.numbers.items()]
    console.print(fit_width(Table("", ["", "value [95 %]", "standard error"], rows, 1), console.width))
    width = f" (δ = {fit.delta:g})" if fit.loss == "huber" else ""
    left_out = f", without the {count_of(arguments.leave_out, 'highest loss')}" if arguments.leave_out else ""
    n = "N without embeddings, " if "embeddings" in columns else ""
    lines = (
        f"L∞ + A·N^(−α) + B·D^(−β): {n}{DESCRIPTIONS[fit.loss]}{width}, {count_of(fit.points, 'point')}{left_out}.",
        f"Intervals are percentiles of {count_of(fit.resamples, 'fit')} to resampled points, widened for few points."
        if fit.resamples > 1
        else "No intervals, since no points were resampled.",
        f"At C ∝ N·D, the loss is least where N ∝ C^a, a = β / (α + β) = {interval(fit.numbers['a'])}.",
    )
    for line in lines:
        console.print(line)
    return 0


def _as_json(fit: PointsFit) -> dict[str, object]:
    numbers = {
        name: {
            "value": finite(estimate.value),
            "low": finite(estimate.low),
            "high": finite(estimate.high),
            "error": finite(fit.errors[name]),
        }
        for name, estimate in fit.numbers.items()
    }
    settings = {name: getattr(fit, name) for name in ("loss", "delta", "objective", "points", "resamples")}
    return settings | {"numbers": numbers}


def _columns(arguments: Fit) -> dict[str, Vector]:
    """Return N, D, L and the parameters of embeddings of every point."""
    table = _read(arguments.file)
    names = {"parameters": arguments.parameters, "tokens": arguments.tokens, "losses": arguments.losses}
    if arguments.flops is not None:
        names.pop("tokens")
        if arguments.tokens is not None:
            raise UserError(f"--tokens is {arguments.tokens} and --flops {arguments.flops}; expected one of them")
    columns = {name: _numbers(arguments.file, table, _column(table, name, column)) for name, column in names.items()}
    if arguments.flops is not None:
        flops = _numbers(arguments.file, table, _column(table, "flops", arguments.flops))
        columns["tokens"] = flops / (FLOPS * columns["parameters"])
    if arguments.embeddings is not None:
        columns["embeddings"] = _numbers(arguments.file, table, _column(table, "embeddings", arguments.embeddings))
    return columns


def _read(file: Path) -> pl.DataFrame:
    """Read a table.

    Raises:
      UserError: there is no such file, it is of another kind, or it cannot be read.
    """
    if not file.is_file():
        raise UserError(f"'{file}' is not a file; expected a table of points: {', '.join(READERS)}")
    if file.suffix not in READERS:
        raise UserError(f"'{file}' ends in '{file.suffix}'; expected one of {', '.join(READERS)}")
    try:
        return READERS[file.suffix](file)
    except (pl.exceptions.PolarsError, OSError, UnicodeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"'{file}' cannot be read as {file.suffix[1:]}: {reason}") from error


def _column(table: pl.DataFrame, name: str, chosen: str | None) -> str:
    """The column of a number, by its name or by those that are looked for."""
    names = NAMES.get(name, (name,)) if chosen is None else (chosen,)
    for column in names:
        if column in table.columns:
            return column
    if chosen is not None:
        raise UserError(f"--{name} is '{chosen}', which is no column of the file{did_you_mean(chosen, table.columns)}")
    raise UserError(
        f"the file has the columns {', '.join(table.columns)}; expected {' or '.join(names)}, or --{name} NAME"
    )


def _numbers(file: Path, table: pl.DataFrame, column: str) -> Vector:
    """The numbers of a column.

    Raises:
      UserError: a value is not a finite number above 0; the message has its row.
    """
    values = table[column].cast(pl.Float64, strict=False)
    wrong = (values.is_null() | ~(values.fill_null(0.0).is_finite() & (values.fill_null(0.0) > 0))).arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"'{file}' has {column} = {table[column][row]!r} in row {row + 1}; expected a finite number above 0"
        )
    return values.to_numpy()
