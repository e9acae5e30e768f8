"""The last lines of `run` and `report` hold the answer on a terminal of 80 × 24, and `--full` the rest."""

import io
import itertools

import pytest
from rich.console import Console
from study.tiny import EQUAL, INTERACTION, LOWER, NORM, RATE, fill, tiny

from flaxformer import Claim
from flaxformer.analysis.analysis import analyse
from flaxformer.cli.parsing import overrides_of
from flaxformer.cli.show import show_report
from flaxformer.report.terminal import MOST_CLAIMS, show_answer
from flaxformer.store.store import Store


def scores(trial):
    is_high = trial.arm.labels.get("rate") == "high"
    noise = 0.002 * ((7 * trial.seed + 3 * is_high + 5 * (trial.arm.labels["norm"] == "pre")) % 11)
    return 2.0 - 0.3 * is_high + noise


def study(folder, **changes):
    return fill(folder, tiny(seeds=range(6), **changes), scores)


def shown(analysis, overrides=()):
    out = io.StringIO()
    show_answer(Console(file=out, width=80), analysis, overrides)
    return out.getvalue()


MANY = [
    Claim(f"high is better than low by more than 0.0{n}", lower={"rate": "high"}, than={"rate": "low"}, by=0.01 * n)
    for n in range(1, 10)
]
STUDIES = {
    "one claim": {"claims": (LOWER,)},
    "three claims": {"claims": (LOWER, INTERACTION, EQUAL)},
    "nine claims": {"claims": MANY},
    "no claim": {"claims": ()},
    "no claim and one axis": {"claims": (), "axes": (NORM,)},
    "long caveats": {"caveats": [f"{n} {'words ' * 20}" for n in range(9)]},
}


@pytest.mark.parametrize("name", STUDIES)
def test_the_answer_fits_a_screen(tmp_path, name):
    text = shown(analyse(study(tmp_path, **STUDIES[name])), ("model.layers=4", "--seeds 6"))
    lines = text.splitlines()
    assert len(lines) <= 24 - 4  # the paths, the remark on --full, and the prompt of the shell
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Does it run?"
    assert "Overridden: model.layers=4 --seeds 6" in text


def test_every_claim_has_a_verdict_and_an_effect(tmp_path):
    text = " ".join(shown(analyse(study(tmp_path, claims=(LOWER, EQUAL)))).split())
    assert "✓ supported: high is better than low (+0.2" in text or "(+0.30" in text
    assert "✓ supported: pre and post are alike (" in text
    assert "speed-up" not in text
    assert "A run has diverged if" not in text


def test_claims_beyond_the_first_are_counted(tmp_path):
    text = shown(analyse(study(tmp_path, claims=MANY)))
    assert f"and {len(MANY) - MOST_CLAIMS} more claims" in text


def test_without_claims_the_arms_are_the_answer(tmp_path):
    text = shown(analyse(study(tmp_path, claims=())))
    for norm, rate in itertools.product(NORM.levels, RATE.levels):
        assert any(norm in line and rate in line for line in text.splitlines())


def test_a_warning_is_shown_however_many_caveats_there_are(tmp_path):
    changes = {"claims": (LOWER,), "caveats": [f"Caveat {n}." for n in range(9)]}
    fill(tmp_path, tiny(seeds=range(4), **changes), scores)
    analysis = analyse(fill(tmp_path, tiny(seeds=range(10, 16), **changes), scores))
    text = " ".join(shown(analysis).split())
    assert analysis.limits.index(analysis.warnings[-1]) > 0
    assert [warning for warning in analysis.warnings if warning not in text] == []
    assert "1 further set of seeds was tried" in text
    assert "Caveat 8." not in text


def test_full_prints_tables_effects_and_every_limit(tmp_path, capsys):
    store = study(tmp_path, claims=(LOWER,))
    texts = {}
    for is_full in (False, True):
        out = io.StringIO()
        assert show_report(Store(store.root), Console(file=out, width=80), is_full) == 0
        texts[is_full] = out.getvalue()
    last = texts[True].splitlines()[-24:]
    assert any(line.startswith("Does it run?") for line in last)
    assert any("✓ supported" in line for line in last)
    assert "A run has diverged if" in texts[True]
    assert "declared before its data" in texts[True]
    assert texts[False].rstrip().endswith("report.html")
    assert len(texts[False].splitlines()) < len(texts[True].splitlines())


def test_overrides_are_those_of_the_last_command():
    launches = [{"command": "flaxformer run a.py model.layers=2"}, {"command": "flaxformer run a.py --seeds 3"}]
    assert overrides_of(launches) == ("--seeds 3",)
    assert overrides_of(launches[:1]) == ("model.layers=2",)
    assert overrides_of([{"command": "python other.py"}]) == ()
