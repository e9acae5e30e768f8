"""A declaration says what runs there are, and every mistake in one is named with what was expected instead."""

import dataclasses
import re
from typing import ClassVar

import pytest
from study.tiny import BASELINE, NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.components import POST, PRE, LanguageModel, Regressor
from flaxformer.core.paths import replace_at
from flaxformer.study import Axis, Claim, Study
from flaxformer.study.claim import Contrast
from flaxformer.system.errors import UserError
from flaxformer.tasks import ScaledIndex

WARMUP = Axis("optimizer.warmup_steps", {"none": 0, "2": 2, "4": 4}, name="warmup")
HIGH, LOW = {"rate": "high"}, {"rate": "low"}


def names(**changes):
    return [arm.name for arm in tiny(**({"claims": ()} | changes)).arms()]


def test_product_is_every_combination():
    assert names(axes=(NORM, RATE)) == [
        "norm=pre,rate=low", "norm=pre,rate=high", "norm=post,rate=low", "norm=post,rate=high",
    ]  # fmt: skip
    assert len(names(axes=(NORM, RATE, WARMUP))) == 2 * 2 * 3


def test_zip_goes_level_by_level():
    assert names(axes=(NORM, RATE), combine="zip") == ["norm=pre,rate=low", "norm=post,rate=high"]


def test_one_factor_is_the_baseline_and_every_other_level_alone():
    assert names(axes=(NORM, RATE, WARMUP), combine="one-factor") == [
        "norm=pre,rate=low,warmup=none",
        "norm=post,rate=low,warmup=none",
        "norm=pre,rate=high,warmup=none",
        "norm=pre,rate=low,warmup=2",
        "norm=pre,rate=low,warmup=4",
    ]


def test_one_factor_around_a_baseline_that_is_no_level():
    axis = Axis("optimizer.learning_rate", {"high": 1e-2, "higher": 1e-1}, name="rate")
    study = tiny(axes=(axis,), combine="one-factor", claims=())
    assert {arm.name: arm.run.optimizer.learning_rate for arm in study.arms()} == {
        "rate=baseline": 1e-3, "rate=high": 1e-2, "rate=higher": 1e-1,
    }  # fmt: skip


class _Absolute(Regressor):
    loss_name: ClassVar[str | None] = "absolute_error"

    def loss(self, output, targets, weights, label_smoothing=None):
        return (abs(output - targets).mean(-1) * weights).sum(), weights.sum()


@pytest.mark.parametrize(
    ("head", "unit"),
    [(LanguageModel(), "nats"), (Regressor(), "of squared error"), (_Absolute(), "of absolute error")],
)
def test_the_head_says_what_a_loss_counts(head, unit):
    task = ScaledIndex() if isinstance(head, Regressor) else BASELINE.task
    model = BASELINE.model.replace(head=head, inputs=getattr(task, "inputs", BASELINE.model.inputs))
    assert tiny(baseline=BASELINE.replace(model=model, task=task)).unit == unit


def test_no_axes_is_the_baseline_alone():
    study = tiny(axes=(), claims=())
    assert [arm.run for arm in study.arms()] == [BASELINE]
    assert [trial.name for trial in study.trials()] == [f"baseline,seed={seed}" for seed in range(3)]


def test_an_arm_is_the_baseline_with_its_levels():
    for arm in tiny().arms():
        norm, rate = NORM.levels[arm.labels["norm"]], RATE.levels[arm.labels["rate"]]
        assert arm.run == replace_at(BASELINE, {"model.norm": norm, "optimizer.learning_rate": rate})


def test_every_arm_has_every_seed():
    trials = tiny(seeds=[4, 0, 7]).trials()
    assert len({trial.name for trial in trials}) == len(trials) == 4 * 3
    for trial in trials:
        assert trial.run == replace_at(trial.arm.run, {"seed": trial.seed})


def test_an_axis_may_change_several_fields_together():
    axis = Axis(("optimizer.beta1", "optimizer.beta2"), {"0.9": 0.9, "0.5": 0.5})
    baseline = replace_at(BASELINE, {"optimizer.beta2": 0.9})
    study = tiny(baseline=baseline, axes=(axis,), claims=())
    assert axis.name == "beta1"
    assert axis.baseline_label(baseline) == "0.9"
    assert axis.baseline_label(BASELINE) is None
    assert [(arm.run.optimizer.beta1, arm.run.optimizer.beta2) for arm in study.arms()] == [(0.9, 0.9), (0.5, 0.5)]


def test_an_integer_level_is_the_number_it_means():
    assert Axis("optimizer.warmup_steps", {"0": 0}).baseline_label(BASELINE) == "0"


