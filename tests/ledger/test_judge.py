"""Judgement of an attempt, against a loop over looks."""

import math

import numpy as np
import pytest
from ledger.ledgers import begun

from flaxformer.ledger.judge import ENDS, decide, judge
from flaxformer.statistics import sequential


def naive(x, ledger, level):
    """The end of an attempt and its pairs, look by look."""
    for n in range(1, len(x) + 1):
        if n % ledger.together and n != ledger.seeds:
            continue
        seen = np.array(x[:n])
        if n >= 3 and all(value == 0 for value in seen):
            return "unchanged", n
        if sequential.evidence(seen)[-1] >= math.log(1 / level):
            return "kept", n
        if sequential.evidence(ledger.effect - seen)[-1] >= math.log(1 / ledger.false_drops):
            return "dropped", n
    return "open", len(x)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("effect", [0.0, 0.5, 1.5])
def test_an_attempt_ends_at_the_first_look_that_decides(effect, together):
    ledger = begun(together=together)
    x = np.random.default_rng(0).standard_normal((40, ledger.seeds)) + effect
    x[:2] = 0
    pairs, ends = decide(x, ledger, 0.01)
    for row, n, end in zip(x, pairs, ends, strict=True):
        assert (ENDS[end], n) == naive(list(row), ledger, 0.01)


def test_an_attempt_can_end_in_every_way():
    ledger = begun(seeds=8, effect=2.0)
    better, noise = [3.0, 3.1, 2.9, 3.2, 3.0, 2.8, 3.1, 3.0], [2.0, -1.0, 4.1, 2.3, 0.5, 5.2, -0.2, 2.2]
    scores = {"kept": better, "dropped": [-value for value in better], "open": noise, "unchanged": [0.0] * 8}
    for verdict, improvements in scores.items():
        best = [5.0] * 8
        evidence = judge(ledger, 0.05, best, [b - i for b, i in zip(best, improvements, strict=True)])
        assert evidence.verdict == verdict
        assert (evidence.limits[0] > 0) == (verdict == "kept")
        assert (evidence.limits[1] < ledger.effect) == (verdict == "dropped")
    assert judge(ledger, 0.05, best[:3], [4.0, 5.5, 4.4]).verdict is None
    failed = judge(ledger, 0.05, [5.0, 5.0, None], [4.0, 5.5, 4.4])
    assert (failed.verdict, failed.pairs) == ("failed", 2)


def test_equal_values_of_a_coarse_metric_are_not_an_unchanged_program():
    ledger, scores = begun(seeds=40, effect=0.01, goal="higher"), [1.0] * 40
    for identical, verdict in ((False, "dropped"), (True, "unchanged")):
        assert judge(ledger, 0.05, scores, scores, [identical] * 40).verdict == verdict
    rises = judge(ledger, 0.05, [0.0] * 40, [0.0] * 4 + [1.0] * 36, [False] * 40)
    assert rises.verdict == "kept"


@pytest.mark.parametrize(("goal", "verdict"), [("lower", "dropped"), ("higher", "kept")])
def test_the_goal_decides_what_is_better(goal, verdict):
    scores = [3.0, 3.1, 2.9, 3.2, 3.0, 2.8, 3.1, 3.0, 3.3]
    evidence = judge(begun(goal=goal), 0.05, [1.0] * 9, scores)
    assert evidence.verdict == verdict
    assert np.sign(evidence.mean) == (1 if goal == "higher" else -1)


def test_results_after_the_decision_change_nothing():
    scores = [2.0, 2.1, 1.9, 2.2, 2.0, 1.8, 2.1, 2.0, 1.7, 2.0]
    early = judge(begun(), 0.05, [4.0] * 10, scores)
    assert early.verdict == "kept"
    late = judge(begun(), 0.05, [4.0] * 14, [*scores, 90.0, 91.0, 95.0, 99.0])
    assert late == early
