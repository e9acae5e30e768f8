"""The report: complete, self-contained, honest about what is missing, and indifferent to odd studies."""

import dataclasses
import re

import polars as pl
import pytest
from rich.console import Console
from study.tiny import BASELINE, LOWER, NORM, RATE, fill, tiny

from flaxformer.report import figures, terminal
from flaxformer.report.write import write
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.struct import UserError
from flaxformer.study import Claim
from flaxformer.study.analysis import analyse

SVG_ALONE = {"svg": figures.STAMPS["svg"]}


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
    return re.sub(r"<(svg|style).*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)


def test_a_report_is_a_page_tables_and_figures_in_files(tmp_path):
    study = tiny(seeds=range(6))
    store = fill(tmp_path, study, loss)
    write(store)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    for name in ("arms", "claims", "curves"):
        for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
            assert (tmp_path / f"figures/{name}.{kind}").read_bytes().startswith(start)
    assert "| pre | high |" in (tmp_path / "results.md").read_text()
    assert "pre & high &" in (tmp_path / "results.tex").read_text()
    table = pl.read_parquet(tmp_path / "results.parquet")
    assert table["trial"].to_list() == [trial.name for trial in study.trials()]
    assert table["fingerprint"].n_unique() == len(study.trials())


def test_the_first_lines_say_question_findings_and_limits(tmp_path):
    claims = [LOWER, Claim("low is better", lower={"rate": "low"}, than={"rate": "high"})]
    store = fill(tmp_path, tiny(seeds=range(6), claims=claims), loss)
    said = printed(write(store))
    for text in (said, visible(tmp_path / "report.html")):
        places = [text.index(part) for part in ("Does it run?", "supported", "refuted", "It is tiny.", "95 %")]
        assert places[0] < min(places[1:3])
        assert max(places[1:3]) < places[3]


def test_an_effect_that_turns_around_elsewhere_is_told_first(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(6), claims=[LOWER]), loss))
    first = analysis.exploratory_findings[0]
    assert (first.axis, first.label, first.context, first.opposite) == ("rate", "high", {"norm": "post"}, True)
    assert "against the direction around the baseline" in printed(analysis)


def test_what_is_missing_failed_or_diverged_is_said_and_counted(tmp_path):
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
    assert "1 failed: ValueError: no luck" in text
    assert "1 diverged" in text
    assert "ValueError: no luck" in (tmp_path / "report.html").read_text()
    by_seed = analysis.arms[0].scores
    assert by_seed[0] is None
    assert by_seed[1] == rows[1]["initial_validation_loss"]


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
    monkeypatch.setattr(figures, "STAMPS", SVG_ALONE)
    study = tiny(**changes)
    write(fill(tmp_path, study, loss))
    text = printed(analyse(Store(tmp_path)))
    assert study.question in text
    for words in (text, visible(tmp_path / "report.html")):
        assert not re.search(r"\bnan\b", words.lower())


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


def test_the_report_is_the_same_bytes_each_time(tmp_path):
    store = fill(tmp_path, tiny(baseline=dataclasses.replace(BASELINE, seed=1)), loss)
    write(store)
    once = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".html", ".svg", ".png")}
    write(store)
    assert once == {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.name in once}
