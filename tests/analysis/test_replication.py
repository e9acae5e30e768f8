"""Replication: seeds that were not used, and the prediction interval of a second mean."""

import numpy as np
import pytest
from scipy import stats
from study.tiny import LOWER, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.replication import (
    check_fresh,
    check_same_recipes,
    compare_claims,
    fresh_seeds,
    prediction_interval,
    used_seeds,
)
from flaxformer.statistics.estimates import estimate
from flaxformer.system.errors import UserError


@pytest.mark.parametrize(
    ("seeds", "used", "expected"),
    [
        (range(3), range(3), (1000, 1001, 1002)),
        (range(3), [1, 1002], (2000, 2001, 2002)),
        ([7, 1007], [7, 1007], (2007, 3007)),
        ([5], [], (1005,)),
    ],
)
def test_fresh_seeds_are_the_first_that_were_not_used(seeds, used, expected):
    assert fresh_seeds(list(seeds), set(used)) == expected


def test_seeds_near_the_largest_have_no_fresh_ones():
    with pytest.raises(UserError, match="expected a multiple of 1000 that gives unused seeds"):
        fresh_seeds([2**31 - 5], set())


def test_used_seeds_are_named():
    check_fresh([8, 9], {1, 2}, "runs/x")
    with pytest.raises(UserError, match="runs/x already used the seeds 1, 2; expected seeds that it did not use"):
        check_fresh([1, 9, 2], {1, 2}, "runs/x")


def test_pilot_seeds_and_declared_seeds_count_as_used(tmp_path):
    fill(tmp_path, tiny(axes=(RATE,), claims=(), seeds=[50, 51]), lambda trial: 1.0)
    store = fill(tmp_path, tiny(axes=(RATE,), claims=(LOWER,)), lambda trial: 1.0)
    assert used_seeds(store, analyse(store)) == {0, 1, 2, 50, 51}


@pytest.mark.parametrize(("first", "second"), [(3, 3), (4, 12), (8, 5)])
def test_the_prediction_interval_holds_the_second_mean_in_95_of_100_replications(first, second):
    draws = np.random.default_rng(0).standard_normal((4000, first + second)) + 0.3
    held = 0
    for draw in draws:
        low, high = prediction_interval(estimate(draw[:first]), second)
        held += low <= draw[first:].mean() <= high
    low, high = stats.binomtest(held, len(draws)).proportion_ci(0.999)
    assert low <= 0.95 <= high


def test_without_variance_there_is_no_prediction():
    assert np.isnan(prediction_interval(estimate([1.0]), 3)).all()
    assert np.isnan(prediction_interval(estimate([1.0, 2.0]), 0)).all()
    assert prediction_interval(estimate([1.0], exact=True), 1, exact=True) == (1.0, 1.0)


def test_claims_are_paired_by_text(tmp_path):
    def loss(trial):
        return (2.0 if trial.arm.labels["rate"] == "low" else 2.3) + 0.01 * (trial.seed % 4)

    own = {"axes": (RATE,), "claims": (LOWER,)}
    one = analyse(
        fill(tmp_path / "a", tiny(**own), lambda trial: loss(trial) + 1e-3 * trial.seed * len(trial.arm.name))
    )
    two = analyse(fill(tmp_path / "b", tiny(**own | {"seeds": range(1000, 1003)}), loss))
    [found] = compare_claims(one, two)
    assert found.first.text == found.fresh.text == LOWER.text
    assert found.has_same_verdict
    flipped = analyse(fill(tmp_path / "c", tiny(**own), lambda trial: -loss(trial) - 1e-3 * trial.seed**2))
    [found] = compare_claims(one, flipped)
    assert not found.is_predicted


def test_other_recipes_are_refused(tmp_path):
    one = fill(tmp_path / "a", tiny(axes=(RATE,), claims=()), lambda trial: 1.0).declaration
    two = fill(tmp_path / "b", tiny(axes=(RATE,), claims=(), seeds=range(5, 8)), lambda trial: 1.0).declaration
    check_same_recipes(one, two)
    two.recipes["rate=low"].run["optimizer"]["learning_rate"] = 0.5
    with pytest.raises(UserError, match=r"other recipes than those that ran:\n.*learning_rate: 0.001 -> 0.5"):
        check_same_recipes(one, two)
