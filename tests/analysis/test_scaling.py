"""Scaling laws of a study: identified or with a reason, held-out sizes, effects, crossings, claims, declarations."""

import math

import numpy as np
import pytest
from study.scaling_studies import LAWS, SEEDS, SIZES, STEPS, law, scaled, scores, sized
from study.tiny import BASELINE, NORM, RATE, fill, tiny

import flaxformer
from flaxformer.analysis.analysis import analyse
from flaxformer.report import scaling_text, tables
from flaxformer.store.declaration import DeclaredScaling
from flaxformer.store.declaration_log import read
from flaxformer.store.records import write_table
from flaxformer.study import Axis, Claim, Halving, Points, Scaling, ScalingClaim
from flaxformer.study.plan import declaration
from flaxformer.study.scale import run_scale
from flaxformer.study.scaling_claim import slope_weights
from flaxformer.system.errors import UserError
from flaxformer.training.flops import flops_per_step

PRE, POST = {"norm": "pre"}, {"norm": "post"}


def short(n):
    """The first n sizes."""
    return Points("size", {f"s{i}": SIZES.changes(f"s{i}") for i in range(n)})


def test_each_arm_has_its_law_and_its_prediction_of_the_held_out_size(tmp_path):
    found = scaled(tmp_path, scores(noise=0.003)).scaling
    assert (found.axis, found.variable) == ("size", "tokens")
    for fit in found.fits:
        limit, above, exponent = LAWS[fit.labels["norm"]]
        assert (fit.reason, fit.seeds, len(fit.fitted_points)) == ("", tuple(range(SEEDS)), 5)
        smallest = fit.points[0].size
        for own, truth in ((fit.limit, limit), (fit.exponent, exponent), (fit.amplitude, above * smallest**exponent)):
            assert own.low < own.value < own.high
            assert own.value == pytest.approx(truth, rel=0.05)
        [one] = fit.held_out
        assert one.point.label == "s5"
        assert one.is_inside
        assert one.predicted.value == pytest.approx(law(LAWS[fit.labels["norm"]], STEPS[-1] / STEPS[0]), abs=0.02)


def test_a_held_out_size_off_the_law_is_outside_its_prediction(tmp_path):
    own = scores()
    found = scaled(tmp_path, lambda trial: own(trial) + 0.1 * (trial.arm.labels["size"] == "s5")).scaling
    assert [one.is_inside for fit in found.fits for one in fit.held_out] == [False, False]


def test_the_effect_beyond_the_sizes_is_paired_by_seed(tmp_path):
    [effect] = scaled(tmp_path, scores(noise=0.003, shared=0.2)).scaling.effects
    assert (effect.labels, effect.reference, effect.seeds) == (POST, PRE, SEEDS)
    size = 10 * STEPS[-1] * run_scale(BASELINE)["tokens"] / BASELINE.training.steps
    assert effect.size == pytest.approx(size)
    truth = law(LAWS["post"], 10 * STEPS[-1] / STEPS[0]) - law(LAWS["pre"], 10 * STEPS[-1] / STEPS[0])
    assert effect.effect.low < truth < effect.effect.high
    assert effect.effect.high - effect.effect.low < 0.1  # the offset of a seed, of sd 0.2, cancels
    assert effect.crossings == ()


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_a_crossing_inside_the_sizes_has_an_interval_around_it(tmp_path, noise):
    laws = {"pre": (1.0, 2.0, 0.4), "post": (1.3, 1.5, 0.4)}
    [effect] = scaled(tmp_path, scores(laws, noise=noise)).scaling.effects
    [crossing] = effect.crossings
    tokens = run_scale(BASELINE)["tokens"] / BASELINE.training.steps * STEPS[0]
    truth = tokens * (0.5 / 0.3) ** (1 / 0.4)
    assert crossing.low < truth < crossing.high
    assert crossing.low < crossing.value < crossing.high
    assert math.isfinite(crossing.high)
    assert crossing.low > 0


