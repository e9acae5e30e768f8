"""An interaction is not said to help where it hurts: its verdict is qualified by the signs of its simple effects."""

import io

import pytest
from rich.console import Console
from study.tiny import INTERACTION, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import markdown, tables, verdicts
from flaxformer.report.document import document
from flaxformer.report.files import write
from flaxformer.report.terminal import show
from flaxformer.study import Claim

BOTH = (
    "the effect is not in the claimed direction in either arm: it is less against it with norm pre than with norm post"
)
ONE = "the effect is in the claimed direction with norm pre only, and against it with norm post"
GAINS = {(0.5, 0.2): "", (0.5, -0.2): ONE, (0.5, 0.0): ONE, (-0.2, -0.5): BOTH, (0.0, -0.5): BOTH}
"""Loss that the high rate saves with pre-norm and with post-norm, and the qualification of "helps pre more"."""
ANSWERS = {"supported": "Yes: it helps more.", "refuted": "No.", "inconclusive": "Unknown."}


def losses(gains):
    """Losses in which the high rate saves so much; the simple effects are exact, their difference varies a little."""

    def loss(trial):
        is_high, is_pre = trial.arm.labels["rate"] == "high", trial.arm.labels["norm"] == "pre"
        wobble = 0.001 * (trial.seed - 3.5) * is_pre if gains[0] else 0.001 * (trial.seed - 3.5) * (not is_pre)
        return 3.0 - is_high * (gains[not is_pre] + wobble) + 0.1 * trial.seed

    return loss


def judged(tmp_path, gains, *others):
    claim = Claim(
        INTERACTION.text, lower={"rate": "high"}, than={"rate": "low"}, where={"norm": "pre"},
        more_than_where={"norm": "post"}, answers=ANSWERS,
    )  # fmt: skip
    return fill(tmp_path, tiny(seeds=range(8), claims=(claim, *others)), losses(gains))


@pytest.mark.every(4, "long")
@pytest.mark.parametrize(("gains", "expected"), GAINS.items(), ids=map(str, GAINS))
@pytest.mark.parametrize("others", [(), (Claim("high is lower", lower={"rate": "high"}, than={"rate": "low"}),)])
def test_a_supported_interaction_says_where_its_effects_are_against_it(tmp_path, gains, expected, others):
    analysis = analyse(judged(tmp_path, gains, *others))
    claim = analysis.claims[0]
    assert claim.judgement.verdict == "supported"
    assert verdicts.direction(claim) == expected
    word = "supported as a difference" if expected else "supported"
    assert tables.claims(analysis).in_form("page").rows[0][1] == word
    answer = f"Yes: it helps more. But {expected}." if expected else "Yes: it helps more. "
    assert verdicts.answer(analysis.claims).startswith(answer)
    out = io.StringIO()
    show(Console(width=500, file=out), analysis)
    for text in (out.getvalue(), markdown.render(document(analysis)), verdicts.verdict(analysis)):
        assert expected in text
        assert bool(expected) == ("claimed direction" in text)
    assert f"✓ {word}: {claim.text}" in out.getvalue()


@pytest.mark.long
def test_the_page_says_it_too(tmp_path):
    write(judged(tmp_path, (-0.2, -0.5)))
    for name in ("report.html", "results.md"):
        assert BOTH in (tmp_path / name).read_text()


def test_a_refuted_or_equal_interaction_has_no_such_qualification(tmp_path):
    reverse = Claim(
        "high helps post more", lower={"rate": "high"}, than={"rate": "low"}, where={"norm": "post"},
        more_than_where={"norm": "pre"},
    )  # fmt: skip
    equal = Claim(
        "high helps both alike", equal={"rate": "high"}, to={"rate": "low"}, where={"norm": "pre"},
        more_than_where={"norm": "post"}, within=2.0,
    )  # fmt: skip
    study = tiny(seeds=range(8), claims=(reverse, equal))
    analysis = analyse(fill(tmp_path, study, losses((-0.2, -0.5))))
    assert [one.judgement.verdict for one in analysis.claims] == ["refuted", "supported"]
    assert not any("simple effects" in one.judgement.qualifications for one in analysis.claims)
