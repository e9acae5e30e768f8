"""Results by column are those by row: the same trials count, with the same values, damage and disagreements."""

import dataclasses
import math

import polars as pl
import pytest

from flaxformer.store import columns, records
from flaxformer.store.records import write_table
from flaxformer.store.rows import COLUMNS, Row
from flaxformer.store.store import Store
from flaxformer.system import digests
from flaxformer.system.files import write_atomically


def row(trial, loss=1.0, status="done", **changes):
    own = Row(
        trial=trial,
        group="g",
        seed=int(trial[1:]),
        status=status,
        fingerprint="f",
        declaration="d",
        evaluated_at=[0, 3],
        seconds=0.5,
        labels={"norm": "pre"},
        metrics={"validation_loss": loss, "initial_validation_loss": 9.0},
        curves={"validation_loss": [9.0, loss]},
    )
    return dataclasses.replace(own, **changes)


ROWS = [row("t0", -0.0), row("t1", math.nan), row("t2", 1e300), row("t3", 3.0)]
FAILED = Row(trial="t1", group="g", seed=1, status="failed", cause="no", error="Traceback")
INTEGERS = row("t5").__or__({"validation_loss": 3, "steps": 7})


def tables(store, *rows):
    write_table(store.groups / "g.parquet", rows)


def lines(store, *rows):
    for one in rows:
        store.append("g", one)


def both(store):
    tables(store, *ROWS[:3])
    lines(store, *ROWS[2:])


def retried(store):
    tables(store, FAILED, *ROWS[:1])
    lines(store, ROWS[1], row("t4", status="failed"), dataclasses.replace(FAILED, trial="t0", seed=0))


def disagreeing(store):
    tables(store, *ROWS)
    lines(store, row("t0", 0.0), row("t1", math.nan), row("t2", 2.0), row("t2", 1e300))


def stopped(store):
    """Two trials that a halving stopped, and that other processes trained to the end or failed to train."""
    ends = [dataclasses.replace(one, status="stopped", stopped_at=3) for one in ROWS]
    tables(store, ROWS[0], ends[0], ends[1], ROWS[1], ends[2], row("t2", status="failed"))
    lines(store, ends[3], ROWS[3], row("t3", 4.0))


def unmerged_twice(store):
    tables(store, *ROWS)
    lines(store, *ROWS)


def other_metrics(store):
    tables(store, *ROWS[:2])
    write_table(store.groups / "h.parquet", [INTEGERS])
    lines(store, row("t6").__or__({"entropy": 2.0, "entropy_curve": [1.0]}))


def damaged(store):
    tables(store, *ROWS[:2])
    path = store.groups / "h.parquet"
    write_table(path, ROWS[2:])
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    lines(store, row("t6"), row("t7"))
    path = store.groups / "g.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"t6"', b'"t8"') + b'{"cut short"')


def not_rows(store):
    write_table(store.groups / "g.parquet", [dict(ROWS[0]), dict(ROWS[1]) | {"status": "great"}, {"trial": "t9"}])
    records.write_table(store.groups / "h.parquet", pl.DataFrame({"trial": ["t7"], "seed": ["no"], "status": ["done"]}))
    records.write_table(store.groups / "i.parquet", pl.DataFrame({"answer": [42, 43]}))
    records.append_line(store.groups / "g.jsonl", {"trial": "t4"})


def nothing(store):
    pass


FOLDERS = [
    nothing,
    tables,
    lines,
    both,
    retried,
    disagreeing,
    stopped,
    unmerged_twice,
    other_metrics,
    damaged,
    not_rows,
]


@pytest.fixture(params=FOLDERS, ids=lambda make: make.__name__)
def folder(tmp_path, request):
    store = Store(tmp_path)
    with store.locked():
        request.param(store, *(ROWS if request.param in (tables, lines) else ()))
    return tmp_path


def found_by(folder, read):
    """What `read` finds in a folder, with the damage and disagreements that it notes."""
    store = Store(folder)
    return read(store), store.corrupt_files, store.disagreements


def test_the_same_rows_count(folder):
    rows, corrupt, differing = found_by(folder, lambda store: store.rows())
    table, *noted = found_by(folder, columns.scalars)
    assert (noted[0].keys(), noted[1]) == (corrupt.keys(), differing)
    assert sorted(table["trial"]) == sorted(rows)
    for own in table.iter_rows(named=True):
        expected = rows[own["trial"]]
        for name in columns.SCALARS:
            assert own[name] == expected[name], name
        metrics = {name: own.get(f"{columns.NUMBER}{name}") for name in expected.metrics}
        assert repr(metrics) == repr({name: float(value) for name, value in expected.metrics.items()})
    again = columns.rows_of(Store(folder), list(rows))
    assert {name: repr(one) for name, one in again.items()} == {name: repr(one) for name, one in rows.items()}
    assert columns.statuses(Store(folder)) == {name: one.status for name, one in rows.items()}


def test_the_whole_table_has_every_value_of_every_row(folder):
    rows, table = Store(folder).rows(), columns.everything(Store(folder))
    assert sorted(table["trial"]) == sorted(rows)
    for own in table.iter_rows(named=True):
        expected = rows[own["trial"]]
        assert repr({name: own[name] for name in expected}) == repr(dict(expected)) or expected.metrics.get("steps")
        assert all(value is None for name, value in own.items() if name not in expected)


