"""The rule of divergence: one rule for scores, curves, derived numbers, halving, search and reports."""

import math

import pytest
from study.tiny import LOWER, NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import phrasing, tables, verdicts
from flaxformer.report.files import write
from flaxformer.runner.launch import derive_numbers
from flaxformer.runner.rungs import survivors
from flaxformer.store.rows import Row
from flaxformer.study import Claim, Halving
from flaxformer.study.divergence import MARGIN, RULE, CountedRow, curve_of, is_diverged, score

FIRST = 4.0


def row(losses, diverged_at=None, train=(), accuracies=None, **changes):
    """A run with these validation losses, of which the first is before training."""
    steps, accuracies = list(range(0, 10 * len(losses), 10)), accuracies or [0.1] * len(losses)
    fields = {
        "trial": "t",
        "group": "g",
        "seed": 0,
        "status": "done" if diverged_at is None else "diverged",
        "diverged_at": diverged_at,
        "evaluated_at": steps,
        "metrics": {
            "validation_loss": losses[-1],
            "initial_validation_loss": losses[0],
            "validation_accuracy": accuracies[-1],
            "initial_validation_accuracy": accuracies[0],
        },
        "curves": {"validation_loss": list(losses), "validation_accuracy": accuracies, "train_loss": list(train)},
    }
    return Row(**fields | changes)


JUST_BELOW, JUST_ABOVE = FIRST * (1 + MARGIN) - 1e-6, FIRST * (1 + MARGIN) + 1e-6
RISING, FALLING = [FIRST] * 20 + [50.0] * 20, [FIRST] * 20 + [0.1] * 20


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (row([FIRST, 2.0, 1.0]), False),
        (row([FIRST, 2.0, 1.0], diverged_at=15), True),
        (row([FIRST, 2.0, math.nan]), True),
        (row([FIRST, 2.0, math.inf]), True),
        (row([FIRST, 2.0, JUST_BELOW]), False),
        (row([FIRST, 2.0, JUST_ABOVE]), True),
        (row([FIRST, 2.0, 50.0], train=RISING), True),
        (row([FIRST, 2.0, 50.0], train=FALLING), False),  # it overfits
        (row([FIRST, 50.0, 2.0], train=RISING[:20]), False),  # it recovered
        (row([-1.0, -2.0, -0.95]), False),
        (row([-1.0, -2.0, -0.5]), True),
        (row([FIRST, 2.0, 1.0], train=[*FALLING, math.nan]), False),
    ],
)
def test_a_run_has_diverged_if_it_was_not_finite_or_its_loss_blew_up(one, expected):
    assert is_diverged(one) == expected
    for metric in ("validation_loss", "validation_accuracy"):
        final, initial = one[metric], one[f"initial_{metric}"]
        assert score(one, metric) == (initial if expected else final)
        assert CountedRow.of(one)[metric] == CountedRow.of(one).metrics[metric] == score(one, metric)
        assert curve_of(one, metric)[-1] == score(one, metric)


@pytest.mark.parametrize("diverged_at", [None, 11])
@pytest.mark.parametrize(
    "losses", [[FIRST, 2.0, 60.0, 50.0], [FIRST, 2.0, math.nan, math.nan], [FIRST, 2.0, 2.0, 2.0]], ids=str
)
def test_a_curve_is_as_measured_before_the_divergence_and_at_its_start_after_it(losses, diverged_at):
    one = row(losses, diverged_at, accuracies=[0.1, 0.5, 0.6, 0.7])
    counts = is_diverged(one)
    assert curve_of(one, "validation_loss") == ([FIRST, 2.0, FIRST, FIRST] if counts else losses)
    assert curve_of(one, "validation_accuracy") == ([0.1, 0.5, 0.1, 0.1] if counts else [0.1, 0.5, 0.6, 0.7])


def world(blow_up):
    """Losses of a study in which `high` is better, and one of its runs ends with the given loss."""

    def loss(trial):
        is_high = trial.arm.labels["rate"] == "high"
        lost = is_high and trial.arm.labels["norm"] == "pre" and trial.seed == 3
        return blow_up if lost else 2.0 - is_high + 0.01 * trial.seed * is_high

    return loss


@pytest.mark.parametrize("blow_up", [1e3, math.nan])
def test_finite_and_non_finite_blow_ups_count_alike_everywhere(tmp_path, blow_up):
    def derive(rows):
        return {"gap": rows["norm=pre,rate=low"]["validation_loss"] - rows["norm=pre,rate=high"]["validation_loss"]}

    claims = (LOWER, Claim("gap", higher={"quantity": "gap"}, than=0))
    study = tiny(seeds=range(6), claims=claims, derive=derive)
    store = fill(tmp_path, study, world(blow_up))
    gaps = derive_numbers(study, store.rows())
    analysis = analyse(store)
    claim, gap = analysis.claims
    assert claim.differences == pytest.approx([one["values"]["gap"] for one in gaps])
    assert claim.differences[3] == gap.differences[3] == 2.0 - 9.0
    [arm] = [arm for arm in analysis.arms if arm.labels == {"norm": "pre", "rate": "high"}]
    assert (arm.diverged, arm.scores[3]) == (1, 9.0)
    assert arm.curve("validation_loss")[1][-1].mean == pytest.approx(arm.estimate.mean)
    halved = tiny(axes=(NORM, RATE), seeds=range(6), claims=(), halving=Halving(factor=2, first=3))
    best = survivors(halved, [one for one in halved.arms() if one.labels["norm"] == "pre"], store.rows())
    assert [one.labels["rate"] for one in best] == ["low"]


def test_reports_state_the_rule_and_the_claim_with_and_without_diverged_runs(tmp_path):
    store = fill(tmp_path, tiny(seeds=range(8), claims=(LOWER,)), world(1e3))
    analysis = write(store)
    [claim] = analysis.claims
    assert (claim.context.diverged, claim.judgement.verdict) == (1, "inconclusive")
    assert claim.context.without_diverged.verdict == "supported"
    assert claim.context.without_diverged.effect.n == 7
    assert "divergence decides" in claim.judgement.qualifications
    [line] = [line for line in verdicts.qualifications(claim) if "diverged" in line]
    assert line == "diverged runs decide: without them the verdict is supported"
    assert verdicts.without_diverged(claim).startswith("without 1 seed with a diverged run: +0.96")
    [found] = tables.without_diverged(analysis).in_form("page").rows
    assert found[-3:] == ["inconclusive", "supported", "1 of 8"]
    document = (tmp_path / "results.md").read_text()
    for text in (document, (tmp_path / "report.html").read_text()):
        assert RULE in text
        assert "1 of 8 runs of norm pre, rate high diverged (rate 12%, 95 % interval 0% to 53%)." in text
        assert "diverged runs decide: without them the verdict is supported" in text


def test_a_report_without_diverged_runs_states_the_rule_too(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(seeds=range(4), claims=(LOWER,)), world(1.0)))
    assert analysis.limits[0] == RULE
    assert analysis.claims[0].context.without_diverged is None
    assert not tables.without_diverged(analysis).in_form("page").rows
    assert "0 diverged" in "; ".join(phrasing.describe_runs(analysis))
