"""`flaxformer compare`: what differs between two folders, and paired differences where arms and seeds coincide."""

import pytest
from study.tiny import BASELINE, NORM, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.compare import compare
from flaxformer.cli import main
from flaxformer.core.paths import replace_at
from flaxformer.statistics.estimates import estimate
from flaxformer.study import Axis, Claim
from flaxformer.system.errors import UserError


def loss(trial):
    return 1.5 + trial.seed / 7 + (trial.arm.labels.get("rate") == "high")


@pytest.fixture
def one(tmp_path):
    return analyse(fill(tmp_path / "a", tiny(), loss))


def test_shared_arms_are_compared_seed_by_seed(tmp_path, one):
    shifts = {0: 0.125, 1: 0.25, 2: 0.5}
    changed = tiny(baseline=replace_at(BASELINE, {"optimizer.beta2": 0.99}), seeds=range(1, 6))
    other = analyse(fill(tmp_path / "b", changed, lambda trial: loss(trial) + shifts.get(trial.seed, 9.0)))
    found = compare(one, other)
    assert [pair.labels for pair in found.arms] == [arm.labels for arm in one.arms]
    for pair in found.arms:
        assert pair.difference.n == 2
        assert pair.difference.mean == pytest.approx(0.375)
        assert pair.difference.high == pytest.approx(estimate([0.25, 0.5]).high)
    assert found.recipes == {"": ["optimizer.beta2: 0.98 -> 0.99"]}
    assert found.settings == ["seeds: [0, 1, 2] -> [1, 2, 3, 4, 5]"]
    assert [pair.text for pair in found.claims] == [claim.text for claim in one.claims]


def test_a_difference_of_one_arm_names_it(tmp_path, one):
    axes = (NORM, Axis("optimizer.learning_rate", {"low": 1e-3, "high": 3e-2}, name="rate"))
    found = compare(one, analyse(fill(tmp_path / "b", tiny(axes=axes), loss)))
    line = "optimizer.learning_rate: 0.01 -> 0.03"
    assert found.recipes == {"norm=pre,rate=high": [line], "norm=post,rate=high": [line]}


def test_arms_and_claims_of_one_study_alone_have_no_partner(tmp_path, one):
    claim = Claim("low is better", lower={"rate": "low"}, than={"rate": "high"}, where={"norm": "pre"})
    levels = {"low": 1e-3, "high": 1e-2, "higher": 1e-1}
    axes = (NORM, Axis("optimizer.learning_rate", levels, name="rate"))
    found = compare(one, analyse(fill(tmp_path / "b", tiny(axes=axes, claims=[claim]), loss)))
    alone = [pair for pair in found.arms if pair.a is None]
    assert [pair.labels["rate"] for pair in alone] == ["higher", "higher"]
    assert {pair.difference.n for pair in alone} == {0}
    assert [(pair.text, pair.a is None) for pair in found.claims][-1] == ("low is better", True)


def test_no_difference_is_taken_between_different_metrics(tmp_path, one):
    found = compare(one, analyse(fill(tmp_path / "b", tiny(metric="validation_accuracy"), loss)))
    assert not found.has_same_metric
    assert {pair.difference.n for pair in found.arms} == {0}


def test_studies_with_nothing_in_common_are_refused(tmp_path, one):
    axes = (Axis("optimizer.beta1", {"small": 0.5, "large": 0.9}),)
    other = analyse(fill(tmp_path / "b", tiny(axes=axes, claims=[]), loss))
    with pytest.raises(UserError, match=r"no arm and no claim in common .*norm=pre, rate=low.*beta1=small"):
        compare(one, other)


def test_the_command_prints_both_sides_from_the_folders_alone(tmp_path, one, capsys, monkeypatch):
    fill(tmp_path / "b", tiny(), lambda trial: loss(trial) + 0.25)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "The recipes of the arms that both have are the same." in out
    assert out.count("+0.25") == 4
    assert out.count("inconclusive") + out.count("supported") + out.count("refuted") == 6
    assert main(["compare", "a", "nowhere"]) == 2
    assert "no folder 'nowhere'" in capsys.readouterr().err