def test_lists_are_read_where_they_are(folder):
    rows, table = Store(folder).rows(), columns.read(Store(folder), "evaluated_at", "validation_loss_curve")
    for own in table.iter_rows(named=True):
        for name in ("evaluated_at", "validation_loss_curve"):
            assert repr(own[name]) == repr(rows[own["trial"]].get(name))


VALUES = [True, -1, 2**63, -(10**30), 1.5, -1e308, "", "done", [], [[]], {"x": 1}, [None], ["x"], [1, 2], [1.5, None]]
VALUES += [[True], [True, 1.5], [1, 2.5], [2.5, 1], [2**63], [2**63, 1.5], [None, -(10**30)]]
NAMES = [column.name for column in COLUMNS] + [
    "norm",
    "validation_loss",
    "validation_loss_curve",
    "other",
    "other_curve",
]


def check_all_reads(folder):
    """Each read by column succeeds, and has the trials and the damage of `Store.rows`."""
    rows, corrupt, _ = found_by(folder, lambda store: store.rows())
    for read in (
        columns.scalars,
        columns.everything,
        lambda own: columns.read(own, "evaluated_at", "other_curve"),
    ):
        table, noted, _ = found_by(folder, read)
        assert (sorted(table["trial"]), noted.keys()) == (sorted(rows), corrupt.keys())
    again, *_ = found_by(folder, lambda store: columns.rows_of(store, list(rows)))
    assert again.keys() == rows.keys()
    return rows


@pytest.mark.every(4, "long")
@pytest.mark.every(6)
@pytest.mark.parametrize("name", NAMES)
def test_lines_with_any_value_are_rows_or_damage(tmp_path, name):
    store = Store(tmp_path)
    with store.locked():
        tables(store, ROWS[0])
    path = store.groups / "g.jsonl"
    for value in VALUES:
        path.write_bytes(b"".join(digests.line(one) for one in (dict(ROWS[1]) | {name: value}, dict(ROWS[2]))))
        rows = check_all_reads(tmp_path)
        assert {"t0", "t2"} <= rows.keys()
        with store.locked():
            Store(tmp_path).finish("g")
        assert Store(tmp_path).rows().keys() == rows.keys()
        for left in (path, *store.groups.glob("*damaged*")):
            left.unlink(missing_ok=True)
        tables(store, ROWS[0])


SERIES = [[None, None], ["a", None], [1, 2], [1.5, None], [True, None], [[1], []], [[1.5], [None]], [["a"], []]]
SERIES += [[[True], None], [[[1]], []], [b"a", None], [{"a": 1}, None]]
WIDE = [(pl.UInt64, [2**63, 1]), (pl.Int128, [10**30, None]), (pl.List(pl.UInt64), [[2**63], [1]]), (pl.Date, [1, 2])]


@pytest.mark.every(9)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "trial"])
def test_tables_with_any_column_are_rows_or_damage(tmp_path, name):
    store = Store(tmp_path)
    with store.locked():
        lines(store, ROWS[0])
    for own in [*(pl.Series(name, one) for one in SERIES), *(pl.Series(name, one, dtype=kind) for kind, one in WIDE)]:
        write_table(store.groups / "h.parquet", records.frame_of(ROWS[1:3]).with_columns(own))
        assert "t0" in check_all_reads(tmp_path)


FOREIGN = {
    "no column": pl.DataFrame(),
    "no row": pl.DataFrame({"other": []}),
    "no known column": pl.DataFrame({"other": [1, 2]}),
    "texts by number": records.frame_of(ROWS[1:3]).cast({"trial": pl.Categorical, "status": pl.Categorical}),
    "trials by number": records.frame_of(ROWS[1:3]).with_columns(trial=pl.Series([1, 2])),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_any_table_has_rows_or_damage(tmp_path, case):
    store = Store(tmp_path)
    with store.locked():
        lines(store, ROWS[0])
    write_table(store.groups / "h.parquet", FOREIGN[case])
    assert check_all_reads(tmp_path).keys() == {"t0"}


def test_a_list_of_integers_and_numbers_is_one_of_numbers():
    found = Row.from_columns(dict(ROWS[0]) | {"loss_curve": [1, None, 2.5], "steps_curve": [1, None, 2]})
    assert repr(found.curves["loss"]) == "[1.0, None, 2.5]"
    assert repr(found.curves["steps"]) == "[1, None, 2]"


def test_a_table_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    store = Store(tmp_path)
    with store.locked():
        tables(store, *ROWS[:1])
    path, replacing = store.groups / "g.parquet", [ROWS[3:]]

    def choose(table):
        if replacing:
            write_table(path, replacing.pop())
        return table.select("trial")

    assert records.read_columns(path, choose)["trial"].to_list() == ["t3"]


@pytest.mark.parametrize("text", ["flaxformer:" + "0" * 32, "flaxformer:" + "a" * 32])
def test_a_text_like_a_digest_hides_no_damage(tmp_path, text):
    path = tmp_path / "x.parquet"
    rows = [row("t0", cause=text), row("t1", cause=text)]
    write_table(path, rows)
    assert records.read_table(path) == rows
    data = path.read_bytes()
    for place in range(4, len(data) - 8, 41):
        write_atomically(path, data[:place] + bytes([data[place] ^ 2]) + data[place + 1 :])
        with pytest.raises(records.DamagedError):
            records.read_table(path)
