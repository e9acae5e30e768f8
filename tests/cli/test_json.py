"""`--json`: standard output holds the answer as data, and nothing else."""

import json
import math

import pytest
from study.tiny import fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.cli import main

FILE = """
from study.tiny import *

study = tiny()
run = BASELINE
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    losses = {"low": 2.0, "high": 1.0}
    fill(tmp_path / "filled", tiny(), lambda trial: losses[trial.arm.labels["rate"]] + 0.01 * trial.seed**2)
    return tmp_path


def answer(capsys, *words, code=0):
    """The object that a command prints."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    data = json.loads(printed.out)
    assert data["format"] == 1
    return data


def test_report_prints_claims_arms_and_limits(folder, capsys):
    data, analysis = answer(capsys, "report", "filled", "--json"), analyse_folder(folder / "filled")
    assert [claim["claim"] for claim in data["claims"]] == [claim.text for claim in analysis.claims]
    for claim, judged in zip(data["claims"], analysis.claims, strict=True):
        assert claim["verdict"] == judged.judgement.verdict
        assert claim["effect"] == pytest.approx(judged.judgement.effect.mean)
    assert data["claims"][0]["effect"] == pytest.approx(1.0)
    assert {arm["labels"]["rate"]: arm["mean"] for arm in data["arms"]} == {
        "low": pytest.approx(2.0 + 0.05 / 3),
        "high": pytest.approx(1.0 + 0.05 / 3),
    }
    assert data["warnings"] == analysis.warnings
    assert (data["missing"], data["failed"]) == (0, 0)
    assert (folder / "filled" / "report.html").is_file()


def test_compare_prints_paired_differences(folder, capsys):
    losses = {"low": 2.5, "high": 1.0}
    fill(folder / "other", tiny(claims=()), lambda trial: losses[trial.arm.labels["rate"]] + 0.01 * trial.seed)
    data = answer(capsys, "compare", "filled", "other", "--json")
    assert [data[side]["folder"] for side in "ab"] == ["filled", "other"]
    change = {"low": 0.5, "high": 0.0}
    for arm in data["arms"]:
        by_seed = [change[arm["labels"]["rate"]] + 0.01 * (seed - seed**2) for seed in range(3)]
        assert arm["difference"]["mean"] == pytest.approx(sum(by_seed) / 3)
        assert arm["b"]["mean"] - arm["a"]["mean"] == pytest.approx(arm["difference"]["mean"])
        assert arm["difference"]["n"] == 3
    first, *_ = data["claims"]
    assert (first["a"]["claim"], first["b"]) == (first["claim"], None)


def analyse_folder(root):
    from flaxformer.store.store import Store

    return analyse(Store(root))


def test_numbers_that_are_not_finite_are_null(folder, capsys):
    fill(folder / "one", tiny(seeds=range(1)), lambda trial: 1.0)
    data = answer(capsys, "report", "one", "--json")
    assert data["arms"][0]["low"] is None
    assert all(value is None or math.isfinite(value) for arm in data["arms"] for value in list(arm.values())[1:])


@pytest.mark.long
def test_run_prints_the_same_object_as_report(folder, capsys):
    first = answer(capsys, "run", "tiny.py", "--output", "out", "--json", "--seeds", "1")
    assert answer(capsys, "report", "out", "--json") | {"overrides": []} == first | {"overrides": []}


@pytest.mark.long
def test_plan_and_check_print_objects(folder, capsys):
    data = answer(capsys, "plan", "tiny.py", "--json")
    assert (len(data["arms"]), data["left"], len(data["programs"])) == (4, 12, 2)
    assert sum(program["runs"] for program in data["programs"]) == 12
    capsys.readouterr()
    assert main(["check", "tiny.py", "--laws", "causality", "batch", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["format"] for row in rows} == {1}
    assert {row["law"] for row in rows} == {"causality", "batch"}
    assert {row["verdict"] for row in rows} <= {"ok", "not applicable"}


def test_status_and_declare_print_objects(folder, capsys):
    data = answer(capsys, "status", "filled", "--json")
    assert (data["declared"], data["done"]) == (12, 12)
    assert answer(capsys, "declare", "tiny.py", "--json", "--output", "declared")["digest"]


@pytest.mark.parametrize("words", [["report", ".", "--json"], ["run", "tiny.py", "--json", "--launcher", "local"]])
def test_what_has_no_object_is_refused(folder, capsys, words):
    (folder / "second").mkdir()
    assert main(words) == 2
    assert "--json" in capsys.readouterr().err
