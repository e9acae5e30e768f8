"""Results of a folder by column: the last row of every trial, as in `Store.rows`, without an object per row.

A file is read in the columns that are asked for; its digest and its rows are checked. Damage and
disagreements are noted in the store.
"""

import errno
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from flaxformer.store import records
from flaxformer.store.records import POLARS_TYPES
from flaxformer.store.rows import COLUMNS, PRECEDENCE, Row, by_trial
from flaxformer.store.store import STATUSES, Store
from flaxformer.system.digests import DamagedError, iterate_lines

BATCH = 2048
"""Number of rows of a file of lines that are objects at a time."""
SCALARS = [name for name, kind in POLARS_TYPES.items() if not isinstance(kind, pl.List) and name != "error"]
"""Fixed columns with a short value."""
NUMBER = "number: "
"""Prefix of a metric's column in `scalars`, so that no metric has the name of a label or of a fixed column."""
REQUIRED = [column.name for column in COLUMNS if column.is_required]
IS_ROW = pl.all_horizontal([pl.col(REQUIRED).is_not_null(), pl.col("status").is_in(STATUSES)]).fill_null(value=False)
"""True for the rows of a table of the right types that have every required value."""
ColumnChoice = Callable[[pl.Schema], Mapping[str, pl.Expr]]
"""From the columns of a file to those to read, by name; `trial` and `status` are among them."""


def scalars(store: Store) -> pl.DataFrame:
    """One row per trial: `SCALARS`, and every metric under `NUMBER` and its name."""
    table = _read(store, _scalars, {name: POLARS_TYPES[name] for name in SCALARS})
    for line in store.recorded_disagreements():
        store.disagreements.setdefault(line["trial"], line["what"])
    return _last_of_each(store, table)


def read(store: Store, *names: str) -> pl.DataFrame:
    """One row per trial: its name, its status, and these columns, also of lists such as a curve; null for none."""
    wanted = dict.fromkeys(("trial", "status", *names))
    types = {name: POLARS_TYPES.get(name, pl.List(pl.Float64())) for name in wanted}
    table = _read(store, lambda schema: {name: _cast(schema, name, kind) for name, kind in types.items()}, types)
    return _last_of_each(None, table)


def statuses(store: Store) -> dict[str, str]:
    """The status of every trial that has a row, by its name."""
    return dict(read(store).select("trial", "status").iter_rows())


def everything(store: Store) -> pl.DataFrame:
    """One row per trial with all its columns: the fixed ones, then labels, metrics and curves."""
    table = _last_of_each(None, _read(store, _everything, POLARS_TYPES))
    order = [*POLARS_TYPES, *(n for n, t in table.schema.items() if n not in POLARS_TYPES and t == pl.String)]
    order += [n for n, t in table.schema.items() if n not in order and not isinstance(t, pl.List)]
    return table.select([*order, *(name for name in table.columns if name not in order)])


def rows_of(store: Store, trials: Collection[str]) -> dict[str, Row]:
    """The last row of each of these trials that has one, as in `Store.rows`."""
    return by_trial(_rows(store, trials), {})


def _rows(store: Store, trials: Collection[str]) -> list[Row]:
    """All rows of these trials, in the order in which they count."""
    names, wanted = pl.Series(list(trials), dtype=pl.String), set(trials)
    is_wanted = pl.col("trial").cast(pl.String, strict=False).is_in(names.implode())
    lines = [row for path in store.line_files() for row in _rows_of_lines(store, path) if row.trial in wanted]
    tables = []
    for path in store.table_files():
        chosen = columns_of_table(store, path, _everything, lambda table: table.filter(is_wanted))
        tables += store.checked_rows(path, chosen.to_dicts()) if chosen is not None else []
    return [*tables, *lines]


