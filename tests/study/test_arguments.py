"""Arguments of declarations: one message that names the argument, for every class, argument and wrong value."""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from study import tiny

from flaxformer import study as declarations
from flaxformer.bench.declare import Benchmark, Limit, Way
from flaxformer.bench.suite import BenchmarkGoal, Section, Suite
from flaxformer.claims.case import Case
from flaxformer.core.struct import Config
from flaxformer.study import (
    Axis,
    Choice,
    Claim,
    EqualCost,
    Halving,
    Integer,
    LogUniform,
    Points,
    Probe,
    Scaling,
    ScalingClaim,
    Search,
    Study,
    Uniform,
    sample_points,
)
from flaxformer.system.arguments import check_arguments, check_call, hints_of
from flaxformer.system.errors import UserError, quote


class Unprintable:
    """A value whose representation raises an exception."""

    def __repr__(self) -> str:
        raise RuntimeError


def measure(seed: int) -> dict[str, float]:
    return {"x": 0.0}


WAY = Way("ours", measure)
BENCHMARK: dict[str, Any] = {
    "question": "q?",
    "ways": [WAY],
    "options": {"size": [1]},
    "compared": "rate",
    "reference": "ours",
}
CLAIM = Claim("x is 0", equal={"quantity": "x"}, to=0.0, within=0.1)
PROBE = Probe(name="p", question="q?", measure=measure, claims=[CLAIM])
SPACE = {"optimizer.learning_rate": LogUniform(1e-4, 1e-2)}
VALID: dict[Callable[..., Any], dict[str, Any]] = {
    Study: {"name": "s", "question": "q?", "baseline": tiny.BASELINE},
    Search: {"name": "s", "question": "q?", "baseline": tiny.BASELINE, "space": SPACE},
    Probe: {"name": "p", "question": "q?", "measure": measure},
    Axis: {"path": "model.layers", "levels": {"1": 1}},
    Points: {"name": "p", "levels": {"1": {"model.layers": 1}}},
    Claim: {"text": "t", "lower": {"a": "1"}, "than": {"a": "2"}},
    ScalingClaim: {"text": "t", "lower": {"a": "1"}, "than": {"a": "2"}, "slope_above": 0.0},
    Halving: {},
    Scaling: {"axis": "size"},
    EqualCost: {"quantity": "compute"},
    Uniform: {"low": 0, "high": 1},
    LogUniform: {"low": 1, "high": 2},
    Integer: {"low": 0, "high": 1},
    Choice: {"values": [1, 2]},
    sample_points: {"space": SPACE, "samples": 2},
    Case: {"claim": "c", "source": "s", "evidence": [PROBE]},
    Way: {"name": "w", "measure": measure},
    Limit: {"number": "n", "way": "w"},
    Benchmark: BENCHMARK,
    BenchmarkGoal: {"words": "w", "section": "s", "way": "ours", "number": "n", "at_least": 1},
    Section: {"benchmark": Benchmark(**BENCHMARK)},
    Suite: {"question": "q?", "sections": {"s": Section(Benchmark(**BENCHMARK))}},
}
"""Valid arguments of every public declaration."""
WRONG = [3.5, 10**5000, "x" * 1000, b"x", object(), Unprintable(), [Unprintable()], {"a": Unprintable()}, {3: "x"}, int]
"""Values of which every argument but those of any type accepts at most some."""


def rejected(kind: Callable[..., Any], name: str, value: object) -> str:
    """The message of a declaration with one wrong argument; "" if it is accepted."""
    try:
        kind(**VALID[kind] | {name: value})
    except UserError as error:
        return str(error)
    return ""


def arguments() -> Iterator[tuple[Callable[..., Any], str]]:
    for kind in VALID:
        hints = hints_of(kind.__init__) if kind is Points else hints_of(kind)
        for name in inspect.signature(kind).parameters:
            assert name in hints
            yield kind, name


@pytest.mark.parametrize(("kind", "name"), list(arguments()), ids=lambda one: getattr(one, "__name__", one))
def test_a_value_of_no_accepted_type_is_one_short_message_that_names_the_argument(
    kind: Callable[..., Any], name: str
) -> None:
    messages = {quote(value): rejected(kind, name, value) for value in WRONG}
    assert sum(map(bool, messages.values())) >= len(WRONG) - 3  # such as a text where a text is expected
    message = messages[quote(b"x")]
    assert name in message
    assert "b'x'" in message
    assert "expected" in message
    assert all(len(message) < 700 for message in messages.values())


