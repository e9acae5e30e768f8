"""Comparison at equal cost: the arms match, their configs have the adjusted values, and nothing else changes."""

import itertools

import pytest
from jaxtyping import Array, Float
from study.tiny import BASELINE, NORM, RATE, tiny

from flaxformer.components import Dense, FeedForward, Gated
from flaxformer.core.canonical import canonical
from flaxformer.core.params import Parameters, param
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import static
from flaxformer.study import Axis, EqualCost, Halving
from flaxformer.study.equal_cost import QUANTITIES, describe_matches, match, nearest
from flaxformer.study.plan import declaration
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.training.cost import parameter_counts, run_cost

BASE = replace_at(BASELINE, {"training.steps": 600, "training.evaluate_every": 60})
DEPTH = Axis("model.layers", {"1": 1, "2": 2, "3": 3})
NETWORK = Axis("model.feed_forward", {"dense": Dense(d_ff=12), "gated": Gated(d_ff=12)}, name="network")


def study_of(**changes):
    return tiny(**({"baseline": BASE, "claims": (), "seeds": [0]} | changes))


def brute_force(cost, largest):
    return min(range(1, largest), key=lambda number: abs(cost(number) - 1))


@pytest.mark.parametrize("start", [1, 7, 100, 5000])
@pytest.mark.parametrize("target", [3, 40, 41.4, 777])
@pytest.mark.parametrize("form", ["linear", "square", "steps", "root"])
def test_the_nearest_value_is_that_of_a_search_over_all(start, target, form):
    forms = {
        "linear": lambda n: (5 + 2 * n) / (5 + 2 * target),
        "square": lambda n: (n * n + n) / (target * target + target),
        "steps": lambda n: (n // 3 * 3 + 1) / (target + 1),
        "root": lambda n: (1 + n) ** 0.5 / (1 + target) ** 0.5,
    }
    cost = forms[form]
    assert cost(nearest(cost, start)) == cost(brute_force(cost, 2000))


def test_a_field_that_costs_nothing_has_no_nearest_value():
    assert nearest(lambda n: 0.5, 3) is None
    assert nearest(lambda n: 1 / n, 3) is None


@pytest.mark.every(5)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_arm_has_the_cost_of_the_baseline(quantity):
    adjust = {"compute": "training.steps", "tokens": "training.steps", "steps": "training.steps"}
    axes = {"tokens": Axis("task.batch_size", {"2": 2, "4": 4}), "steps": NORM}
    rule = EqualCost(quantity, adjust=adjust.get(quantity, "model.feed_forward.d_ff"), tolerance=0.05)
    study = study_of(axes=(axes.get(quantity, NETWORK),), compare=rule)
    target = QUANTITIES[quantity].of(BASE)
    for arm in study.arms():
        assert QUANTITIES[quantity].of(arm.run) == pytest.approx(target, rel=0.05)


def test_equal_compute_adjusts_the_steps_and_keeps_the_number_of_evaluations():
    study = study_of(axes=(DEPTH,), compare="equal compute")
    target = run_cost(BASE).flops
    for arm in study.arms():
        training = arm.run.training
        assert training.steps // training.interval == 10
        assert run_cost(arm.run).flops == pytest.approx(target, rel=0.02)
        same = replace_at(arm.run, {"training": BASE.training, "model.layers": BASE.model.layers})
        assert canonical(same) == canonical(BASE)
    assert len({arm.run.training.steps for arm in study.arms()}) == 3


def test_an_arm_within_the_tolerance_stays_as_it_is():
    study = study_of(axes=(RATE, DEPTH), compare="equal compute")
    plain = study_of(axes=(RATE, DEPTH))
    for own, other in zip(study.arms(), plain.arms(), strict=True):
        is_baseline_depth = own.labels["layers"] == "1"
        assert (canonical(own.run) == canonical(other.run)) == is_baseline_depth
        assert bool(study.matches[own.name].changes) != is_baseline_depth


def test_the_identity_of_an_arm_has_the_adjusted_value_and_other_identities_stay():
    plain, compared = (declaration(study_of(axes=(DEPTH,), compare=rule)) for rule in (None, "equal compute"))
    assert plain.compare is None
    before, after = (one.fingerprints for one in (plain, compared))
    assert [before[name] == after[name] for name in before] == [True, False, False]
    steps = compared.recipes["layers=2"].run["training"]["steps"]
    assert compared.compare.arms["layers=2"].changes["training.steps"] == (600, steps)
    assert len(groups(study_of(axes=(DEPTH,), compare="equal compute").trials())) == 3


class Power(FeedForward):
    """A network with a size of another name."""

    hidden: int = static(12)

    class Weights(Parameters):
        up: Float[Array, "d_model hidden"] = param(fan_in="d_model")
        down: Float[Array, "hidden d_model"] = param(fan_in="hidden")

    def apply(self, weights, x, context):
        return (x @ weights.up) ** 2 @ weights.down


@pytest.mark.slow
def test_components_of_a_user_are_matched_like_those_of_the_package():
    """One arm has d_ff, the other hidden; neither declares its FLOPs."""
    levels = {"gated": Gated(d_ff=30), "power": Power(hidden=90)}
    rule = EqualCost("compute", adjust=("model.feed_forward.d_ff", "model.feed_forward.hidden"), tolerance=0.05)
    baseline = replace_at(BASE, {"model.feed_forward": Dense(d_ff=45)})
    study = study_of(baseline=baseline, axes=(Axis("model.feed_forward", levels, name="network"),), compare=rule)
    gated, power = study.arms()
    assert gated.run.model.feed_forward == Gated(d_ff=30)
    assert power.run.model.feed_forward.hidden in (44, 45, 46)


def test_values_are_multiples_of_the_given_number():
    rule = EqualCost("parameters", adjust="model.d_model", multiple_of=4, tolerance=0.3)
    axes = (Axis("model.layers", {"1": 1, "6": 6}),)
    study = study_of(baseline=replace_at(BASE, {"model.d_model": 32}), axes=axes, compare=rule)
    for arm in study.arms():
        assert arm.run.model.d_model % 4 == 0
        assert parameter_counts(arm.run.model).total == pytest.approx(
            parameter_counts(study.baseline.model).total, rel=0.3
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare": "equal step"}, "compare is 'equal step'; did you mean 'equal steps'"),
        ({"compare": 3}, "Study: compare is 3; expected EqualCost, text or None"),
        ({"compare": "equal steps", "axes": (Axis("training.steps", {"6": 6}),)}, "which axis 'steps' varies"),
    ],
    ids=str,
)
def test_a_wrong_rule_is_refused_when_the_study_is_declared(changes, message):
    with pytest.raises(UserError, match=message):
        study_of(**changes)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"quantity": "flops"}, "compare is at equal 'flops'"),
        ({"quantity": "steps", "tolerance": 0}, "compare.tolerance is 0; expected a number between 0 and 1"),
        ({"quantity": "steps", "multiple_of": 0}, "compare.multiple_of is 0"),
    ],
    ids=str,
)
def test_a_rule_has_a_known_quantity_and_a_tolerance(rule, message):
    with pytest.raises(UserError, match=message):
        EqualCost(**rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (EqualCost("compute", adjust="model.depth"), "which arm 'x' does not have"),
        (EqualCost("compute", adjust="optimizer.learning_rate"), "is 0.001; expected a whole number"),
        (EqualCost("parameters", adjust="training.steps"), "does not increase the parameters of arm 'x'"),
        (EqualCost("compute", adjust="model.layers", tolerance=0.001), r"the nearest is model\.layers=1, with 1\.\d+"),
        (
            EqualCost("compute", adjust="model.d_model", tolerance=0.02),
            r"arm 'x' with model\.d_model=\d+: .*multiple_of",
        ),
    ],
    ids=str,
)
def test_an_arm_that_cannot_be_matched_gives_one_message(rule, message):
    with pytest.raises(UserError, match=message):
        match(rule, "x", replace_at(BASE, {"model.layers": 2}), BASE.replace(model=BASE.model.replace(d_model=6)))


def test_halving_is_checked_with_the_adjusted_steps():
    study = study_of(axes=(DEPTH,), compare="equal compute", halving=Halving(factor=2, first=120))
    with pytest.raises(UserError, match=r"halving\.first is 120"):
        study.arms()


def test_a_plan_lists_the_adjusted_arms():
    study = study_of(axes=(DEPTH,), compare="equal compute")
    first, *lines = describe_matches(study.compare, study.matches, study.baseline)
    assert "Compared at equal compute" in first
    assert "adjusted in 2 of 3 arms" in first
    assert [line.split(":")[0].strip() for line in lines] == ["layers=2", "layers=3"]
    assert all("training.steps 600 -> " in line for line in lines)


def test_every_pair_of_arms_has_equal_compute():
    study = study_of(axes=(DEPTH, NORM), compare=EqualCost("compute", tolerance=0.01))
    costs = [run_cost(arm.run).flops for arm in study.arms()]
    assert all(abs(a / b - 1) <= 0.021 for a, b in itertools.combinations(costs, 2))