def test_arms_of_one_law_have_no_determined_crossing(tmp_path):
    [effect] = scaled(tmp_path, scores(dict.fromkeys(LAWS, LAWS["pre"]), noise=0.02)).scaling.effects
    assert any(one.low == 0 or one.high == math.inf for one in effect.crossings)
    assert effect.effect.low < 0 < effect.effect.high


def test_laws_that_meet_far_away_cross_above_the_range_or_nowhere(tmp_path):
    laws = {"pre": (1.0, 2.0, 0.4), "post": (1.0, 2.3, 0.4)}
    [effect] = scaled(tmp_path, scores(laws, noise=0.01)).scaling.effects
    assert all(one.high == math.inf for one in effect.crossings)
    assert effect.crossings


NEAR = Points("size", {str(n): {"training.steps": n, "training.evaluate_every": n} for n in range(4, 9)})


def flat(trial):
    """A metric of noise alone."""
    return 2 + 0.3 * np.random.default_rng([trial.seed, trial.run.training.steps]).normal()


REASONS = {
    "three sizes": (
        {"axes": (NORM, short(4)), "scaling": Scaling("size", "tokens", ("s3",))},
        None,
        "3 different numbers",
    ),
    "a small range": ({"axes": (NORM, NEAR), "scaling": Scaling("size", "tokens")}, None, "2 times the tokens"),
    "three seeds": ({"seeds": range(3)}, None, "3 of 3 seeds"),
    "no noise": ({}, lambda trial: law(LAWS["pre"], trial.run.training.steps / 4), "all seeds have the same scores"),
    "a flat metric": ({}, flat, "the "),
    "a rising loss": ({}, lambda trial: 1 + trial.run.training.steps / 1e4 + 0.01 * trial.seed, "gets worse"),
    "a straight line": ({}, scores(dict.fromkeys(LAWS, (-7.0, 9.5, 0.02)), noise=0.05), "α includes 0"),
    "a limit below 0": ({}, scores(dict.fromkeys(LAWS, (-0.5, 3.0, 0.2)), noise=0.002), "L∞ is at its bound of 0"),
}  # fmt: skip


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("case", REASONS)
def test_a_law_that_is_not_identified_has_a_reason_and_no_numbers(tmp_path, case):
    changes, loss, reason = REASONS[case]
    analysis = scaled(tmp_path, loss, **changes)
    for fit in analysis.scaling.fits:
        assert reason in fit.reason
        assert (fit.exponent, fit.amplitude, fit.limit) == (None, None, None)
    own = [row for row in scaling_text.tables(analysis)[0].in_form("page").rows if row[1] == "tokens"]
    for row in own:
        assert row[2].startswith("not identified: ")
        assert row[3:6] == ["–", "–", "–"]
    assert all("not identified because" in line for line in scaling_text.findings(analysis)[:2])


def test_parameters_that_do_not_vary_have_no_law(tmp_path):
    variables = {fit.variable for fit in scaled(tmp_path).scaling.other_fits}
    assert variables == {"flops"}


def test_a_diverged_run_takes_its_seed_out_of_the_fit(tmp_path):
    own = scores()
    store = fill(tmp_path, sized(), lambda trial: 10.5 if trial.name == "norm=pre,size=s2,seed=3" else own(trial))
    [pre, post] = analyse(store).scaling.fits
    assert pre.seeds == (0, 1, 2, 4, 5, 6, 7)
    assert post.seeds == tuple(range(SEEDS))
    assert analyse(store).scaling.effects[0].seeds == 7


def test_an_unfinished_study_predicts_a_held_out_size_without_results(tmp_path):
    store = fill(tmp_path, sized(), scores())
    [rows] = store.groups.glob("*")
    write_table(rows, [row for row in store.rows().values() if row["size"] != "s5"])
    for fit in analyse(store).scaling.fits:
        [one] = fit.held_out
        assert math.isnan(one.observed)
        assert one.is_inside is None
        assert one.predicted.low < one.predicted.value < one.predicted.high