def test_every_public_declaration_is_in_the_table() -> None:
    made_by_the_package = {declarations.Arm, declarations.Trial}
    public = {getattr(declarations, name) for name in declarations.__all__}
    classes = {one for one in public if dataclasses.is_dataclass(one) and not issubclass(one, Config)}
    assert classes - made_by_the_package <= set(VALID)


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        (Study, "combine", 3, "Study: combine is 3; expected 'product' or 'zip' or 'one-factor' or 'leave-one-out'"),
        (Study, "combine", "prodct", "Study: combine is 'prodct'; did you mean 'product'"),
        (Study, "axes", {"a": 1}, "Study: axes is {'a': 1}; expected a list of Axis"),
        (Study, "axes", [3], r"Study: axes\[0\] is 3; expected Axis"),
        (Study, "axes", None, "Study: axes is None; expected a list of Axis"),
        (Study, "claims", 3, "Study: claims is 3; expected a list of Claim or ScalingClaim"),
        (Study, "keep", 3, "Study: keep is 3; expected 'final' or 'best' or 'all' or None"),
        (Study, "halving", "x", "Study: halving is 'x'; expected Halving or None"),
        (Study, "baseline", None, "Study: baseline is None; expected Run"),
        (Study, "name", 3, "Study: name is 3; expected text"),
        (Study, "name", "n" * 300, r"name is 'n+… \(302 characters\); expected at most 200 characters"),
        (Study, "caveats", "one text", "Study: caveats is 'one text'; expected a list of texts"),
        (Study, "seeds", itertools.count(), "Study: seeds has more than 1,000,000 items"),
        (Study, "seeds", range(10**12), "Study: seeds has more than 1,000,000 items"),
        (Study, "seeds", [True], r"Study: seeds\[0\] is True; expected a whole number"),
        (Claim, "by", "0.1", "Claim: by is '0.1'; expected a number"),
        (Claim, "lower", ["4"], r"Claim: lower is \['4'\]; expected a dict {text: text} or None"),
        (Claim, "lower", {"heads": 4}, r"Claim: lower\['heads'\] is 4; expected text"),
        (Claim, "answers", {1: ""}, "Claim: answers: a key is 1; expected text"),
        (Axis, "path", 3, "Axis: path is 3; expected text or a list of texts"),
        (Axis, "path", (), r"Axis: path is \(\)"),
        (Halving, "factor", 2.5, "Halving: factor is 2.5; expected a whole number"),
        (sample_points, "samples", 10**9, "samples is 1,000,000,000; expected at most 100,000"),
        (Points, "levels", {"a": 3}, r"Points: levels\['a'\] is 3; expected a dict {text: object}"),
    ],
)
def test_message_says_what_was_expected(kind: Callable[..., Any], name: str, value: object, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        kind(**VALID[kind] | {name: value})


@pytest.mark.parametrize(
    "axes",
    [
        [Axis(f"axis.{n}", {str(level): level for level in range(1000)}, name=f"a{n}") for n in range(3)],
        [Axis(f"axis.{n}", {"0": 0, "1": 1}, name=f"a{n}") for n in range(30)],
    ],
    ids=["10^9", "2^30"],
)
def test_too_many_arms_are_refused_before_any_is_made(axes: list[Axis], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("an arm was made")

    monkeypatch.setattr("flaxformer.study.declare.Arm", fail)
    number = 5 * int(np.prod([len(axis.levels) for axis in axes]))
    with pytest.raises(UserError, match=f"which are {number:,} trials; expected at most 100,000"):
        Study(**VALID[Study] | {"axes": axes})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"options": {f"o{n}": range(1000) for n in range(3)}}, "o0 1,000, o1 1,000, o2 1,000 values.* 5,000,000,000"),
        ({"options": {f"o{n}": (0, 1) for n in range(30)}}, f"which are {5 * 2**30:,} measurements"),
        ({"quick": {"size": range(10**5)}}, "which are 500,000 measurements; expected at most 100,000"),
        ({"rounds": 10**9}, "rounds are 1,000,000,000, which are 1,000,000,000 measurements"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"options": {"size": []}}, r"options\['size'\] has no values; expected at least one"),
        ({"options": {"size": itertools.count()}}, r"options\['size'\] is count\(0\); expected a list"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_too_many_measurements_are_refused_before_any_point_is_made(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Benchmark(**BENCHMARK | change)


def test_a_generator_and_numbers_of_numpy_are_converted() -> None:
    study = Study(**VALID[Study] | {"seeds": (np.int64(seed) for seed in range(3))})
    assert study.seeds == (0, 1, 2)
    assert all(type(seed) is int for seed in study.seeds)
    assert Study(**VALID[Study] | {"seeds": np.arange(3)}).seeds == (0, 1, 2)


def test_call_is_checked_with_its_defaults_left_alone() -> None:
    @check_call
    def double(n: int, by: float = 2) -> float:
        return n * by

    assert double(np.int64(3)) == 6
    assert double(3, by=1) == 3
    with pytest.raises(UserError, match=r"double: by is '2'; expected a number"):
        double(3, by="2")  # type: ignore[arg-type]


def test_frozen_dataclass_without_sequences_stays_as_it_is() -> None:
    claim = Claim("t", lower={"a": "1"}, than={"a": "2"})
    check_arguments(claim)
    assert claim.lower == {"a": "1"}
