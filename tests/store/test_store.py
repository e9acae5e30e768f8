"""A kill at any moment leaves whole rows in the folder, and nothing else is read."""

from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace
from study.tiny import BASELINE, NORM, tiny

from flaxformer.core.paths import replace_at
from flaxformer.store import declaration_log, records
from flaxformer.store.declarations import declare
from flaxformer.store.records import write_table
from flaxformer.store.repair import repair
from flaxformer.store.rows import COLUMNS, Row, is_reserved
from flaxformer.store.store import Store, read_lines
from flaxformer.study import Axis
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError
from flaxformer.system.files import write_atomically


def row(trial, status="done", loss=1.0, curve=(), scale="none", **columns):
    return Row(
        trial=trial,
        group="g",
        seed=0,
        status=status,
        labels={"scale": scale},
        metrics={"loss": loss},
        curves={"loss": list(curve)},
        **columns,
    )


ROWS = [
    row("a", loss=0.1 + 0.2, curve=[1e-30, 3.0], scale="1/√d"),
    row("b", "diverged", loss=1 / 3, curve=[2.0, 0.0], scale="none\n", diverged_at=3),
    row("c", loss=-0.0, curve=[1.5, 5e300], scale='"×"'),
]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "study")
    with store.locked():
        yield store


def by_trial(rows):
    return {row["trial"]: row for row in rows}


def filled(store, rows=ROWS):
    for row in rows:
        store.append("g", row)
    return store.groups / "g.jsonl"


def test_rows_come_back_as_they_were(store):
    path = filled(store)
    assert read_lines(path) == ROWS
    assert store.rows() == by_trial(ROWS)


def test_the_last_row_of_a_trial_counts(store):
    filled(store, [*ROWS, ROWS[0] | {"loss": 7.0}])
    assert store.rows() == by_trial([ROWS[0] | {"loss": 7.0}, *ROWS[1:]])


