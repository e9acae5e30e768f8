"""Texts, numbers and functions of a declaration that could not be shown, compared or called."""

import math

import pytest
from study.tiny import RATE, tiny

from flaxformer.study import Axis, Claim, Probe
from flaxformer.system.errors import UserError

CLAIM = {"lower": {"quantity": "size"}, "than": 1.0}
PROBE = {"name": "p", "question": "How large?", "measure": lambda seed: {"size": 0.0}, "claims": [Claim("x", **CLAIM)]}
WRONG = {"escape": "\x1b[31mred", "bell": "\x07", "surrogate": "\udcff", "c1": "\x9b31m", "none": None, "number": 3}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda text: tiny(question=text), "question"),
        (lambda text: tiny(caveats=["fine", text]), r"caveats\[1\]"),
        (lambda text: tiny(metric_unit=text), "unit"),
        (lambda text: Claim(text, **CLAIM), "claim text"),
        (
            lambda text: Claim("x", **CLAIM, answers={"supported": text, "refuted": "b", "inconclusive": "c"}),
            r"claim 'x' answers\['supported'\]",
        ),
        (lambda text: Axis("optimizer.learning_rate", {text: 0.1}), "label of axis 'learning_rate'"),
        (lambda text: Probe(**PROBE | {"question": text}), "question"),
        (lambda text: Probe(**PROBE | {"caveats": [text]}), r"caveats\[0\]"),
        (lambda text: Probe(**PROBE, unit=text), "unit"),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused(make, name, text):
    place = name if isinstance(text, str) else r"(Study|Claim|Axis|Probe): [a-z_\[\]'0-9]+(: a key)?"
    with pytest.raises(UserError, match=f"^{place} is .*; expected (printable )?text$") as error:
        make(text)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "claim",
    [
        lambda x: Claim("x", lower={"rate": "high"}, than=x),
        lambda x: Claim("x", lower={"rate": "high"}, than={"rate": "low"}, by=x),
        lambda x: Claim("x", equal={"rate": "high"}, to=x, within=1),
        lambda x: Claim("x", equal={"rate": "high"}, to={"rate": "low"}, within=x),
    ],
)
def test_numbers_of_a_claim_are_finite(claim, number):
    with pytest.raises(UserError, match=r"claim 'x' has (than|by|to|within)=.*; expected a finite number"):
        claim(number)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: tiny(axes=(RATE,), claims=(), measure=value), "measure"),
        (lambda value: tiny(axes=(RATE,), claims=(), derive=value), "derive"),
        (lambda value: Probe(**PROBE | {"measure": value}), "measure"),
    ],
)
@pytest.mark.parametrize("value", [3, "measure", {"a": 1}])
def test_functions_can_be_called(make, name, value):
    with pytest.raises(UserError, match=f"{name} is .*; expected a function"):
        make(value)
