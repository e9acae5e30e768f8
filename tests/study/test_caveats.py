"""Caveats state the values of the fields that they name, as the study is run."""

import pytest
from study.tiny import BASELINE, tiny

from flaxformer.core.overrides import override
from flaxformer.core.paths import replace_at
from flaxformer.study.caveats import caveats_of, mark_overridden
from flaxformer.study.load import load_study
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{training.steps} steps", "12,000 steps"),
        ("a rate of {optimizer.learning_rate}", "a rate of 0.0003"),
        ("{model.attention}, {model.norm.post_branch}", "Attention, None"),
        ("{model.d_model} and {model.d_model}", "{width} and {width}"),
        ("{} {x} {1} of the set {a, b}", "{} {x} {1} of the set {a, b}"),
    ],
)
def test_fields_are_replaced_by_their_values(text, expected):
    baseline = replace_at(
        BASELINE, {"training.steps": 12_000, "training.evaluate_every": 6_000, "optimizer.learning_rate": 3e-4}
    )
    assert caveats_of([text], baseline) == (expected.replace("{width}", str(BASELINE.model.d_model)),)


def test_a_declaration_has_the_values_of_the_overridden_run():
    text = "One width, {model.d_model}."
    changed = override(BASELINE, ["model.d_model=14"])
    assert declaration(tiny(caveats=[text])).caveats == (f"One width, {BASELINE.model.d_model}.",)
    assert declaration(tiny(baseline=changed, caveats=[text])).caveats == ("One width, 14.",)


@pytest.mark.parametrize(
    ("override", "is_marked"),
    [
        ("training.steps=40", True),
        ("training=Training(steps=40)", True),
        ("training.seconds=1", False),
        ("training.evaluate_every=10", False),
        ("model.attention.heads=2", True),
        ("model.attention_residual=False", False),
    ],
)
def test_a_caveat_says_which_of_its_fields_are_overridden(override, is_marked):
    text = "{training.steps} steps, {model.attention}."
    [marked] = mark_overridden([text], ["seed=1", override])
    assert marked == (f"{text} (Overridden: {override}.)" if is_marked else text)
    assert mark_overridden(["40 steps."], [override]) == ("40 steps.",)


def test_a_study_that_is_loaded_with_overrides_has_marked_caveats(tmp_path):
    file = tmp_path / "marked.py"
    file.write_text(
        "from flaxformer import Axis, Run, Study\n"
        "axes = [Axis('model.layers', {'1': 1, '2': 2})]\n"
        "study = Study(\n"
        "    name='marked', question='?', baseline=Run(), axes=axes, seeds=range(2),\n"
        "    caveats=['{training.steps} steps.'],\n"
        ")\n"
    )
    [caveat] = declaration(load_study(file, ["training.steps=7"])).caveats
    assert caveat == "7 steps. (Overridden: training.steps=7.)"
    assert declaration(load_study(file)).caveats[0].endswith("steps.")


def test_a_path_of_no_field_is_refused():
    with pytest.raises(UserError, match="did you mean 'steps'"):
        tiny(caveats=["{training.step} steps"])