def _read(store: Store, choose: ColumnChoice, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The chosen columns of all rows of all files, in the order in which they count."""
    lines = [frame for path in store.line_files() for frame in columns_of_lines(store, path, choose)]  # before a merge
    tables = [columns_of_table(store, path, choose) for path in store.table_files()]
    frames = [frame for frame in (*tables, *lines) if frame is not None and frame.height]
    return pl.concat([pl.DataFrame(schema=types), *frames], how="diagonal_relaxed")


def columns_of_table(
    store: Store,
    path: Path,
    choose: ColumnChoice,
    only: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda table: table,
) -> pl.DataFrame | None:
    """The chosen columns of the rows of a Parquet file; None if there are none. Damage is noted."""

    def select(table: pl.LazyFrame) -> pl.LazyFrame:
        schema = table.collect_schema()
        records.check_types(schema)
        chosen = [expression.alias(name) for name, expression in choose(schema).items()]
        return only(table).select(*chosen, IS_ROW.alias("is_row"))

    try:
        table = records.read_columns(path, select)
        if wrong := table.height - table["is_row"].sum():
            store.note_damage(path, f"{wrong} rows are not rows of results (they lack a status, or {REQUIRED})")
        return table.filter("is_row").drop("is_row")
    except DamagedError as error:
        store.note_damage(path, str(error))
    except FileNotFoundError:
        pass
    return None


def _scalars(schema: pl.Schema) -> dict[str, pl.Expr]:
    fixed = {name: _cast(schema, name, POLARS_TYPES[name]) for name in SCALARS}
    metrics = [name for name, kind in schema.items() if name not in POLARS_TYPES and records.is_number(kind)]
    return fixed | {f"{NUMBER}{name}": pl.col(name).cast(pl.Float64) for name in metrics}


def _everything(schema: pl.Schema) -> dict[str, pl.Expr]:
    """The columns that a `Row` holds."""
    fixed = {name: _cast(schema, name, kind) for name, kind in POLARS_TYPES.items()}
    return fixed | {name: pl.col(name) for name, kind in schema.items() if name not in fixed and kind != pl.Null}


def _cast(schema: pl.Schema, name: str, kind: pl.DataType) -> pl.Expr:
    """A column as one of this type; null where the file has none."""
    return (pl.col(name) if name in schema else pl.lit(None)).cast(kind)


def _rows_of_lines(store: Store, path: Path) -> Iterator[Row]:
    """The rows of a file of lines, one at a time; other lines are noted as damage."""
    wrong = []
    try:
        for columns, what in iterate_lines(path):
            if columns is None:
                store.note_damage(path, what)
                continue
            try:
                yield Row.from_columns(columns)
            except ValueError as error:
                wrong.append(error)
    except FileNotFoundError:  # it was merged meanwhile
        return
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        yield from store.rows_of_lines(path)  # it was replaced meanwhile; rows that are there twice count once
        return
    if wrong:
        store.note_damage(path, f"{len(wrong)} rows are not rows of results ({wrong[0]})")


def columns_of_lines(store: Store, path: Path, choose: ColumnChoice) -> Iterator[pl.DataFrame]:
    """The chosen columns of the rows of a file of lines, some rows at a time."""
    rows = _rows_of_lines(store, path)
    while batch := list(itertools.islice(rows, BATCH)):
        table = records.frame_of(batch)
        yield table.select(expression.alias(name) for name, expression in choose(table.schema).items())


def _last_of_each(store: Store | None, table: pl.DataFrame) -> pl.DataFrame:
    """The row of each trial that counts (`store.rows.PRECEDENCE`); differing results are noted."""
    if table["trial"].n_unique() == table.height:
        return table
    place = table.with_row_index("place").filter(pl.col("trial").is_duplicated())
    if store is not None and (names := _differing_trials(place.drop("place"))):
        by_trial(_rows(store, names), store.disagreements)
    precedence = pl.col("status").replace_strict(PRECEDENCE, return_dtype=pl.Int8)
    counts = pl.col("place").filter(precedence == precedence.max()).max()
    kept = place.group_by("trial", maintain_order=True).agg(counts)["place"]
    first = table.with_row_index("place").group_by("trial", maintain_order=True).agg(pl.col("place").last())
    chosen = first.join(place.select("trial").unique(), on="trial", how="anti")["place"]
    return table[pl.concat([chosen, kept]).sort()]


def _differing_trials(rows: pl.DataFrame) -> list[str]:
    """The trials whose rows are not the same bit for bit."""
    floats = [column for column in rows if column.dtype == pl.Float64]
    bits = rows.with_columns(
        pl.Series(column.name, column.fill_null(0.0).to_numpy().view(np.int64)).zip_with(
            column.is_not_null(), pl.Series([None], dtype=pl.Int64)
        )
        for column in floats
    )
    left = bits.unique(maintain_order=True)
    return left.filter(pl.col("trial").is_duplicated())["trial"].unique(maintain_order=True).to_list()
