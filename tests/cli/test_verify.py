"""`flaxformer declare` and `flaxformer verify`: what is published before the runs, and what is trained again after."""

import dataclasses
import json
import re
import shutil

import pytest
from study.tiny import FILE, cache_folder, kept_programs

from flaxformer.cli import main
from flaxformer.report.files import write
from flaxformer.runner.verification import differences
from flaxformer.store import declaration_log, records
from flaxformer.store.rows import Row
from flaxformer.store.store import Store

DERIVE = """
def derive(rows):
    low, high = rows["rate=low"], rows["rate=high"]
    return {"gap": high["validation_loss"] - low["validation_loss"]}

study = Study(
    derive=derive,
"""
SMALL = FILE.replace('        Axis("model.norm", {"pre": PRE, "post": POST}),\n', "").replace(
    "\nstudy = Study(\n", DERIVE
)
SMALL = SMALL[: SMALL.index("        Claim(\n")] + "    ],\n)\n"
SMALL = SMALL.replace("    claims=[\n", '    claims=[\n        Claim("a gap", higher={"quantity": "gap"}, than=0.0),\n')


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a study of two arms and three seeds that was declared first and trained then; and its log."""
    folder = tmp_path_factory.mktemp("verified")
    (folder / "small.py").write_text(SMALL)
    with kept_programs(cache_folder(tmp_path_factory)):
        assert main(["declare", str(folder / "small.py"), "--output", str(folder / "out")]) == 0
        assert not Store(folder / "out").rows()
        declared = declaration_log.read(Store(folder / "out"))
        assert main(["run", str(folder / "small.py"), "--output", str(folder / "out")]) == 0
        yield folder, declared


def call(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.mark.long
def test_a_run_continues_what_was_declared(finished):
    folder, declared = finished
    log = declaration_log.read(Store(folder / "out"))
    assert log.digests == declared.digests
    assert {row.declaration for row in Store(folder / "out").rows().values()} == {declared.digests[0]}
    assert declared.digests[0] in (folder / "out/report.html").read_text()


def test_a_declaration_is_printed_with_its_digest(finished, tmp_path, capsys):
    folder, declared = finished
    code, out, err = call(capsys, "declare", folder / "small.py", "--output", tmp_path / "new", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["digest"] == declaration_log.read(Store(tmp_path / "new")).head
    assert [claim["declared"] for claim in found["claims"]] == ["before its data"] * 2
    assert found["seeds"] == [0, 1, 2]
    code, out, _ = call(capsys, "declare", folder / "small.py", "--output", folder / "out")
    assert f"Digest: {declared.digests[0]}" in out
    assert "Claim 1: a gap (claimed above 0; declared before its data)." in out
    (tmp_path / "small.py").write_text(SMALL.replace("than=0.0", "than=-1.0"))
    code, out, _ = call(capsys, "declare", tmp_path / "small.py", "--output", tmp_path / "new")
    assert code == 0
    assert len(declaration_log.read(Store(tmp_path / "new")).digests) == 2


def forged(row, name):
    """A row in which somebody changed one thing."""
    if name == "curve":
        return dataclasses.replace(row, curves=row.curves | {"train_loss": [0.5, *row.curves["train_loss"][1:]]})
    if name == "status":
        return dataclasses.replace(row, status="diverged", diverged_at=3)
    value = row.metrics[name]
    return dataclasses.replace(row, metrics=row.metrics | {name: value * (1 + 2**-40)})


FORGED = {"rate=low,seed=0": "validation_loss", "rate=high,seed=1": "curve", "rate=low,seed=2": "status"}
FORGED |= {"rate=high,seed=2": "initial_validation_accuracy"}


@pytest.mark.long
def test_forged_rows_are_found_although_their_digests_are_right(finished, capsys):
    folder, _ = finished
    store = Store(folder / "out")
    code, out, err = call(capsys, "verify", "--trust-code", store.root, "--trials", 2, "--seed", 5)
    assert (code, err) == (0, "")
    assert "2 of 6 finished trials were trained again by the code" in out
    assert out.endswith(": bitwise equal.")
    analysis = write(store)
    assert "2 of 6 finished trials were trained again" in (store.root / "report.html").read_text()
    assert not analysis.log_faults
    [path] = store.groups.glob("*.parquet")
    before, rows = path.read_bytes(), store.rows()
    changed = {name: forged(row, FORGED[name]) if name in FORGED else row for name, row in rows.items()}
    records.write_table(path, list(changed.values()))
    code, out, _ = call(capsys, "verify", "--trust-code", store.root, "--trials", 9, "--json")
    found = json.loads(out)
    assert code == 1
    assert {*found["different"]} == {*FORGED, "derived numbers at seed 0", "derived numbers at seed 2"}
    assert f"{changed['rate=low,seed=0'].metrics['validation_loss']!r}, again" in found["different"]["rate=low,seed=0"]
    assert found["different"]["rate=high,seed=1"].startswith("train_loss curve 6 numbers that end in ")
    assert found["different"]["derived numbers at seed 0"].startswith("gap ")
    code, out, _ = call(capsys, "verify", "--trust-code", store.root, "--trials", 9)
    assert code == 1
    assert "rate=low,seed=2: status 'diverged', again 'done'; diverged_at 3, again absent" in out
    path.write_bytes(before)
    assert "6 differ" in " ".join(write(store).limits)


def test_a_changed_copy_is_not_executed(finished, capsys):
    folder, _ = finished
    [copy] = (folder / "out/code").glob("*/small.py")
    text = copy.read_text()
    for change in (lambda: copy.write_text(text + "\nraise SystemExit('canary')\n"), lambda: plant(copy)):
        change()
        for command in ("verify", "replicate"):
            code, out, err = call(capsys, command, folder / "out")
            assert (code, "was changed after it was written" in err, "canary" in out + err) == (2, True, False)
        copy.write_text(text)
    (copy.parent / "optax.py").unlink()


def plant(copy):
    (copy.parent / "optax.py").write_text("raise SystemExit('canary')\n")


@pytest.mark.long
def test_temporary_files_that_kills_left_change_no_command(finished, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0] / "out", folder)
    commands = [("status", folder, "--json"), ("report", folder), ("verify", "--trust-code", folder, "--seed", 5)]
    commands.append(("replicate", folder))
    call(capsys, *commands[2])  # reports name a verification
    before = [timeless(call(capsys, *words)) for words in commands]
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.with_name(f".{path.name}.0123456789abcdef.tmp").write_bytes(path.read_bytes()[:-1])
    assert [timeless(call(capsys, *words)) for words in commands] == before


def timeless(result):
    """The exit code and words of a command, without its times and speeds."""
    code, out, err = result
    return code, re.sub(r"[0-9.,]+ ?(tokens/s|s|min|h)\b|\"(time|age|seconds)[a-z_]*\": [^,}]*", "", out + err)


def test_trials_of_another_recipe_cannot_be_verified(finished, tmp_path, capsys):
    folder, _ = finished
    code, _, err = call(capsys, "verify", "--trust-code", folder / "out", "optimizer.clip=1.0")
    assert (code, "none can be verified here: 6 trials of another recipe or code" in err) == (2, True), err
    code, _, err = call(capsys, "verify", "--trust-code", folder / "out", "--trials", 0)
    assert (code, "trials is 0; expected a number at least 1" in err) == (2, True), err
    main(["declare", str(folder / "small.py"), "--output", str(tmp_path / "new")])
    code, _, err = call(capsys, "verify", "--trust-code", tmp_path / "new", "--file", folder / "small.py")
    assert (code, "has no finished trial" in err) == (2, True), err


def test_equal_rows_are_equal_bit_by_bit():
    about = {"trial": "a,seed=0", "group": "g", "seed": 0, "status": "done"}
    rows = [Row(**about, metrics={"x": value}) for value in (float("nan"), 0.0, -0.0, 1.0, 1.0 + 2**-52)]
    assert [[differences(a, b) == "" for b in rows] for a in rows] == [[a is b for b in rows] for a in rows]