@pytest.mark.parametrize("step", [pytest.param(23, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_file_cut_at_any_byte_gives_its_whole_lines_and_can_be_continued(store, step):
    path = filled(store)
    data, extra = path.read_bytes(), row("later")
    ends = {place + after for place, byte in enumerate(data) if byte == ord("\n") for after in (-1, 0, 1)}
    for cut in sorted({*range(0, len(data) + 1, step)} | ends):
        path.write_bytes(data[:cut])
        whole = ROWS[: data[:cut].count(b"\n")]
        assert read_lines(path) == whole
        assert store.rows() == by_trial(whole)
        repair(store)
        store.append("g", extra)
        assert read_lines(path) == [*whole, extra]


def test_rows_are_removed_from_every_file_and_damaged_files_are_kept(store):
    def named(*trials):
        return [row(trial, curve=[1.0]) for trial in trials]

    write_table(store.groups / "g.parquet", named("a", "b"))
    write_table(store.groups / "whole.parquet", named("a"))
    write_table(store.groups / "unreadable.parquet", named("a"))
    lines = filled(store, named("a", "c"))
    for path in (store.groups / "unreadable.parquet", lines):
        path.write_bytes(path.read_bytes() + b"not a row\n")
    store.remove_rows(["a"])
    assert sorted(store.rows()) == ["b", "c"]
    names = sorted(path.name for path in store.groups.iterdir())
    assert names == ["g.jsonl", "g.jsonl.damaged", "g.parquet", "unreadable.parquet"]


def test_a_row_that_its_owner_adds_while_others_are_removed_stays(store, monkeypatch):
    store.append("g", row("a"))
    own, added = Store.rows_of_lines, []

    def read(self, path):
        rows = own(self, path)
        if not added:
            added.append(row("b"))
            store.append("g", added[0])
        return rows

    monkeypatch.setattr(Store, "rows_of_lines", read)
    store.remove_rows(["a"])
    assert list(store.rows()) == ["b"]


def test_a_row_is_its_typed_fields_and_its_flat_columns():
    own = ROWS[1]
    assert (own.status, own.diverged_at, own.labels, own.curves) == (
        "diverged",
        3,
        {"scale": "none\n"},
        {"loss": [2, 0]},
    )
    assert (own["status"], own["scale"], own["loss"], own["loss_curve"]) == ("diverged", "none\n", 1 / 3, [2.0, 0.0])
    assert own["seconds"] is None
    assert "accuracy" not in own
    assert Row.from_columns(dict(own)) == own == dict(own)
    assert (own | {"loss": 2.0}).metrics == {"loss": 2.0}
    assert list(own) == [*(column.name for column in COLUMNS), "scale", "loss", "loss_curve"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trial": None}, "trial is absent"),
        ({"seed": "0"}, "seed is '0'; expected integer"),
        ({"status": "great"}, "status is 'great'; expected one of done, diverged, stopped, failed"),
        ({"evaluated_at": 3}, "evaluated_at is 3; expected list of integers"),
    ],
)
def test_columns_of_another_type_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Row.from_columns(dict(ROWS[0]) | changes)


def test_every_fixed_column_has_a_meaning_and_is_reserved():
    assert all(column.meaning for column in COLUMNS)
    assert all(map(is_reserved, [column.name for column in COLUMNS]))
    assert is_reserved("initial_anything")
    assert is_reserved("some_curve")
    assert not is_reserved("norm")


def test_every_table_has_every_fixed_column_with_its_type(store):
    filled(store, ROWS[:1])
    store.finish("g")
    found = pl.read_parquet(store.groups / "g.parquet").schema
    assert [found[name] for name in ("stopped_at", "cause", "seconds")] == [pl.Int64, pl.String, pl.Float64]
    assert found["evaluated_at"] == pl.List(pl.Int64)


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "none.jsonl") == []


def test_finish_keeps_every_row(store):
    filled(store)
    store.finish("g")
    assert [path.name for path in store.groups.iterdir()] == ["g.parquet"]
    assert pl.read_parquet(store.groups / "g.parquet").to_dicts() == ROWS
    assert store.rows() == by_trial(ROWS)


def test_finish_adds_to_what_an_earlier_launch_finished(store):
    filled(store, ROWS[:2])
    store.finish("g")
    filled(store, [ROWS[1] | {"loss": 9.0}, ROWS[2]])
    expected = by_trial([ROWS[0], ROWS[1] | {"loss": 9.0}, ROWS[2]])
    assert store.rows() == expected
    store.finish("g")
    assert by_trial(pl.read_parquet(store.groups / "g.parquet").to_dicts()) == store.rows() == expected


def test_finish_takes_failed_rows_and_their_retries(store):
    failed = Row(trial="b", group="g", seed=0, status="failed", error="Traceback …")
    filled(store, [ROWS[0], failed, ROWS[2]])
    store.finish("g")
    assert {trial: row["status"] for trial, row in store.rows().items()} == {"a": "done", "b": "failed", "c": "done"}
    assert store.rows()["b"]["error"] == "Traceback …"
    filled(store, [ROWS[1]])
    store.finish("g")
    assert store.rows() == by_trial(ROWS)


def test_finish_of_a_group_without_lines_changes_nothing(store):
    filled(store)
    store.finish("g")
    before = (store.groups / "g.parquet").read_bytes()
    store.finish("g")
    assert (store.groups / "g.parquet").read_bytes() == before


@pytest.mark.parametrize("data", [b"", b'{"trial": "a", "see'])
def test_finish_of_lines_without_a_row_writes_no_table(store, data):
    """Such a file is what a full disk or a kill leaves of the first row."""
    (store.groups / "g.jsonl").write_bytes(data)
    store.finish("g")
    assert not list(store.groups.iterdir())
    assert store.rows() == {}


def test_a_table_that_is_damaged_while_it_is_written_gets_no_name(store, monkeypatch):
    filled(store, ROWS[:1])
    store.finish("g")
    filled(store, ROWS[1:])
    before = {path.name: path.read_bytes() for path in store.groups.iterdir()}

    def check_after_damage(path):
        data = path.read_bytes()
        if path.suffix == ".tmp":
            path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
        return check_table(path)

    check_table = records.check_table
    with monkeypatch.context() as patch:
        patch.setattr(records, "check_table", check_after_damage)
        with pytest.raises(UserError, match=r"g.parquet cannot be written: its digest differs"):
            store.finish("g")
    assert {path.name: path.read_bytes() for path in store.groups.iterdir()} == before
    store.finish("g")
    assert store.rows() == by_trial(ROWS)


@pytest.mark.parametrize("moment", ["replace", "unlink"])
@pytest.mark.parametrize("earlier", [[], ROWS[:1]], ids=["new", "grown"])
def test_a_kill_while_finishing_loses_nothing(store, monkeypatch, moment, earlier):
    filled(store, earlier)
    store.finish("g")
    filled(store)
    with monkeypatch.context() as broken:
        broken.setattr(Path, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            store.finish("g")
    assert store.rows() == by_trial(ROWS)
    store.finish("g")
    assert store.rows() == by_trial(ROWS)
    assert not list(store.groups.glob("*.jsonl"))


def killed(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("old", [None, b"old"], ids=["new file", "old file"])
def test_a_kill_before_the_rename_leaves_what_was_there(tmp_path, monkeypatch, old):
    path = tmp_path / "page"
    if old is not None:
        path.write_bytes(old)
    with monkeypatch.context() as broken:
        for name in ("replace", "rename"):
            broken.setattr(Path, name, killed)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, b"new")
    assert (path.read_bytes() if path.exists() else None) == old
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["page"]


def test_a_kill_while_a_declaration_or_table_is_written_leaves_no_part(store, monkeypatch):
    declare(store, declaration(tiny()))
    before = store.declaration
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            declare(store, declaration(tiny(seeds=range(5))))
        with pytest.raises(KeyboardInterrupt):
            write_table(store.groups / "g.parquet", ROWS)
    assert store.declaration == before
    assert store.rows() == {}


# --- declaring -------------------------------------------------------------------------------------------


def test_a_declaration_comes_back_as_it_was(store):
    given = declaration(tiny())
    declare(store, given)
    assert store.declaration == replace(given, declaration=declaration_log.read(store).head)


def test_the_same_declaration_is_accepted_again(store):
    for _ in range(2):
        declare(store, declaration(tiny()))
    assert len(store.declaration.trials) == 12


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("optimizer.beta2", 0.99, "optimizer.beta2: 0.98 -> 0.99"),
        ("model.feed_forward.d_ff", 12, "model.feed_forward.d_ff: 11 -> 12"),
        ("optimizer.clip", 1.0, "optimizer.clip: null -> 1.0"),
        ("task.symbols", 4, "task.symbols: 5 -> 4"),
    ],
)
def test_another_recipe_under_the_same_name_is_refused_field_by_field(store, path, value, line):
    declare(store, declaration(tiny()))
    before = store.declaration
    with pytest.raises(UserError) as error:
        declare(store, declaration(tiny(baseline=replace_at(BASELINE, {path: value}))))
    changed = [row for row in str(error.value).splitlines() if " -> " in row]
    assert len(changed) == 1
    assert line in changed[0]
    assert str(store.root) in str(error.value)
    assert store.declaration == before


