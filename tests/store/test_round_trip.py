"""What is accepted before training is written and read back exactly; everything else is refused before a write."""

import math
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from study.tiny import fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report.files import write
from flaxformer.store.checks import check_rows
from flaxformer.store.declaration import DeclaredArm, DeclaredAxis
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, Points
from flaxformer.study.plan import declaration
from flaxformer.system import digests
from flaxformer.system.errors import UserError

EXTREME = [2**63 - 1, -(2**63), 1e19, 1e30, -1e300, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 1 / 3]
REFUSED = [2**63, -(2**63) - 1, 10**30, 10**400, -(10**400), math.inf, -math.inf, math.nan]


@pytest.fixture(scope="module")
def declared():
    return declaration(tiny(seeds=range(2)))


def with_levels(declared, levels):
    """The declaration, with these coordinates of its axis of rates."""
    low, high = levels
    rates = replace(declared.axes[1], coordinates={"rate": {"low": low, "high": high}})
    return replace(declared, axes=(declared.axes[0], rates))


def declare(root, data):
    from flaxformer.store.declarations import declare

    store = Store(root)
    with store.locked():
        return declare(store, data)


@pytest.mark.parametrize("value", EXTREME)
def test_extreme_numbers_are_read_as_they_were_written(tmp_path, declared, value):
    axis = Axis("optimizer.learning_rate", {"a": 0.1, "b": value})
    assert axis.coordinates()["learning_rate"]["b"] == value
    for _ in range(2):
        declare(tmp_path, with_levels(declared, (0.1, value)))
        read = Store(tmp_path).declaration.axes[1].coordinates["rate"]["high"]
        assert (repr(read), type(read)) == (repr(value), type(value))
    assert not list(tmp_path.glob("*.damaged*"))


@pytest.mark.parametrize("value", REFUSED)
def test_numbers_that_no_file_holds_are_refused_before_anything_is_written(tmp_path, declared, value):
    expected = "expected a finite number, of at most 64 bits if it is an integer"
    with pytest.raises(UserError, match=f"axis 'learning_rate' has the level 'b' = .*; {expected}"):
        Axis("optimizer.learning_rate", {"a": 0.1, "b": value})
    with pytest.raises(UserError, match=r"(claim 'x' has by=|Claim: by is ).*; expected a (finite )?number"):
        Claim("x", lower={"a": "b"}, than={"a": "c"}, by=abs(value) if value == value else value)
    points = Points("p", {"a": {"optimizer.learning_rate": 1.0}, "b": {"optimizer.learning_rate": value}})
    data = with_levels(declared, points.coordinates()["learning_rate"].values())
    with pytest.raises(UserError, match=r"could not be read back \(.*\); change this in its file; nothing was trained"):
        declare(tmp_path, data)
    assert not (tmp_path / "study.json").exists()
    assert not (tmp_path / "declarations.jsonl").exists()


TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30) | st.sampled_from(
    [
        "x" * 3000,
        "\\u0007",
        "\\ud800 typed",
        "digest",
        "seed",
        "a\u200bb",
        "é",
        "é",
        "\u202eabc",
        "🧪👩‍🔬",
        " lead",
        "%s {}",
    ]
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(label=TEXT, name=TEXT, question=TEXT)
def test_any_text_is_refused_by_name_or_read_as_it_was_written(tmp_path_factory, declared, label, name, question):
    try:
        axis = Axis("optimizer.learning_rate", {"first": 1e-3, label: 1e-2}, name=name)
        study = tiny(axes=(axis,), question=question, claims=(), seeds=range(1))
    except UserError as error:
        assert "expected" in str(error) or "give it another" in str(error)  # noqa: PT017
        return
    assert not any(
        unicodedata.category(character) in ("Cc", "Cs") for character in (label + name).translate({9: "", 10: ""})
    )
    labels = [arm.labels for arm in study.arms()]
    names = [arm.name for arm in study.arms()]
    arms = tuple(
        DeclaredArm(arm=arm, labels=own, group="all", fingerprints=("f",))
        for arm, own in zip(names, labels, strict=True)
    )
    axes = (DeclaredAxis(name=name, path="x", labels=tuple(axis.levels), baseline=None),)
    recipes = dict.fromkeys(names, declared.recipes["norm=pre,rate=low"])
    data = replace(declared, axes=axes, arms=arms, recipes=recipes, seeds=(0,), claims=(), question=question)
    folder = tmp_path_factory.mktemp("text")
    written = declare(folder, data)
    read = Store(folder).declaration
    assert (read.question, read.axes[0].name, read.axes[0].labels) == (question, name, (*axis.levels,))
    assert [trial.labels for trial in read.trials] == labels
    assert read.declaration == written.declaration


def test_a_study_with_extreme_levels_has_a_report(tmp_path):
    levels = {"a": 5e-324, "b": 1e-300, "c": 0.1, "d": 1e30, "e": 1e300}
    study = tiny(axes=(Axis("optimizer.learning_rate", levels),), seeds=range(4), claims=())
    for _ in range(2):
        write(fill(tmp_path, study, lambda trial: 1.0 + abs(math.log10(trial.run.optimizer.learning_rate)) / 1e3))
    assert analyse(Store(tmp_path)).sweeps
    assert not list(tmp_path.rglob("*.damaged*"))


def test_a_row_that_a_table_would_change_is_refused():
    with pytest.raises(ValueError, match="64 bits"):
        check_rows([row("x", metrics={"n": 2**70})])
    check_rows([row("x", labels={"axis": "1"}), row("y", labels={"axis": "two"})])


def row(trial, **changes):
    from flaxformer.store.rows import Row

    return Row(trial=trial, group="g", seed=0, status="done", **changes)


def test_a_whole_file_of_another_form_is_refused_and_left_where_it_is(tmp_path, declared):
    declare(tmp_path, declared)
    content = digests.read_document(tmp_path / "study.json")
    digests.write_document(tmp_path / "study.json", content | {"parameters": 10**30})
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(UserError, match="is not as 'run' writes it: parameters: 1000"):
        declare(tmp_path, declared)
    assert (tmp_path / "study.json").read_bytes() == before
    assert not list(tmp_path.glob("*.damaged*"))
