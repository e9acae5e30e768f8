"""The report: complete, self-contained, honest about what is missing, and indifferent to odd studies."""

import dataclasses
import json
import re
import subprocess
import sys

import polars as pl
import pytest
from rich.console import Console
from study.tiny import BASELINE, LOWER, NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import figures, phrasing, terminal, verdicts
from flaxformer.report.files import write
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim
from flaxformer.study.divergence import RULE
from flaxformer.system.errors import UserError

SVG_ALONE = {"svg": figures.METADATA["svg"]}


def loss(trial):
    """A made-up world: a higher rate is better under pre-norm, and worse under post-norm."""
    labels = trial.arm.labels
    sign = -1 if labels.get("norm", "pre") == "pre" else 1
    return 3 + sign * 0.5 * (labels.get("rate") == "high") + 0.01 * (hash_of(trial.name) % 7)


def hash_of(name):
    return sum(ord(letter) * (i + 1) for i, letter in enumerate(name))


def printed(analysis):
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    terminal.show(console, analysis)
    console.file.close()
    return console.export_text()


def visible(page):
    """The words of a page, without figures."""
    return re.sub(r"<(svg|style|script).*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)


@pytest.mark.long
def test_a_report_is_a_page_tables_and_figures_in_files(tmp_path):
    study = tiny(seeds=range(6))
    store = fill(tmp_path, study, loss)
    write(store)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 6  # each figure for a phone and for a wider page
    for name in ("arms", "claims", "curves"):
        for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
            assert (tmp_path / f"figures/{name}.{kind}").read_bytes().startswith(start)
    assert "| pre | high |" in (tmp_path / "results.md").read_text()
    assert "pre & high &" in (tmp_path / "results.tex").read_text()
    table = pl.read_parquet(tmp_path / "results.parquet")
    assert table["trial"].to_list() == [trial.name for trial in study.trials()]
    assert table["fingerprint"].n_unique() == len(study.trials())


@pytest.mark.long
def test_the_first_lines_say_question_findings_and_limits(tmp_path):
    claims = [LOWER, Claim("low is better", lower={"rate": "low"}, than={"rate": "high"})]
    store = fill(tmp_path, tiny(seeds=range(6), claims=claims), loss)
    said = printed(write(store))
    for text in (said, visible(tmp_path / "report.html")):
        places = [text.index(part) for part in ("Does it run?", "supported", "refuted", "It is tiny.", "95 %")]
        assert places[0] < min(places[1:3])
        assert max(places[1:3]) < places[3]


def test_an_effect_that_changes_its_sign_elsewhere_is_reported_first(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(6), claims=[LOWER]), loss))
    first = analysis.exploratory_findings[0]
    assert (first.axis, first.label, first.context, first.is_opposite) == ("rate", "high", {"norm": "post"}, True)
    assert "opposite to the effect at the baseline" in printed(analysis)


@pytest.mark.long
def test_missing_failed_and_diverged_runs_are_reported_and_counted(tmp_path):
    study = tiny(seeds=range(4))
    store = fill(tmp_path, study, loss)
    [lines] = list(store.groups.glob("*"))
    rows = pl.read_parquet(lines).to_dicts()
    rows[0] |= {"status": "failed", "cause": "ValueError: no luck", "error": "Traceback …\nValueError: no luck"}
    rows[1] |= {"status": "diverged", "diverged_at": 3, "validation_loss": float("nan")}
    write_table(lines, rows[:-1])
    analysis = write(store)
    text = printed(analysis)
    assert "2 of 16 runs are missing" in text
    assert "1 failed: 1 × ValueError: no luck" in text
    assert "1 diverged" in text
    assert RULE in text
    assert "1 of 3 runs of norm pre, rate low diverged (rate 33%, 95 % interval 1% to 91%)." in text
    assert "ValueError: no luck" in (tmp_path / "report.html").read_text()
    by_seed = analysis.arms[0].scores
    assert by_seed[0] is None
    assert by_seed[1] == rows[1]["initial_validation_loss"]


@pytest.mark.every(4, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"axes": (), "claims": ()},
        {"axes": (NORM,), "claims": (), "seeds": [3]},
        {"seeds": [0]},
        {"seeds": range(2)},
        {"metric": "validation_accuracy"},
        {"combine": "one-factor", "claims": (LOWER,)},
        {"combine": "zip", "claims": ()},
        {"axes": (RATE, NORM)},
    ],
    ids=["no axes", "one seed, one axis", "one seed", "two seeds", "accuracy", "one-factor", "zip", "axes swapped"],
)
def test_odd_studies_have_reports_too(tmp_path, changes, monkeypatch):
    monkeypatch.setattr(figures, "METADATA", SVG_ALONE)
    study = tiny(**changes)
    write(fill(tmp_path, study, loss))
    text = printed(analyse(Store(tmp_path)))
    assert study.question in text
    for words in (text, visible(tmp_path / "report.html")):
        assert not re.search(r"\bnan\b", words.lower())


