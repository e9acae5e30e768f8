"""`flaxformer verify` on groups, halvings, diverged runs, kept weights: no false alarm, and every forgery is found."""

import dataclasses
import struct

import pytest
from study.tiny import FILE, bare_declaration, cache_folder, kept_programs

from flaxformer.cli import main
from flaxformer.runner.execution import Execution
from flaxformer.runner.verification import choose, differences
from flaxformer.store import records
from flaxformer.store.declaration import DeclaredArm, Recipe
from flaxformer.store.rows import Row
from flaxformer.store.store import Store

SMALL = FILE[: FILE.index("    claims=[\n")] + "    halving=HALVING,\n    keep=KEEP,\n)\n"
SMALL = SMALL.replace('        Axis("model.norm", {"pre": PRE, "post": POST}),\n', "")
SMALL = SMALL.replace('{"low": 1e-3, "high": 1e-2}', '{"a": 1e-3, "b": 1e-2, "c": LAST}').replace(
    "range(3)", "range(2)"
)
SMALL = SMALL.replace("import Axis, Claim, Study", "import Axis, Halving, Study")
KINDS = {
    "group": ("HALVING = KEEP = None\nLAST = 0.1\n", ["--group-size", "4"]),
    "diverged": ("HALVING, KEEP = None, 'all'\nLAST = 1e38\n", ["--layout", "scanned"]),
    "halving": ("HALVING, KEEP = Halving(factor=2, first=3), None\nLAST = 0.1\n", []),
}
FORGERIES = {
    "loss": lambda row: {"metrics": row.metrics | {"validation_loss": 1.25}},
    "label": lambda row: {"labels": {"rate": "other"}},
    "stopped": lambda row: {"stopped_at": 5, "status": "stopped"},
    "chunk": lambda row: {"chunk_steps": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished folder of each kind."""
    root, found = tmp_path_factory.mktemp("kinds"), {}
    with kept_programs(cache_folder(tmp_path_factory)), pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for kind, (head, options) in KINDS.items():
            (root / f"{kind}.py").write_text(SMALL.replace("study = Study(", f"{head}\nstudy = Study("))
            words = ["run", f"{kind}.py", "--output", kind, "--devices", "1", *options]
            patch.setattr("sys.argv", ["flaxformer", *words])
            assert main(words) == 0
            found[kind] = Store(root / kind)
        yield found


def verified(store, capsys, *options):
    capsys.readouterr()
    code = main(["verify", str(store.root), "--trust-code", *options])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def write_rows(store, trial, change):
    """Replace a row, with a right digest."""
    for path in store.groups.glob("*.parquet"):
        rows = [Row.from_columns(columns) for columns in records.read_table(path)]
        changed = [dataclasses.replace(row, **change(row)) if row.trial == trial else row for row in rows]
        records.write_table(path, changed)


@pytest.fixture
def restored(folders):
    before = {path: path.read_bytes() for store in folders.values() for path in store.root.rglob("*.parquet")}
    yield folders
    for path, data in before.items():
        path.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [1, 9])
def test_sound_rows_of_every_kind_are_equal(folders, capsys, kind, number):
    """Also one trial of a group of four."""
    code, text = verified(folders[kind], capsys, "--trials", str(number), "--seed", "3")
    assert (code, "bitwise equal" in text) == (0, True), text


@pytest.mark.long
def test_the_kinds_are_what_they_are_called(folders):
    rows = {kind: list(store.rows().values()) for kind, store in folders.items()}
    assert {row.group_size for row in rows["group"]} == {4}
    assert "diverged" in {row.status for row in rows["diverged"]}
    assert {row.stopped_at for row in rows["halving"]} == {3, None}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "forgery"),
    [
        pytest.param(kind, forgery, marks=() if forgery == "loss" or kind == "group" else pytest.mark.slow)
        for kind in KINDS
        for forgery in FORGERIES
    ],
)
def test_a_forged_row_of_every_kind_is_found(restored, capsys, kind, forgery):
    store = restored[kind]
    ranked = sorted(store.rows().values(), key=lambda row: row.status in ("diverged", "stopped"))
    trial = ranked[-1].trial
    write_rows(store, trial, FORGERIES[forgery])
    code, text = verified(store, capsys, "--trials", "9")
    assert (code, f"{trial}: " in text, "1 differs" in text or kind == "halving") == (1, True, True), text


@pytest.mark.long
def test_a_forged_result_at_a_rung_and_a_wrong_end_are_found(restored, capsys):
    store = restored["halving"]
    whole = next(row for row in store.rows().values() if row.stopped_at is None)
    ended = next(row for row in store.rows().values() if row.stopped_at == 3)
    rung = Store(store.root / "rungs/3")
    write_rows(rung, whole.trial, lambda row: {"metrics": row.metrics | {"validation_loss": 1.25}})
    code, text = verified(store, capsys, "--trials", "9")
    assert (code, f"{whole.trial} at step 3: " in text) == (1, True), text
    write_rows(store, ended.trial, lambda row: {"stopped_at": None, "status": "done"})
    code, text = verified(store, capsys, "--trials", "9")
    assert (code, f"{ended.trial} after step 3: " in text) == (1, True), text


@pytest.mark.long
def test_rows_of_other_devices_are_not_verified_and_another_is_chosen(restored, capsys):
    store = restored["group"]
    names = sorted(store.rows())
    for name in names[1:]:
        write_rows(store, name, lambda row: {"device": "cuda:0 and 3 more"})
    code, text = verified(store, capsys, "--trials", "1")
    assert code == 0, text
    assert f"1 of {len(names)} finished trials to train again" in text
    assert f"Not verified: {len(names) - 1} trials trained on cuda:0 and 3 more, and here is " in text
    write_rows(store, names[0], lambda row: {"device": "cuda:1"})
    code, text = verified(store, capsys)
    assert (code, "none can be verified here" in text) == (2, True), text


def test_rows_of_too_large_a_group_are_not_verified():
    name = "a,seed=0"
    row = Row(trial=name, group="g", seed=0, status="done", fingerprint="f", group_size=10**9)
    arm = DeclaredArm(arm="a", labels={}, group="g", fingerprints=("f",))
    declared = bare_declaration(arms=(arm,), recipes={"a": Recipe(run={}, semantics=1, data={})})
    sample = choose(declared, {name: row}, 1, 0, [Execution()])
    assert (sample.trials, [*sample.not_verified]) == ([], [name])


def test_every_nan_is_the_same_number():
    """A file keeps no sign of NaN, and a processor may give either."""
    negative, positive = (struct.unpack("<Q", struct.pack("<Q", bits)) for bits in (0xFFF8 << 48, 0x7FF8 << 48))
    values = [struct.unpack("<d", struct.pack("<Q", *bits))[0] for bits in (negative, positive)]
    rows = [Row(trial="a", group="g", seed=0, status="done", metrics={"x": x}, curves={"x": [x]}) for x in values]
    assert differences(*rows) == ""
