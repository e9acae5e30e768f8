"""Results beside a verdict: simple effects, qualifications, the answer to the question, and exploratory findings."""

import numpy as np
import pytest
from rich.console import Console
from study.tiny import INTERACTION, LOWER, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import phrasing, tables, terminal, verdicts
from flaxformer.report.files import write
from flaxformer.statistics.judgement import judge_difference
from flaxformer.study import Axis, Claim
from flaxformer.system.errors import UserError

ANSWERS = {"supported": "Yes, it is.", "refuted": "No, it is not.", "inconclusive": "Nobody knows."}
SCALES = Axis("model.attention.scale_exponent", {"none": 0, "1/√d": 0.5, "1/d": 1}, name="scale")


def world(pre, post, noise=0.05, seed=0):
    """Losses in which `high` lowers the loss by `pre` under pre-norm and by `post` under post-norm."""
    random = np.random.default_rng(seed)

    def loss(trial):
        gain = {"pre": pre, "post": post}[trial.arm.labels["norm"]]
        return 5.0 - gain * (trial.arm.labels["rate"] == "high") + noise * random.normal()

    return loss


def printed(analysis):
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    terminal.show(console, analysis)
    console.file.close()
    return console.export_text()


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["lower", "higher"])
def test_an_interaction_is_shown_with_the_two_effects_that_it_compares(tmp_path, kind):
    arms = {"lower": {"rate": "high"}, "than": {"rate": "low"}}
    if kind == "higher":
        arms = {"higher": {"rate": "low"}, "than": {"rate": "high"}}
    claim = Claim("more", **arms, where={"norm": "pre"}, more_than_where={"norm": "post"})
    analysis = write(fill(tmp_path, tiny(seeds=range(8), claims=[claim]), world(2.0, 0.5)))
    [judged] = analysis.claims
    pre, post = judged.context.simple_effects
    assert (pre.context, post.context) == ({"norm": "pre"}, {"norm": "post"})
    np.testing.assert_allclose([pre.judgement.effect.mean, post.judgement.effect.mean], [2.0, 0.5], atol=0.1)
    np.testing.assert_allclose(
        pre.judgement.effect.mean - post.judgement.effect.mean, judged.judgement.effect.mean, rtol=1e-9
    )
    contrast = "rate high against low" if kind == "lower" else "rate low against high"
    for text in (printed(analysis), (tmp_path / "results.md").read_text(), (tmp_path / "report.html").read_text()):
        for one, gain in ((pre, "+1.9"), (post, "+0.")):
            assert phrasing.interval(one.judgement.effect, "+") in text
            assert phrasing.interval(one.judgement.effect, "+").startswith(gain)
        assert contrast in text
    assert not [one for one in analysis.explorations if one.axis == "rate"]


def test_a_claim_without_an_interaction_has_no_simple_effects(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(4), claims=[LOWER]), world(1.0, 1.0)))
    assert analysis.claims[0].context.simple_effects == ()
    assert not tables.simple_effects(analysis).in_form("page").rows


@pytest.mark.every(3)
@pytest.mark.parametrize(("pre", "verdict"), [(1.0, "supported"), (-1.0, "refuted"), (0.0, "inconclusive")])
def test_the_report_begins_with_the_answer_to_its_question(tmp_path, pre, verdict):
    claim = Claim("high is better", lower={"rate": "high"}, than={"rate": "low"}, answers=ANSWERS)
    analysis = write(fill(tmp_path, tiny(seeds=range(8), claims=[INTERACTION, claim]), world(pre, 0.0)))
    assert analysis.claims[1].judgement.verdict == verdict
    assert verdicts.verdict(analysis).startswith(f"{ANSWERS[verdict]} ")
    lines = printed(analysis).splitlines()
    assert lines.index(ANSWERS[verdict]) < 3
    assert (tmp_path / "results.md").read_text().splitlines()[2].startswith(ANSWERS[verdict])


def test_answers_are_given_for_each_verdict():
    with pytest.raises(UserError, match="expected one for each of inconclusive, refuted, supported"):
        Claim("it is", lower={"rate": "high"}, than=1, answers={"supported": "Yes."})


def test_every_qualification_has_a_sentence_and_stands_beside_the_verdict(tmp_path):
    values = [1.0, 1.1, 0.9, 1.0, 9.0]

    def loss(trial):
        return 5.0 - values[trial.seed] * (trial.arm.labels["rate"] == "high")

    analysis = write(fill(tmp_path, tiny(seeds=range(5), claims=[LOWER]), loss))
    [claim] = analysis.claims
    assert set(claim.judgement.qualifications) == {"ties", "few seeds", "skewed", "outlier"}
    sentences = verdicts.qualifications(claim)
    assert "ties: 5 seeds have 4 different values" in sentences
    assert any("at 9" in sentence for sentence in sentences)
    for sentence in sentences:
        assert sentence in (tmp_path / "results.md").read_text()
        assert sentence in printed(analysis)


def test_an_effect_is_opposite_only_to_a_significant_one(tmp_path):
    def opposite(name, pre, seed=0):
        study = tiny(seeds=range(8), claims=[])
        analysis = analyse(fill(tmp_path / name, study, world(pre, -1.0, seed=seed)))
        found = [one for one in analysis.explorations if one.axis == "rate" and one.context == {"norm": "post"}]
        assert found[0].is_significant
        return found[0].is_opposite

    assert opposite("clear", 1.0)
    assert not any(opposite(f"none {seed}", 0.0, seed) for seed in range(6))  # in half of them, noise has that sign


@pytest.mark.slow
def test_studies_without_any_effect_have_a_finding_in_1_report_of_10_at_most(tmp_path):
    count, found = 60, 0
    for i in range(count):
        study = tiny(seeds=range(6), claims=(), axes=(*tiny().axes, SCALES))
        analysis = analyse(fill(tmp_path / str(i), study, world(0.0, 0.0, seed=i)))
        assert len(analysis.explorations) == 20
        found += bool(analysis.exploratory_findings)
    assert found <= 0.1 * count + 2 * (0.1 * 0.9 * count) ** 0.5


def test_the_family_of_effects_at_the_baseline_has_no_test_of_a_level_against_itself(tmp_path):
    """Two axes of two levels: two tests, by which a p-value of 0.02 is 0.04."""
    noise = np.random.default_rng(2).standard_normal(8)
    shift = next(mean for mean in np.arange(0.0, 3.0, 0.01) if 0.015 < judge_difference(mean + noise).p < 0.02)

    def loss(trial):
        is_high, is_pre = (trial.arm.labels[name] == level for name, level in (("rate", "high"), ("norm", "pre")))
        return is_high * (float(shift + noise[trial.seed]) if is_pre else -9.0 - 0.1 * trial.seed)

    [opposite] = [one for one in analyse(fill(tmp_path, tiny(seeds=range(8), claims=()), loss)).explorations
                  if (one.axis, one.context) == ("rate", {"norm": "post"})]  # fmt: skip
    assert opposite.is_opposite