def test_a_metric_that_rises_to_a_limit_has_a_law(tmp_path):
    store = fill(tmp_path, sized(metric="validation_accuracy"), lambda trial: 2.0)
    own = scores(dict.fromkeys(LAWS, (-0.9, 0.7, 0.4)), noise=0.003, shared=0.003)
    [rows] = store.groups.glob("*")
    trials = {trial.name: trial for trial in sized().trials()}
    write_table(rows, [row | {"validation_accuracy": -own(trials[row.trial])} for row in store.rows().values()])
    for fit in analyse(store).scaling.fits:
        assert fit.reason == ""
        assert fit.limit.value == pytest.approx(0.9, abs=0.01)
        assert fit.amplitude.low < fit.amplitude.value < fit.amplitude.high < 0


def test_the_slope_of_a_gain_is_that_of_least_squares_at_each_seed(tmp_path):
    claim = ScalingClaim("the gain does not shrink", lower=PRE, than=POST, slope_above=-0.3)
    opposite = ScalingClaim("the gain shrinks", lower=PRE, than=POST, slope_below=0.0)
    constant = ScalingClaim("the gain is constant", lower=PRE, than=POST, slope_within=0.01)
    analysis = scaled(tmp_path, claims=(claim, opposite, constant))
    by_labels = {tuple(arm.labels.values()): arm.scores for arm in analysis.arms}
    gains = np.array([np.subtract(by_labels["post", f"s{i}"], by_labels["pre", f"s{i}"]) for i in range(6)])
    slopes = np.polyfit(np.log10(STEPS), gains, 1)[0]
    first, second, third = analysis.claims
    np.testing.assert_allclose(first.differences, slopes, rtol=1e-6)
    np.testing.assert_allclose(second.differences, -slopes, rtol=1e-6)
    np.testing.assert_allclose(third.differences, slopes, rtol=1e-6)
    assert [one.judgement.verdict for one in analysis.claims] == ["supported", "supported", "refuted"]
    assert (first.by, second.by, third.within) == (-0.3, 0.0, 0.01)
    assert first.unit == third.unit == "nats per factor of ten of tokens"
    assert second.unit == "nats less per factor of ten of tokens"
    assert second.judgement.effect.mean == pytest.approx(-first.judgement.effect.mean)
    assert first.context.simple_effects == ()


def test_arms_of_unequal_size_are_compared_at_equal_size():
    """Two arms of one curve, shifted along C, have a gain of 0 at every C."""
    first, second = np.linspace(0, 3, 7), np.linspace(0.3, 3.3, 7)

    def curve(x):
        return 2 + 0.4 * x - 0.05 * x**2

    own, other = slope_weights(first, second)
    assert own @ curve(first) - other @ curve(second) == pytest.approx(0, abs=1e-12)
    assert own @ (curve(first) + 0.2 * first) - other @ curve(second) == pytest.approx(0.2)
    own, other = slope_weights(first, first + 0.001)
    np.testing.assert_allclose(own, other)


def test_a_scaling_claim_is_declared_before_its_data_and_its_held_out_sizes_are_logged(tmp_path):
    claim = ScalingClaim("the gain does not shrink", lower=PRE, than=POST, slope_above=-0.3)
    store = fill(tmp_path, sized(claims=(claim,)), scores())
    assert analyse(store).claims[0].declaration.is_confirmatory
    scaling = DeclaredScaling(axis="size", against="tokens", held_out=("s5",), loss="huber", embeddings=True)
    assert read(store).entries[0].scaling == scaling
    fill(tmp_path, sized(claims=(claim,), scaling=Scaling("size", "tokens")), scores())
    analysis = analyse(store)
    assert (
        "held out s5 -> along size against tokens, held out nothing"
        in tables.declarations(analysis).in_form("page").rows[-1][1]
    )


def test_an_axis_of_sizes_is_no_sweep_and_no_exploration(tmp_path):
    steps = Axis("training.steps", {str(n): n for n in STEPS}, name="size")
    axes, baseline = (NORM, steps), BASELINE.replace(training=BASELINE.training.replace(evaluate_every=None))
    analysis = scaled(tmp_path, axes=axes, baseline=baseline, scaling=Scaling("size", "tokens"))
    assert analysis.sweeps == []
    assert {one.axis for one in analysis.explorations} == {"norm"}


