"""Seeds that claims need: the power of the tests that judge them, simulated from the spread of what they test."""

import math

import numpy as np
import pytest
from study.tiny import BASELINE, tiny

from flaxformer import Claim
from flaxformer.analysis.noise import Noise, config_of
from flaxformer.core.canonical import canonical
from flaxformer.report import power
from flaxformer.statistics import paired_tests
from flaxformer.system.errors import UserError

FLOOR = Noise(
    metric="validation_loss",
    unit="nats",
    n=8,
    sd=0.03,
    paired_sd=0.01,
    change="optimizer.learning_rate=0.0011",
    seconds=10.0,
    run=config_of(canonical(BASELINE)),
)
HIGH, LOW = {"rate": "high"}, {"rate": "low"}
CLAIMS = {
    "difference": (Claim("c", lower=HIGH, than=LOW, effect=0.008), 0.01),
    "beyond a bound": (Claim("c", lower=HIGH, than=LOW, by=0.004, effect=0.012), 0.01),
    "a number": (Claim("c", lower=HIGH, than=2.0, effect=0.02), 0.03),
    "interaction": (
        Claim("c", lower=HIGH, than=LOW, where={"width": "8"}, more_than_where={"width": "16"}, effect=0.01),
        math.sqrt(2) * 0.01,
    ),
}


@pytest.mark.parametrize("form", CLAIMS)
def test_as_many_seeds_find_the_effect_of_a_claim_in_four_studies_of_five(form):
    claim, sd = CLAIMS[form]
    seeds = power.seeds_needed(claim, FLOOR, 1)
    differences = np.random.default_rng(1).normal(claim.effect, sd, (2000, seeds))
    found = 2 * paired_tests.p_above(differences, claim.by) <= 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.04)


def test_as_many_seeds_confirm_the_margin_of_an_equality():
    claim = Claim("c", equal=HIGH, to=LOW, within=0.008)
    seeds = power.seeds_needed(claim, FLOOR, 1)
    differences = np.random.default_rng(1).normal(0, 0.01, (2000, seeds))
    above = paired_tests.p_above(differences, -claim.within, "equality")
    below = paired_tests.p_below(differences, claim.within, "equality")
    assert (np.maximum(above, below) <= 0.05).mean() == pytest.approx(0.8, abs=0.04)


def test_no_seeds_are_proposed_for_a_quantity_or_without_a_size():
    assert power.seeds_needed(Claim("c", higher={"quantity": "q"}, than=1.0, effect=0.1), FLOOR, 1) is None
    assert power.seeds_needed(Claim("c", lower=HIGH, than=LOW), FLOOR, 1) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lower": HIGH, "than": LOW, "by": 0.01, "effect": 0.01}, "expected an effect above by"),
        ({"equal": HIGH, "to": LOW, "within": 0.1, "effect": 0.01}, "expected within alone"),
    ],
)
def test_effects_that_no_test_can_find_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Claim("c", **fields)


def test_a_noise_floor_of_another_recipe_is_named():
    claim, _ = CLAIMS["difference"]
    study = tiny(claims=[claim])
    first, second = power.describe(study, FLOOR)
    assert second.startswith("'c': an effect of 0.008 nats needs")
    other = tiny(
        claims=[claim], baseline=BASELINE.replace(training=BASELINE.training.replace(steps=2 * BASELINE.training.steps))
    )
    named, *lines = power.describe(other, FLOOR)
    assert "of another recipe (training.steps" in named
    assert lines == [first, second]