MISTAKES = {
    "path": (lambda: tiny(axes=[Axis("model.nrm", {"pre": PRE, "post": POST})]), ["model.nrm", "norm"]),
    "part of a path": (lambda: tiny(axes=[Axis("modle.norm", {"pre": PRE})]), ["modle.norm", "model"]),
    "path below a number": (lambda: tiny(axes=[Axis("model.layers.x", {"a": 1})]), ["model.layers.x", "no fields"]),
    "level out of bounds": (
        lambda: tiny(axes=[Axis("optimizer.learning_rate", {"a": -1.0})], claims=()),
        ["learning_rate", "-1.0", "at least 0"],
    ),
    "level of another type": (
        lambda: tiny(axes=[Axis("model.layers", {"a": "x"})], claims=()), ["layers", "'x'", "int"],
    ),
    "no levels": (lambda: Axis("model.layers", {}), ["layers", "levels", "at least one"]),
    "same run": (
        lambda: tiny(axes=[Axis("optimizer.learning_rate", {"a": 1e-3, "b": 1e-3}, name="rate")], claims=()),
        ["rate=a", "rate=b", "same"],
    ),
    "same run as integer": (
        lambda: tiny(axes=[Axis("optimizer.warmup_steps", {"a": 1, "b": 1.0})], claims=()), ["=a", "=b", "same"],
    ),
    "seeds twice": (lambda: tiny(seeds=[0, 1, 0]), ["seeds", "(0, 1, 0)", "different"]),
    "no seeds": (lambda: tiny(seeds=[]), ["seeds", "()", "at least one"]),
    "study name up": (lambda: tiny(name="../x"), ["name", "'../x'", "letters"]),
    "study name path": (lambda: tiny(name="a/b"), ["name", "'a/b'", "letters"]),
    "study name empty": (lambda: tiny(name=""), ["name", "''", "letters"]),
    "study name hidden": (lambda: tiny(name=".."), ["name", "'..'", "letters"]),
    "study name newline": (lambda: tiny(name="tiny\n"), ["name", "tiny", "letters"]),
    "axes of one name": (
        lambda: tiny(axes=[NORM, dataclasses.replace(RATE, name="norm")], claims=()), ["norm", "different"],
    ),
    "zip of unequal lengths": (
        lambda: tiny(axes=[NORM, WARMUP], combine="zip", claims=()), ["zip", "'norm': 2", "'warmup': 3", "as many"],
    ),
    "combine": (lambda: tiny(combine="one_factor"), ["combine", "one_factor", "one-factor"]),
    "metric": (lambda: tiny(metric="loss"), ["metric", "'loss'", "validation_loss", "validation_accuracy"]),
    "field of a config": (lambda: BASELINE.model.__class__(d_modle=8), ["d_modle", "d_model"]),
    "lower and higher": (
        lambda: Claim("c", lower=LOW, higher=HIGH, than=LOW), ["'c'", "lower", "higher", "exactly one"],
    ),
    "neither": (lambda: Claim("c", than=LOW), ["'c'", "exactly one"]),
    "lower without than": (lambda: Claim("c", lower=LOW), ["'c'", "lower", "than"]),
    "equal without to": (lambda: Claim("c", equal=LOW, within=1.0), ["'c'", "equal", "to"]),
    "equal without within": (lambda: Claim("c", equal=LOW, to=HIGH), ["'c'", "within", "equal"]),
    "lower with within": (
        lambda: Claim("c", lower=LOW, than=HIGH, within=1.0),
        ["'c'", "by=1.0", "equal=A, to=B, within=1.0"],
    ),
    "within zero": (lambda: Claim("c", equal=LOW, to=HIGH, within=0.0), ["'c'", "within", "> 0"]),
    "by negative": (lambda: Claim("c", lower=LOW, than=HIGH, by=-1.0), ["'c'", "by", "-1.0"]),
    "lower with to": (lambda: Claim("c", lower=LOW, than=HIGH, to=HIGH), ["'c'", "to"]),
    "axis in a claim": (
        lambda: tiny(claims=[Claim("c", lower={"rat": "low"}, than=HIGH)]), ["'c'", "'rat'", "did you mean 'rate'"],
    ),
    "axis in where": (
        lambda: tiny(claims=[Claim("c", lower=LOW, than=HIGH, where={"nrm": "pre"})]),
        ["'c'", "'nrm'", "did you mean 'norm'"],
    ),
    "label in a claim": (
        lambda: tiny(claims=[Claim("c", lower={"rate": "hihg"}, than=LOW)]),
        ["'c'", "rate", "'hihg'", "did you mean 'high'"],
    ),
    "arm that is not run": (
        lambda: tiny(combine="one-factor", claims=[Claim("c", lower=HIGH, than=LOW, where={"norm": "post"})]),
        ["'c'", "post", "high", "not run"],
    ),
    "axis that the baseline leaves open": (
        lambda: tiny(
            axes=[NORM, Axis("optimizer.learning_rate", {"a": 0.1, "b": 0.2}, name="rate")],
            claims=[Claim("c", lower={"norm": "pre"}, than={"norm": "post"})],
        ),
        ["'c'", "rate", "baseline"],
    ),
    "arm against itself": (lambda: tiny(claims=[Claim("c", lower=LOW, than=LOW)]), ["'c'"]),
}  # fmt: skip