@pytest.mark.long
def test_results_of_stopped_runs_are_in_columns_of_their_own(tmp_path):
    store = fill(tmp_path, tiny(claims=()), loss)
    [lines] = list(store.groups.glob("*"))
    rows = pl.read_parquet(lines).to_dicts()
    rows[0] |= {"status": "stopped", "stopped_at": 3, "validation_loss": 99.0}
    write_table(lines, rows)
    analysis = write(store)
    table = pl.read_parquet(tmp_path / "results.parquet")
    first, rest = table.row(0, named=True), table[1:]
    assert (first["validation_loss"], first["validation_accuracy"]) == (None, None)
    assert (first["stopped_validation_loss"], first["stopped_validation_accuracy"], first["stopped_at"]) == (
        99.0,
        0.5,
        3,
    )
    assert rest["stopped_validation_loss"].null_count() == len(rest)
    means = table.group_by("norm", "rate", maintain_order=True).agg(pl.col("validation_loss").mean())
    for arm, mean in zip(analysis.arms, means["validation_loss"], strict=True):
        assert arm.estimate.mean == pytest.approx(mean)
    assert "validation loss (nats) there" in (tmp_path / "results.md").read_text()
    assert "there" not in printed(analysis)  # it has no room at 80 columns
    assert "stopped_validation_loss" not in pl.read_parquet(lines).columns  # only the report separates them


@pytest.mark.long
def test_the_best_values_of_a_sweep_are_in_every_form_of_the_report(tmp_path):
    rates = Axis("optimizer.learning_rate", {f"{n}e-3": n * 1e-3 for n in (1, 2, 4, 8)}, name="rate")
    study = tiny(axes=(NORM, rates), claims=())
    analysis = write(fill(tmp_path, study, lambda trial: abs(int(trial.arm.labels["rate"][0]) - 4) + loss(trial)))
    text = printed(analysis)
    for line in phrasing.sweep_findings(analysis):
        assert "best rate 0.004 of 4 values" in line
        assert line in text
        assert line in (tmp_path / "results.md").read_text()
    assert "best rate &" in (tmp_path / "results.tex").read_text()
    page = visible(tmp_path / "report.html")
    assert verdicts.verdict(analysis) in " ".join(page.split())
    assert "Best rate" in page
    assert all((tmp_path / f"figures/sweep.{kind}").exists() for kind in ("svg", "png", "pdf"))


@pytest.mark.long
def test_a_study_in_which_everything_diverged_is_reported(tmp_path):
    store = fill(tmp_path, tiny(claims=()), loss)
    [lines] = list(store.groups.glob("*"))
    rows = [row | {"status": "diverged", "diverged_at": 1} for row in pl.read_parquet(lines).to_dicts()]
    write_table(lines, rows)
    assert "12 diverged (rate 100%" in printed(write(store))


def test_a_folder_without_finished_runs_has_no_report(tmp_path):
    store = fill(tmp_path, tiny(), loss)
    for file in store.groups.glob("*"):
        file.unlink()
    with pytest.raises(UserError, match="no finished run"):
        write(store)


@pytest.mark.long
def test_the_report_is_the_same_bytes_each_time(tmp_path):
    store = fill(tmp_path, tiny(baseline=dataclasses.replace(BASELINE, seed=1)), loss)
    write(store)
    once = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".html", ".svg", ".png")}
    write(store)
    assert once == {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.name in once}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("command", ["status", "report"])
def test_results_are_shown_without_jax(tmp_path, command):
    """JAX would be two thirds of the time of `status`; `report` also shows a folder of claims and studies."""
    study = tmp_path / "01_case" / "study"
    fill(study, tiny(axes=(), claims=(), seeds=range(2)), loss)
    case = {"number": 1, "claim": "c", "source": "s", "seconds": 1.0, "quick": False, "evidence": [], "failure": ""}
    (study.parent / "case.json").write_text(json.dumps(case))
    folders = [study, tmp_path] if command == "report" else [study]
    code = "import sys; from flaxformer.cli import main; [main([sys.argv[1], folder]) for folder in sys.argv[2:]]"
    code += "; sys.exit('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, command, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
