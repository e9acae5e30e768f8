"""The index: every study and probe of a folder, finished, begun or damaged, on one page that leads to each."""

import re
import signal

import pytest
from ledger.ledgers import begun
from study.tiny import LOWER, fill, tiny

from flaxformer.claims.record import NAME
from flaxformer.cli import main
from flaxformer.ledger import log
from flaxformer.report import figures, index
from flaxformer.runner.probes import run_probe
from flaxformer.store.records import write_document, write_table
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.system import digests
from flaxformer.system.errors import UserError


def losses(trial):
    return 2.0 + 0.1 * trial.seed - (1 + 0.01 * trial.seed) * (trial.arm.labels["rate"] == "high")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A finished study, one with a missing run, a probe two folders down, one without runs, and a damaged one."""
    monkeypatch.setattr(figures, "METADATA", {"svg": figures.METADATA["svg"]})
    fill(tmp_path / "whole", tiny(seeds=range(6), claims=[LOWER]), losses)
    part = fill(tmp_path / "part", tiny(seeds=range(6), claims=[LOWER]), losses)
    [rows] = part.groups.glob("*")
    write_table(rows, list(part.rows().values())[:-1])
    claims = [Claim("it is < 3", lower={"quantity": "x"}, than=3)]
    probe = Probe(
        name="p", question="How <large>?", measure=lambda seed: {"x": 1.0 + seed}, seeds=[0, 1], claims=claims
    )
    list(run_probe(probe, Store(tmp_path / "claims/01_size/p")))
    [rows] = fill(tmp_path / "begun", tiny(), losses).groups.glob("*")
    rows.unlink()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/study.json").write_text("{")
    return tmp_path


@pytest.fixture
def report(capsys):
    """Run `flaxformer report`; returns exit code, output and errors."""
    before = signal.getsignal(signal.SIGTERM)

    def call(folder):
        code = main(["report", str(folder)])
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    yield call
    signal.signal(signal.SIGTERM, before)


def test_every_study_below_the_folder_has_its_line(runs):
    found = {one.name: one for one in index.entries(runs)}
    assert list(found) == ["begun", "claims/01_size/p", "damaged", "part", "whole"]
    assert found["whole"].runs == "24 runs"
    assert found["whole"].verdict.startswith("Supported: high is better than low")
    assert found["part"].runs == "23 of 24 runs, 1 missing"
    assert found["part"].verdict.startswith("With 1 run missing: Supported")
    assert (found["claims/01_size/p"].runs, found["claims/01_size/p"].seeds) == ("2 seeds", "2")
    assert found["begun"].verdict == "No results yet."
    assert "damaged" in found["damaged"].verdict


def test_the_report_of_a_folder_of_studies_is_every_report_and_the_page_that_leads_to_them(runs, report):
    code, out, err = report(runs)
    assert (code, err) == (0, "")
    assert "Supported: high is better than low" in out
    text = (runs / "index.html").read_text()
    assert "How &lt;large&gt;?" in text
    links = re.findall(r'<a href="([^"]*)"', text)
    assert links == ["claims/01_size/p/report.html", "part/report.html", "whole/report.html"]
    assert all((runs / link).is_file() for link in links)
    assert report(runs / "whole")[1].startswith("Does it run?")
    assert not (runs / "whole/index.html").exists()


def test_the_index_of_claims_is_their_table(runs, report):
    case = '{"number": 1, "claim": "Sizes are <small>.", "source": "A text", "seconds": 3.0, "quick": false, '
    (runs / "claims/01_size" / NAME).write_text(case + '"evidence": ["p", "never_run"], "failure": "no luck"}')
    assert report(runs / "claims")[0] == 0
    text = (runs / "claims/index.html").read_text()
    for part in ("1. Sizes are &lt;small&gt;.", "A text", "1 inconclusive, 1 failed", "no luck", "weaker"):
        assert (part in text) == (part != "weaker")
    assert '<a href="01_size/p/report.html">it is &lt; 3</a>' in text
    _, _, *lines = (runs / "claims/claims.md").read_text().splitlines()
    assert lines[0].count("|") == lines[2].count("|")
    assert "1. Sizes are &lt;small>." in lines[2]
    assert "Sizes" not in lines[3]
    assert (runs / "claims/claims.tex").read_text().isascii()


def test_jobs_are_in_the_index_with_their_scores(tmp_path, report):
    for name in ("long", "short"):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        write_document(folder / "config.json", {"run": {"training": {"steps": 4}}})
        lines = [
            {"kind": "steps", "step": 4, "loss": [2.0, 1.0]},
            {"kind": "evaluation", "step": 4, "validation_loss": 1.5},
        ]
        (folder / "log.jsonl").write_bytes(b"".join(map(digests.line, lines)))
    (tmp_path / "jobs/long/config.json").write_text("{")
    code, out, err = report(tmp_path)
    assert (code, err) == (0, "")
    assert "jobs/short finished: 4 of 4 steps; best validation loss 1.5 after step 4." in out
    text = (tmp_path / "index.html").read_text()
    assert re.findall(r'<a href="([^"]*)"', text) == ["jobs/short/report.html"]
    assert "config.json holds no run" in text


def test_a_folder_without_a_study_says_what_it_holds(tmp_path):
    for name, file in {"job": "config.json", "ledger": "ledger.jsonl", "runs/a": "study.json", "runs/b": "x"}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text("{}")
    for name, message in {
        "job": r"job holds no study \(no study.json\), but a training job; expected the output folder of 'run'$",
        "ledger": "but a ledger; expected",
        "runs": "expected the output folder of 'run': .*runs/a$",
        "runs/b": r"b holds no study \(no study.json\); expected the output folder of 'run'$",
    }.items():
        with pytest.raises(UserError, match=message):
            Store(tmp_path / name).declaration  # noqa: B018


def test_a_folder_without_studies_has_no_index(tmp_path):
    with pytest.raises(UserError, match="hold no study"):
        index.write_index(tmp_path, index.entries(tmp_path))


def test_a_ledger_has_one_line_and_its_attempts_none(tmp_path, report):
    (tmp_path / "book").mkdir()
    log.append(tmp_path / "book", [], begun())
    fill(tmp_path / "book/attempts/001", tiny(), losses)
    code, out, _ = report(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert (code, "No attempt was made yet." in out) == (0, True)
    assert 'href="book/report.html"' in page
    assert (tmp_path / "book/report.html").is_file()
    assert "attempts/001" not in page + out