def test_results_have_the_scaling_laws(tmp_path):
    store = fill(tmp_path, sized(), scores())
    found = flaxformer.results(store.root).scaling
    assert [fit.labels for fit in found.fits] == [PRE, POST]
    assert scaled(tmp_path / "none", scaling=None).scaling is None


def test_the_scale_of_a_run_is_proportional_to_its_steps():
    one, two = (run_scale(BASELINE.replace(training=BASELINE.training.replace(steps=n))) for n in (6, 12))
    assert two["flops"] == 2 * one["flops"] > 0
    assert (two["tokens"], two["parameters"]) == (2 * one["tokens"], one["parameters"])
    micro_batches = BASELINE.replace(training=BASELINE.training.replace(steps=6, micro_batches=2))
    assert run_scale(micro_batches) == one
    assert one["flops"] == 6 * flops_per_step(BASELINE)
    assert declaration(sized()).scaling.scales["norm=pre,size=s0"].tokens == one["tokens"] * 4 / 6


SLOPE = {"lower": PRE, "than": POST, "slope_above": 0.0}
MISTAKES = {
    "axis": (lambda: sized(scaling=Scaling("sizes")), "scaling has axis='sizes'; did you mean 'size'"),
    "against": (lambda: Scaling("size", against="flop"), "against is 'flop'; did you mean 'flops'"),
    "held out": (lambda: sized(scaling=Scaling("size", held_out="s9")), "holds out size 's9'; did you mean"),
    "held out twice": (lambda: sized(scaling=Scaling("size", held_out=("s5", "s5"))), "expected different levels"),
    "combine": (lambda: sized(combine="one-factor"), "expected combine='product' with scaling"),
    "halving": (
        lambda: tiny(axes=(NORM, RATE), claims=(), scaling=Scaling("rate"), halving=Halving(factor=2, first=3)),
        "expected halving=None",
    ),
    "no scaling": (lambda: sized(scaling=None, claims=(ScalingClaim("c", **SLOPE),)), "the study has no scaling"),
    "two sizes": (lambda: sized(axes=(NORM, short(2)), scaling=Scaling("size"), claims=(ScalingClaim("c", **SLOPE),)),
                  "fewer than 3 sizes"),
    "names the axis": (lambda: sized(claims=(ScalingClaim("c", lower={"size": "s0"}, than=POST, slope_above=0),)),
                       "names axis 'size'"),
    "the same arm": (lambda: sized(claims=(ScalingClaim("c", lower=PRE, than=PRE, slope_above=0),)), "with itself"),
    "an unknown label": (lambda: sized(claims=(ScalingClaim("c", lower={"norm": "prae"}, than=POST, slope_above=0),)),
                         "did you mean 'pre'"),
    "no slope": (lambda: ScalingClaim("c", lower=PRE, than=POST), "none of slope_above, slope_below, slope_within"),
    "two slopes": (lambda: ScalingClaim("c", **SLOPE, slope_below=1), "slope_above and slope_below of"),
    "no arm": (lambda: ScalingClaim("c", than=POST, slope_above=0), "none of lower, higher"),
    "no second arm": (lambda: ScalingClaim("c", lower=PRE, slope_above=0), "than=None; expected labels"),
    "a quantity": (lambda: ScalingClaim("c", lower={"quantity": "q"}, than=POST, slope_above=0), "labels of axes"),
    "not finite": (lambda: ScalingClaim("c", lower=PRE, than=POST, slope_above=math.inf), "expected a finite number"),
    "no margin": (lambda: ScalingClaim("c", lower=PRE, than=POST, slope_within=0.0), "expected a number above 0"),
    "answers": (lambda: ScalingClaim("c", **SLOPE, answers={"supported": "Yes."}), "expected one for each of"),
    "an ordinary claim": (lambda: sized(claims=(Claim("c", lower=PRE, than=POST),)), "no label of axis 'size'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_has_one_message(case):
    declare, message = MISTAKES[case]
    with pytest.raises(UserError) as error:
        declare()
    assert message in str(error.value)