def test_other_semantics_are_another_recipe(store, monkeypatch):
    declare(store, declaration(tiny()))
    monkeypatch.setattr("flaxformer.SEMANTICS", "another")
    with pytest.raises(UserError, match=r'semantics: .* -> "another"'):
        declare(store, declaration(tiny()))


RATES = {"low": 1e-3, "high": 1e-2}
MORE = Axis("optimizer.learning_rate", RATES | {"higher": 1e-1}, name="rate")
FEWER = Axis("optimizer.learning_rate", {"low": 1e-3}, name="rate")


@pytest.mark.parametrize(
    "changes",
    [{"seeds": range(5)}, {"axes": (NORM, MORE)}, {"axes": (NORM, FEWER), "claims": ()}, {"seeds": [7]}],
    ids=["more seeds", "another arm", "fewer arms", "other seeds"],
)
def test_seeds_and_arms_come_and_go_and_old_rows_stay(store, changes):
    declare(store, declaration(tiny()))
    filled(store)
    study = tiny(**changes)
    declare(store, declaration(study))
    assert store.rows() == by_trial(ROWS)
    assert [trial.trial for trial in store.declaration.trials] == [trial.name for trial in study.trials()]


def test_an_arm_that_was_left_out_is_still_remembered(store):
    declare(store, declaration(tiny()))
    declare(store, declaration(tiny(axes=(NORM, FEWER), claims=())))
    changed = Axis("optimizer.learning_rate", RATES | {"high": 2e-2}, name="rate")
    with pytest.raises(UserError, match=r"learning_rate: 0\.01 -> 0\.02"):
        declare(store, declaration(tiny(axes=(NORM, changed))))


def test_fingerprints_differ_between_recipes_and_seeds():
    one = declaration(tiny()).fingerprints
    same = declaration(tiny(claims=(), caveats=())).fingerprints
    other = declaration(tiny(baseline=replace_at(BASELINE, {"optimizer.beta2": 0.99}))).trials
    assert one == same
    assert len(set(one.values())) == 12
    assert not set(one.values()) & {trial.fingerprint for trial in other}


@pytest.mark.parametrize("text", [None, '{"name": "ti'], ids=["missing", "damaged"])
def test_a_folder_without_a_study_says_so(tmp_path, text):
    if text is not None:
        (tmp_path / "study.json").write_text(text)
    with pytest.raises(UserError, match="study") as error:
        _ = Store(tmp_path).declaration
    assert str(tmp_path) in str(error.value)
    assert "expected" in str(error.value)


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with Store(tmp_path).locked():
        with pytest.raises(UserError, match="another process") as error, Store(tmp_path).locked():
            pass
        assert str(tmp_path) in str(error.value)
    with Store(tmp_path).locked():
        assert Store(tmp_path).rows() == {}
