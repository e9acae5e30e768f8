"""Statistics against scipy and statsmodels, against simulation, and the verdicts that follow from them."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired
from study.tiny import EQUAL, INTERACTION, LOWER, fill, tiny

from flaxformer.study import Claim
from flaxformer.study.analysis import analyse
from flaxformer.study.statistics import (
    detectable_effect,
    estimate,
    holm,
    judge_difference,
    judge_equivalence,
    proportion,
    with_verdicts,
)


def draws(n, mean=0.0, sd=1.0, seed=0):
    return np.random.default_rng(seed).normal(mean, sd, n)


def verdict(judgement):
    return with_verdicts([judgement])[0].verdict


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_interval_is_that_of_the_one_sample_t_test(n, level):
    x = draws(n, 0.3, seed=n)
    ours, theirs = estimate(x, level), stats.ttest_1samp(x, 0).confidence_interval(1 - level)
    np.testing.assert_allclose([ours.low, ours.high], theirs, rtol=1e-10)
    assert (ours.n, ours.mean) == (n, x.mean())


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("by", [0.0, 0.4])
def test_a_difference_is_tested_by_the_paired_t_test(n, by):
    x, y = draws(n, 0.7, seed=n), draws(n, seed=n + 100)
    theirs, ours = stats.ttest_rel(x, y + by), judge_difference(x - y, by)
    np.testing.assert_allclose([ours.p, ours.t], [theirs.pvalue, theirs.statistic], rtol=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_equivalence_is_tested_by_tost(seed):
    x, y = draws(6, 0.1, seed=seed), draws(6, sd=0.5, seed=seed + 100)
    ours, theirs = judge_equivalence(x - y, 3.0), ttost_paired(x, y, -3.0, 3.0)[0]
    assert ours.towards
    np.testing.assert_allclose(ours.p, theirs, rtol=1e-10)


@pytest.mark.parametrize("n", [3, 5])
def test_the_interval_covers_the_truth_95_times_in_100(n):
    x = np.random.default_rng(1).normal(2.0, 3.0, (4000, n))
    covered = np.mean([one.low <= 2.0 <= one.high for one in map(estimate, x)])
    assert 0.93 < covered < 0.97


def test_a_family_without_effects_gives_a_verdict_5_times_in_100_at_most():
    families = np.random.default_rng(2).normal(size=(1500, 4, 5))
    judged = [with_verdicts([judge_difference(x) for x in family]) for family in families]
    wrong = np.mean([any(one.verdict != "inconclusive" for one in family) for family in judged])
    assert 0.03 < wrong < 0.065


@pytest.mark.parametrize("p", [[0.01], [0.04, 0.01, 0.03], [0.02] * 4, [0.9, 0.001, 1.0, 0.0, 0.2, 0.04, 0.04]])
def test_holm(p):
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)


def test_holm_of_no_claims_is_nothing():
    assert holm([]) == []


@pytest.mark.parametrize(("successes", "trials"), [(0, 12), (3, 12), (12, 12), (1, 1), (5, 96)])
def test_a_rate_has_the_clopper_pearson_interval(successes, trials):
    low, high = proportion_confint(successes, trials, method="beta")
    theirs = [0 if successes == 0 else low, 1 if successes == trials else high]
    np.testing.assert_allclose(proportion(successes, trials), theirs, rtol=1e-9)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_detectable_effect_is_found_80_times_in_100(n):
    x = draws(n, sd=2.0)
    theirs = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8) * x.std(ddof=1)
    np.testing.assert_allclose(detectable_effect(estimate(x)), theirs, rtol=0.05)


NOISE = draws(6, 0.0, 1.0, seed=3)
CLEAR = 5 + NOISE


@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (judge_difference(CLEAR), "supported"),
        (judge_difference(-CLEAR), "refuted"),
        (judge_difference(NOISE), "inconclusive"),
        (judge_difference(CLEAR, by=1.0), "supported"),
        (judge_difference(CLEAR, by=20.0), "refuted"),
        (judge_difference(CLEAR, by=5.0), "inconclusive"),
        (judge_equivalence(NOISE, within=5.0), "supported"),
        (judge_equivalence(CLEAR, within=1.0), "refuted"),
        (judge_equivalence(-CLEAR, within=1.0), "refuted"),
        (judge_equivalence(NOISE, within=0.5), "inconclusive"),
        (judge_equivalence(CLEAR, within=5.0), "inconclusive"),
    ],
)
def test_verdicts(judgement, expected):
    assert verdict(judgement) == expected


def test_a_verdict_is_corrected_for_the_family():
    weak = judge_difference(draws(5, 1.2, seed=28))
    assert 0.01 < weak.p < 0.05
    assert verdict(weak) == "supported"
    together = with_verdicts([weak] * 6)
    assert {one.verdict for one in together} == {"inconclusive"}
    assert together[0].p_holm == pytest.approx(6 * weak.p)


@pytest.mark.parametrize("value", [-2.0, 0.0, 0.25])
def test_one_seed_decides_nothing(value):
    for judgement in (judge_difference([value]), judge_equivalence([value], 1.0)):
        assert verdict(judgement) == "inconclusive"
        assert judgement.effect.mean == value
        assert all(map(math.isnan, [judgement.effect.low, judgement.effect.high, judgement.t, judgement.detectable]))


def test_no_seed_decides_nothing():
    for judgement in (judge_difference([]), judge_equivalence([], 1.0)):
        assert verdict(judgement) == "inconclusive"
        assert judgement.effect.n == 0


@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (judge_difference([0.5] * 4), "supported"),
        (judge_difference([-0.5] * 4), "refuted"),
        (judge_difference([0.0] * 4), "inconclusive"),
        (judge_equivalence([0.0] * 4, 0.1), "supported"),
        (judge_equivalence([0.5] * 4, 0.1), "refuted"),
    ],
)
def test_without_spread_the_difference_itself_decides(judgement, expected):
    assert verdict(judgement) == expected
    assert judgement.effect.low == judgement.effect.high == judgement.effect.mean


def test_agreeing_seeds_are_those_on_the_side_of_the_mean():
    assert judge_difference([1.0, 2.0, -0.5, 3.0]).agreeing == 3
    assert judge_difference([1.0, 2.0, 3.0, 6.0], by=2.0).agreeing == 2


# --- the same through a study's folder ------------------------------------------------------------------


def judged(tmp_path, effects, *claims, noise=0.02, shared=1.0):
    """Verdicts when `high` lowers the loss by effects[norm]; seeds differ by `shared`, runs by `noise`."""
    rng = np.random.default_rng(5)
    base = shared * rng.normal(size=6)

    def loss(trial):
        lowered = effects[trial.arm.labels["norm"]] if trial.arm.labels["rate"] == "high" else 0.0
        return 5 + base[trial.seed] - lowered + noise * rng.normal()

    return [one.judgement for one in analyse(fill(tmp_path, tiny(seeds=range(6), claims=claims), loss)).claims]


EACH = [Claim(norm, lower={"rate": "high"}, than={"rate": "low"}, where={"norm": norm}) for norm in ("pre", "post")]


def test_an_interaction_is_a_difference_of_differences(tmp_path):
    pre, post, interaction = judged(tmp_path, {"pre": 0.5, "post": 0.5}, *EACH, INTERACTION)
    assert (pre.verdict, post.verdict, interaction.verdict) == ("supported", "supported", "inconclusive")
    assert interaction.effect.mean == pytest.approx(pre.effect.mean - post.effect.mean)


def test_two_effects_of_different_size_interact(tmp_path):
    pre, post, interaction = judged(tmp_path, {"pre": 0.9, "post": 0.3}, *EACH, INTERACTION)
    assert {pre.verdict, post.verdict, interaction.verdict} == {"supported"}
    assert interaction.effect.mean == pytest.approx(0.6, abs=0.05)


def test_an_interaction_the_other_way_is_refuted(tmp_path):
    assert judged(tmp_path, {"pre": 0.3, "post": 0.9}, INTERACTION)[0].verdict == "refuted"


def test_pairing_takes_the_spread_between_seeds_away(tmp_path):
    lower, equal = judged(tmp_path, {"pre": 0.2, "post": 0.2}, LOWER, EQUAL, shared=10.0)
    assert (lower.verdict, equal.verdict) == ("supported", "supported")
    assert lower.effect.sd < 0.2


def test_a_diverged_run_counts_as_its_start(tmp_path):
    study = tiny(seeds=range(4), claims=(LOWER,))
    store = fill(tmp_path, study, lambda trial: 1.0 if trial.arm.labels["rate"] == "high" else 2.0)
    trial = "norm=pre,rate=high,seed=3"
    store.append("again", store.rows()[trial] | {"status": "diverged", "diverged_at": 2, "validation_loss": math.nan})
    assert analyse(store).claims[0].differences == [1.0, 1.0, 1.0, -7.0]
    assert analyse(store).divergence[:2] == (1, 16)