@pytest.mark.parametrize("make", [pytest.param(*case[:1], id=name) for name, case in MISTAKES.items()])
def test_a_mistake_is_named_with_what_was_expected(make, request):
    expected = next(words for mistake, words in MISTAKES.values() if mistake is make)
    with pytest.raises(UserError) as error:
        make()
    missing = [word for word in expected if word not in str(error.value)]
    assert not missing, str(error.value)


COLUMNS = "trial group seed status error fingerprint validation_loss initial_validation_loss diverged_at device seconds"


@pytest.mark.parametrize("name", COLUMNS.split())
def test_an_axis_cannot_take_the_name_of_a_column_of_the_results(name):
    with pytest.raises(UserError, match=re.escape(f"'{name}'")):
        tiny(axes=[Axis("optimizer.learning_rate", {"a": 0.1}, name=name)], claims=())


@pytest.mark.parametrize("kind", ["lower", "higher"])
def test_a_claim_about_the_baseline_itself_names_no_axis(kind):
    claim = Claim("it learns", **{kind: {}}, than=1.0)
    assert claim.first == {}
    assert claim.contrast(dict).constant == (1.0 if kind == "lower" else -1.0)


def test_a_claim_stays_at_the_baseline_where_it_says_nothing():
    study = tiny(
        axes=(NORM, RATE, WARMUP),
        baseline=replace_at(BASELINE, {"model.norm": POST, "optimizer.warmup_steps": 2.0}),
        claims=[Claim("c", lower=HIGH, than=LOW)],
    )
    assert study.contrasts() == [
        Contrast(
            [
                (-1.0, {"norm": "post", "rate": "high", "warmup": "2"}),
                (1.0, {"norm": "post", "rate": "low", "warmup": "2"}),
            ]
        )
    ]


def test_an_interaction_has_four_arms():
    [contrast] = tiny(
        claims=[Claim("c", higher=HIGH, than=LOW, where={"norm": "post"}, more_than_where={"norm": "pre"})]
    ).contrasts()
    assert [(weight, tuple(labels.values())) for weight, labels in contrast.terms] == [
        (1.0, ("post", "high")), (-1.0, ("post", "low")), (-1.0, ("pre", "high")), (1.0, ("pre", "low")),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["lower", "higher", "equal"])
def test_an_effect_is_positive_as_claimed(kind):
    other = {"to": LOW, "within": 1.0} if kind == "equal" else {"than": LOW}
    [contrast] = tiny(claims=[Claim("c", **{kind: HIGH}, **other)]).contrasts()
    first, second = contrast.terms
    assert (first[0], second[0]) == ((-1.0, 1.0) if kind == "lower" else (1.0, -1.0))
    assert (first[1]["rate"], second[1]["rate"]) == ("high", "low")


@pytest.mark.parametrize("label", ["1,y=2", "", "a=b", 3])
def test_labels_that_are_equal_in_a_name_are_refused(label):
    with pytest.raises(UserError, match=r"axis 'x'|Axis: levels: a key is 3; expected text"):
        Axis("optimizer.learning_rate", {"1": 1e-3, label: 1e-2}, name="x")


def test_a_study_cannot_be_changed_by_accident():
    levels, seeds = {"low": 1e-3, "high": 1e-2}, [0, 1]
    study = Study(
        name="s", question="?", baseline=BASELINE, axes=[Axis("optimizer.learning_rate", levels)], seeds=seeds
    )
    levels["huge"] = 1.0
    seeds.append(2)
    assert len(study.trials()) == 4


def test_one_factor_at_a_time_has_a_baseline_arm_to_claim_against_and_to_explore():
    rates = Axis("optimizer.learning_rate", {"half": 5e-4, "double": 2e-3}, name="rate")
    claim = Claim("double is better", lower={"rate": "double"}, than={"rate": "baseline"})
    study = tiny(axes=(NORM, rates), combine="one-factor", claims=[claim])
    assert study.contrasts() == [
        Contrast([(-1.0, {"norm": "pre", "rate": "double"}), (1.0, {"norm": "pre", "rate": "baseline"})])
    ]
    assert study.labels(rates) == ["baseline", "half", "double"]
    with pytest.raises(UserError, match="baseline"):
        tiny(axes=(NORM, rates), claims=[claim]).contrasts()


def test_one_factor_studies_are_explored_against_their_baseline(tmp_path):
    rates = Axis("optimizer.learning_rate", {"half": 5e-4}, name="rate")
    study = tiny(axes=(NORM, rates), combine="one-factor", claims=(), seeds=range(6))
    store = fill(tmp_path, study, lambda trial: 2.0 + (0.5 + 0.01 * trial.seed) * (trial.arm.labels["rate"] == "half"))
    found = {(one.axis, one.label, one.reference): one for one in analyse(store).explorations}
    assert set(found) == {("norm", "post", "pre"), ("rate", "half", "baseline")}
    assert found["rate", "half", "baseline"].is_significant
    assert not found["norm", "post", "pre"].is_significant
