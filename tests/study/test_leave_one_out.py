"""Leave-one-out studies: their arms against a brute-force list, the order of features, and mistakes by their names."""

import itertools

import pytest
from study.tiny import BASELINE

from flaxformer.components import POST, LayerScale, RMSNorm
from flaxformer.core.canonical import canonical_text
from flaxformer.study import Axis, Claim, Study, leave_one_out
from flaxformer.system.errors import UserError
from flaxformer.training import SGD

FEATURES = {
    "norm": {"model.norm": POST},
    "QK norm": {"model.attention.query_key_norm": RMSNorm()},
    "SGD": {"optimizer": SGD, "optimizer.learning_rate": 0.1},
    "warm-up": {"optimizer.warmup_steps": 3},
    "scale": {"model.residual": LayerScale(), "model.attention.logit_cap": 20.0},
}


def changed(names):
    """The baseline with features, by the fields of its configs one after another."""
    run = BASELINE
    if "norm" in names:
        run = run.replace(model=run.model.replace(norm=POST))
    if "QK norm" in names:
        attention = run.model.attention.replace(query_key_norm=RMSNorm())
        run = run.replace(model=run.model.replace(attention=attention))
    if "SGD" in names:
        run = run.replace(optimizer=SGD(learning_rate=0.1))
    if "warm-up" in names:
        run = run.replace(optimizer=run.optimizer.replace(warmup_steps=3))
    if "scale" in names:
        attention = run.model.attention.replace(logit_cap=20.0)
        run = run.replace(model=run.model.replace(residual=LayerScale(), attention=attention))
    return canonical_text(run)


def runs(study):
    return {arm.name: canonical_text(arm.run) for arm in study.arms()}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_arms_are_none_each_all_and_all_but_each_and_their_order_has_no_effect(n):
    features = dict(itertools.islice(FEATURES.items(), n))
    study = leave_one_out(BASELINE, features)
    subsets = (set(itertools.compress(features, chosen)) for chosen in itertools.product((0, 1), repeat=n))
    expected = [changed(names) for names in subsets if len(names) in {0, 1, n - 1, n}]
    assert sorted(runs(study).values()) == sorted(expected)
    assert len(study.arms()) == {1: 2, 2: 4}.get(n, 2 * n + 2)
    mirrored = leave_one_out(BASELINE, dict(reversed(features.items())))
    assert runs(mirrored) == runs(study)
    assert mirrored.contrasts() == study.contrasts()


def test_every_feature_is_claimed_within_the_whole_and_alone():
    study = leave_one_out(BASELINE, FEATURES, metric="validation_accuracy")
    assert len(study.claims) == 2 * len(FEATURES)
    expected = []
    for context in (set(FEATURES), set()):
        for name in sorted(FEATURES):
            arms = [context | {name}, context - {name}]
            labels = [{f: "with" if f in arm else "without" for f in sorted(FEATURES)} for arm in arms]
            expected.append([(1.0, labels[0]), (-1.0, labels[1])])
    assert [contrast.terms for contrast in study.contrasts()] == expected


@pytest.mark.parametrize(
    ("n", "options", "number"),
    [(1, {}, 1), (1, {"adding": False}, 1), (2, {}, 4), (3, {"removing": False}, 3), (3, {"adding": False}, 3)],
)
def test_claims_are_optional_and_of_one_feature_made_once(n, options, number):
    total = Claim("all is better", lower=dict.fromkeys(list(FEATURES)[:n], "with"), than=2.0)
    study = leave_one_out(BASELINE, dict(itertools.islice(FEATURES.items(), n)), claims=[total], **options)
    assert len(study.claims) == number + 1
    assert study.claims[-1] == total


RATE = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")
THREE = Axis("optimizer.warmup_steps", {"0": 0, "1": 1, "2": 2}, name="warm-up")
NEITHER = Axis("optimizer.warmup_steps", {"1": 1, "2": 2}, name="warm-up")
MISTAKES = {
    "no feature": (lambda: leave_one_out(BASELINE, {}), "features are {}; expected at least one"),
    "no change": (lambda: leave_one_out(BASELINE, {"a": {}}), "features are {'a': {}}; expected"),
    "one path": (
        lambda: leave_one_out(BASELINE, FEATURES | {"pre": {"model.norm": POST}}),
        "features 'norm' and 'pre' cannot be combined: both change model.norm",
    ),
    "together": (
        lambda: leave_one_out(
            BASELINE,
            FEATURES | {"one key": {"model.attention.key_value_heads": 2}, "heads": {"model.attention.heads": 1}},
        ),
        "features 'heads' and 'one key' cannot be combined: key_value_heads is 2; expected a divisor of heads 1",
    ),
    "alone": (
        lambda: leave_one_out(BASELINE, FEATURES | {"x": {"model.layers": -1}}),
        "feature 'x' does not fit the baseline: ModelConfig.layers is -1",
    ),
    "field": (
        lambda: leave_one_out(BASELINE, FEATURES | {"y": {"optimizer.momentum": 0.5}}),
        "feature 'y' does not fit the baseline: 'optimizer.momentum': AdamW has no field 'momentum'",
    ),
    "no effect": (lambda: leave_one_out(BASELINE, {"a": {"model.layers": 1}}), "'a=with' are the same run"),
    "direction": (
        lambda: leave_one_out(BASELINE, FEATURES, metric="score", measure=lambda params, run: {}),
        "metric is 'score', which has no direction",
    ),
    "levels": (
        lambda: Study(name="s", question="q?", baseline=BASELINE, axes=[RATE, THREE], combine="leave-one-out"),
        "axis 'warm-up' has the levels ['0', '1', '2']; expected two, of which one is the baseline",
    ),
    "baseline": (
        lambda: Study(name="s", question="q?", baseline=BASELINE, axes=[RATE, NEITHER], combine="leave-one-out"),
        "axis 'warm-up' has the levels ['1', '2']; expected two, of which one is the baseline",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_one_message_that_names_the_features(name):
    make, message = MISTAKES[name]
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
