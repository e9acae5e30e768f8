"""Statistics against scipy and statsmodels, against simulation, and the verdicts that follow from them."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired
from study.tiny import EQUAL, INTERACTION, LOWER, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.statistics.corrections import benjamini_hochberg, holm
from flaxformer.statistics.estimates import Estimate, estimate, proportion
from flaxformer.statistics.judgement import detectable_effect, judge_difference, judge_equivalence, with_verdicts
from flaxformer.study import Claim


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
def test_a_difference_is_tested_by_the_paired_t_test_where_no_tail_points_to_the_bound(n, by):
    x, y = draws(n, 0.7, seed=n), draws(n, seed=n + 100)
    differences = x - y
    if (stats.skew(differences) if n > 2 else 0) * (differences.mean() - by) < 0:
        differences = 2 * differences.mean() - differences  # the mirror image has the same mean and variance
    theirs, ours = stats.ttest_1samp(differences, by), judge_difference(differences, by)
    np.testing.assert_allclose([ours.p, ours.t], [theirs.pvalue, theirs.statistic], rtol=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_equivalence_is_tested_by_tost_where_differences_are_symmetric(seed):
    half = np.abs(draws(3, 0.1, seed=seed)) + 0.1
    x, y = np.concatenate([half, -half]) + 0.2, np.zeros(6)
    ours, theirs = judge_equivalence(x - y, 3.0), ttost_paired(x, y, -3.0, 3.0)[0]
    assert ours.is_towards
    np.testing.assert_allclose(ours.p, theirs, rtol=1e-9)
    low, high = stats.ttest_1samp(x, 0).confidence_interval(0.9)
    np.testing.assert_allclose([ours.effect.low, ours.effect.high], [low, high], rtol=1e-9)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [4, 5, 8])
def test_the_interval_of_a_single_claim_is_the_one_that_is_tested(n, seed):
    """A claim is decided exactly where its interval excludes the bound, if the sign-flip test agrees."""
    x = np.random.default_rng(seed).exponential(size=n)
    for by in np.linspace(-1, 3, 9):
        judged = with_verdicts([judge_difference(x, by)])[0]
        excluded = not judged.effect.low <= by <= judged.effect.high
        assert (judged.p < 0.05) == excluded
        assert judged.verdict == "inconclusive" or excluded
    for within in (0.3, 1.0, 3.0, 9.0):
        judged = with_verdicts([judge_equivalence(x, within)])[0]
        inside = -within < judged.effect.low and judged.effect.high < within
        assert (judged.p < 0.05 and judged.is_towards) == inside
        assert judged.verdict != "supported" or inside


@pytest.mark.parametrize("n", [3, 5])
def test_the_interval_covers_the_truth_95_times_in_100(n):
    x = np.random.default_rng(1).normal(2.0, 3.0, (4000, n))
    covered = np.mean([one.low <= 2.0 <= one.high for one in map(estimate, x)])
    assert 0.93 < covered < 0.97


@pytest.mark.slow
def test_a_family_without_effects_gives_a_verdict_5_times_in_100_at_most():
    families = np.random.default_rng(2).normal(size=(1500, 4, 5))
    judged = [with_verdicts([judge_difference(x) for x in family]) for family in families]
    wrong = np.mean([any(one.verdict != "inconclusive" for one in family) for family in judged])
    assert 0.01 < wrong < 0.05


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


@pytest.mark.parametrize("family", [1, 4])
@pytest.mark.parametrize("n", [40, 80])
def test_with_many_seeds_the_detectable_effect_is_that_of_the_t_test(n, family):
    x = draws(n, sd=2.0)
    theirs = TTestPower().solve_power(nobs=n, alpha=0.05 / family, power=0.8) * x.std(ddof=1)
    np.testing.assert_allclose(detectable_effect(estimate(x), family), theirs, rtol=0.06)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("n", [5, 8, 12])
@pytest.mark.parametrize("family", [1, 4])
def test_the_detectable_effect_is_found_80_times_in_100_as_the_first_of_its_family(n, family):
    random = np.random.default_rng(n)
    effect = detectable_effect(Estimate(0.0, 0.0, 0.0, 1.0, n), family)
    null = [judge_difference([1.0, -1.0] * 3)] * (family - 1)
    found = [
        with_verdicts([judge_difference(effect + random.normal(size=n)), *null])[0].verdict == "supported"
        for _ in range(800)
    ]
    assert 0.75 < np.mean(found) < 0.85


@pytest.mark.parametrize("n", [5, 8, 12])
def test_the_detectable_margin_of_an_equality_is_confirmed_80_times_in_100(n):
    random = np.random.default_rng(n)
    margin = detectable_effect(Estimate(0.0, 0.0, 0.0, 1.0, n), kind="equality")
    found = [verdict(judge_equivalence(random.normal(size=n), margin)) == "supported" for _ in range(800)]
    assert 0.75 < np.mean(found) < 0.85


def test_a_family_raises_the_detectable_effect():
    alone, together = judge_difference(NOISE), with_verdicts([judge_difference(NOISE)] * 4)[0]
    assert together.detectable > 1.2 * alone.detectable
    assert with_verdicts([judge_difference(NOISE)])[0].detectable == alone.detectable


NOISE = draws(6, 0.0, 0.3, seed=3)
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
    weak = judge_difference([0.4, 1.2, 0.9, 2.1, 1.7, 0.2])
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
        (judge_difference([0.5] * 8), "inconclusive"),
        (judge_difference([0.5] * 8, exact=True), "supported"),
        (judge_difference([-0.5] * 8, exact=True), "refuted"),
        (judge_equivalence([0.0] * 8, 0.1), "inconclusive"),
        (judge_equivalence([0.0] * 8, 0.1, exact=True), "supported"),
        (judge_equivalence([0.5] * 8, 0.1, exact=True), "refuted"),
    ],
)
def test_equal_differences_decide_an_exact_number_only(judgement, expected):
    assert verdict(judgement) == expected
    assert judgement.effect.low == judgement.effect.high == judgement.effect.mean
    assert ("zero variance" in judgement.qualifications) == (not judgement.is_exact)


@pytest.mark.parametrize("n", range(9))
def test_below_4_effective_seeds_there_is_no_verdict(n):
    judged = with_verdicts([judge_difference([5 + 0.01 * i**0.5 * (-1) ** i for i in range(n)])])[0]
    assert judged.effective == judged.distinct == n
    assert judged.verdict == ("supported" if n >= 4 else "inconclusive")
    assert ("too few seeds" in judged.qualifications) == (n < 4)
    assert ("few seeds" in judged.qualifications) == (4 <= n < 6)


def test_ties_qualify_a_verdict_and_equal_differences_prevent_it():
    tied = with_verdicts([judge_difference([5.0, 5.0, 5.1, 4.9, 4.9, 5.1])])[0]
    assert (tied.verdict, tied.effective, tied.distinct) == ("supported", 6, 3)
    assert "ties" in tied.qualifications
    equal = with_verdicts([judge_difference([5.0] * 6)])[0]
    assert (equal.verdict, equal.effective, equal.distinct) == ("inconclusive", 1, 1)
    assert {"zero variance", "too few seeds"} == set(equal.qualifications)


SYMMETRIC = [4.7, 5.3, 4.8, 5.2, 4.9, 5.1]


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (SYMMETRIC, ()),
        ([*SYMMETRIC, 9.0], ("skewed", "outlier")),
        ([0.3, 0.4, 0.5, 0.35, 0.45, 0.05], ("withheld for skewness",)),
        ([0.1, 0.11, 0.09, 0.12, 2.0, 1.9, 0.08], ("outlier",)),
        ([5.0, 5.0, 5.1, 4.9, 4.8, 5.2], ("ties",)),
    ],
)
def test_differences_that_break_an_assumption_qualify_the_verdict(differences, expected):
    assert set(expected) <= set(judge_difference(differences).qualifications)
    assert bool(expected) == bool(judge_difference(differences).qualifications)


def test_a_verdict_needs_the_agreement_of_the_sign_flip_test():
    agreed = judge_difference(SYMMETRIC)
    assert agreed.is_confirmed
    withheld = dataclasses.replace(agreed, is_confirmed=False)
    assert [one.verdict for one in with_verdicts([agreed, withheld])] == ["supported", "inconclusive"]
    one_sided = stats.permutation_test(
        (np.array([1.0, 2, 3, 4, -2.5]),), np.mean, permutation_type="samples", alternative="greater"
    )
    assert judge_difference([1.0, 2, 3, 4, -2.5]).is_confirmed == (one_sided.pvalue <= 0.05)


@pytest.mark.parametrize("p", [[0.01], [0.04, 0.01, 0.03], [0.02] * 4, [0.9, 0.001, 1.0, 0.0, 0.2, 0.04, 0.04]])
def test_the_false_discovery_rate_is_that_of_benjamini_and_hochberg(p):
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p), rtol=1e-12)


def test_agreeing_seeds_are_those_on_the_side_of_the_mean():
    assert judge_difference([1.0, 2.0, -0.5, 3.0]).agreeing == 3
    assert judge_difference([1.0, 2.0, 3.0, 6.0], by=2.0).agreeing == 2
    assert judge_difference([0.0, 0.0, 0.0]).agreeing == 0  # a seed at the bound is on neither side
    assert judge_difference([0.0, 0.0, 3.0]).agreeing == 1


def test_a_claim_holds_at_the_seeds_whose_difference_is_beyond_the_bound():
    assert judge_difference([1.0, 0.0, -0.5, 3.0]).holding == 2
    assert judge_difference([1.0, 2.0, 3.0, 6.0], by=2.0).holding == 2
    assert judge_equivalence([0.1, -0.1, 0.5, 2.0], within=0.5).holding == 2


@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (judge_difference([0.0], exact=True), "refuted"),
        (judge_difference([1e-9], exact=True), "supported"),
        (judge_difference([0.5], by=0.5, exact=True), "refuted"),
        (judge_equivalence([0.1], 0.1, exact=True), "refuted"),
        (judge_equivalence([0.0], 0.1, exact=True), "supported"),
    ],
)
def test_an_exact_number_satisfies_a_claim_or_does_not(judgement, expected):
    assert verdict(judgement) == expected


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


def test_pairing_removes_the_variance_between_seeds(tmp_path):
    lower, equal = judged(tmp_path, {"pre": 0.2, "post": 0.2}, LOWER, EQUAL, shared=2.0)
    assert (lower.verdict, equal.verdict) == ("supported", "supported")
    assert lower.effect.sd < 0.2


def test_a_diverged_run_counts_as_its_start(tmp_path):
    study = tiny(seeds=range(4), claims=(LOWER,))
    store = fill(tmp_path, study, lambda trial: 1.0 if trial.arm.labels["rate"] == "high" else 2.0)
    trial = "norm=pre,rate=high,seed=3"
    store.append("again", store.rows()[trial] | {"status": "diverged", "diverged_at": 2, "validation_loss": math.nan})
    assert analyse(store).claims[0].differences == [1.0, 1.0, 1.0, -7.0]
    assert analyse(store).divergence[:2] == (1, 16)


def test_an_interval_within_bounds_covers_as_often():
    """The true mean of an accuracy lies within 0 and 1, so that cutting the interval there loses no coverage."""
    dice, truth, covered = np.random.default_rng(0), 20 / 21, []
    for scores in dice.beta(20, 1, (400, 5)):
        whole = estimate(list(scores))
        cut = whole.within((0.0, 1.0))
        assert 0 <= cut.low <= cut.mean <= cut.high <= 1
        covered.append((whole.low <= truth <= whole.high, cut.low <= truth <= cut.high))
    assert any(estimate(list(scores)).high > 1 for scores in dice.beta(20, 1, (20, 5)))
    assert all(before == after for before, after in covered)
    outside = estimate([1.5, 1.75])
    assert outside.within((0.0, 1.0)) == outside
