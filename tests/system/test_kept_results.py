"""Results that are kept although their code has changed: they count, and a report says so."""

from pathlib import Path

import pytest

from flaxformer.analysis.analysis import analyse
from flaxformer.cli import main
from flaxformer.store.store import Store

FILE = """
from study.tiny import *

def measure(params, run):
    return {"moved": params.embedding.tokens.std() * FACTOR}

RATE = Axis("optimizer.learning_rate", name="rate", levels={"low": 1e-3, "high": 2e-3})
study = tiny(measure=measure, claims=(), axes=[RATE])
"""


def run(*words):
    return main(["run", "tiny.py", "--output", "out", *map(str, words)])


def scores():
    analysis = analyse(Store(Path("out")))
    return [score for arm in analysis.arms for score in arm.scores], analysis


def write(factor):
    Path("tiny.py").write_text(FILE.replace("FACTOR", factor))


@pytest.mark.long
def test_kept_results_count_until_they_are_trained_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("1.0")
    assert run("--seeds", "0:2") == 0
    before, analysis = scores()
    write("2.0")
    assert run("--seeds", "0:2") == 2
    assert run("--seeds", "0:2", "--on-code-change", "keep") == 0
    kept, analysis = scores()
    assert (kept, analysis.missing, analysis.results.foreign) == (before, 0, [])
    assert any("results of the earlier code were kept: 4" in limit for limit in analysis.limits)
    assert run("--seeds", "0:3") == 0  # further seeds, by the new code; the kept ones stay
    more, analysis = scores()
    assert [more[0:2], more[3:5]] == [before[:2], before[2:]]
    assert (analysis.missing, analysis.results.foreign) == (0, [])
    write("3.0")
    assert run("--seeds", "0:3", "--on-code-change", "keep") == 0  # kept twice, of two earlier codes
    assert scores()[0] == more
    write("2.0")
    assert run("--seeds", "0:3", "--on-code-change", "retrain") == 0
    again, analysis = scores()
    assert (again, analysis.missing, analysis.results.foreign) == (more, 0, [])  # the metric does not depend on measure
    assert Store(Path("out")).read_declaration().kept_results == {}
