"""Declarations that another program wrote: each part of another type, or that does not fit the others, is refused."""

import copy
import json

import pytest
from study.tiny import fill, tiny

from flaxformer.store import declaration
from flaxformer.store.declaration_log import read
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.study import plan as plans
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain

OTHERS = [3, 1.5, "x", True, [], {}, [[1]], {"x": {"y": 1}}]
SHOWN = ("recipes", "format", "run", "data", "changes")
"""Fields whose content is shown, and never read."""


@pytest.fixture(scope="module")
def declarations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("declared")
    fill(folder, tiny(), lambda trial: 1.0)
    claim = Claim("it is small", lower={"quantity": "size"}, than=9)
    probe = Probe(name="p", question="How large?", measure=lambda seed: {"size": 1.0}, claims=[claim])
    return [digests.read_document(folder / "study.json"), json.loads(json.dumps(plain(probe.declaration())))]


def parts(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from parts(value, (*path, key))


def replaced(data, path, value):
    data = copy.deepcopy(data)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


def is_alike(one, other):
    """True if two values are of one kind: both numbers, or of one type."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)]
    return all(numbers) or type(one) is type(other)


def test_declarations_of_this_package_are_read_back_as_they_were_written(declarations):
    for data in declarations:
        again = json.loads(json.dumps(plain(declaration.read(data))))
        assert again == data


def test_declaration_of_a_study_is_read_back_as_it_was_made():
    made = plans.declaration(tiny())
    assert declaration.read(json.loads(json.dumps(plain(made)))) == made
    assert [trial.trial for trial in made.trials] == [trial.name for trial in tiny().trials()]
    assert len(set(made.fingerprints.values())) == len(made.trials)


def test_a_part_of_another_type_is_refused_with_its_path(declarations):
    tried = 0
    for data in declarations:
        for path, value in parts(data):
            for other in [] if {*path} & {*SHOWN} or value is None else OTHERS:
                if is_alike(value, other) or ("coordinates" in path and other == "x"):
                    continue
                with pytest.raises(digests.DamagedError, match=r"[Ee]xpected |Invalid") as error:
                    declaration.read(replaced(data, path, other))
                assert str(error.value).isprintable()
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("field", ["name", "question", "metric", "unit", "seeds", "kind", "format"])
def test_a_required_field_that_is_absent_is_named(declarations, field):
    with pytest.raises(digests.FormError, match=f"missing required field `{field}`"):
        declaration.read({name: value for name, value in declarations[0].items() if name != field})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("arms", 0, "labels"), {"norm": "pre"}, "a label of each axis: norm, rate"),
        (("arms", 0, "labels", "norm"), "sandwich", "'norm': 'sandwich'.*; expected labels of axis norm"),
        (("arms", 1, "arm"), "norm=pre,rate=low", "arms is 4; expected different names"),
        (("arms", 1, "arm"), "norm=pre,rate=none", "expected one of norm=pre,rate=none"),
        (("arms", 0, "fingerprints"), ["x"], "expected 3 fingerprints"),
        (("arms", 0, "initial_weights"), ["x"], "expected 3 digests"),
        (("axes", 0, "baseline"), "none", "baseline of axis norm is 'none'; expected one of its labels"),
        (("axes", 1, "coordinates", "rate"), {"low": 1}, "coordinates.rate is .*; expected a value per label"),
        (("seeds",), [0, 0, 1], "seeds is"),
        (("seeds",), [], "seeds is"),
        (("claims", 0, "kind"), "between", r"claims\[0\].kind: 'between'; Invalid enum value"),
        (("claims", 0, "terms", 0), [1.0], r"claims\[0\].terms\[0\]: \[1.0\]; Expected `array` of length 2"),
        (("claims", 0, "terms", 0), [0.0, {}], "weights other than 0"),
        (("claims", 0, "by"), float("nan"), r"claims\[0\].by: nan; Expected `float`"),
        (("claims", 2, "within"), None, "a margin"),
        (("parameters",), 10**30, "parameters: 10+; "),
        (("kind",), "sweep", "kind: 'sweep'; "),
    ],
)
def test_parts_that_do_not_fit_are_refused(declarations, path, value, message):
    with pytest.raises(digests.DamagedError, match=message):
        declaration.read(replaced(declarations[0], path, value))


def test_a_folder_with_a_malformed_declaration_is_refused(tmp_path, declarations):
    digests.write_document(tmp_path / "study.json", replaced(declarations[0], ("claims",), 3))
    with pytest.raises(UserError, match=r"is not as 'run' writes it: claims: 3; Expected `array`, got `int`"):
        _ = Store(tmp_path).declaration


def test_a_malformed_entry_of_the_log_is_a_fault(tmp_path):
    store = fill(tmp_path, tiny(), lambda trial: 1.0)
    path = tmp_path / "declarations.jsonl"
    [row] = digests.lines(path)[0]
    path.write_bytes(digests.line(row | {"claims": [3]}))
    assert any("claims[0]: 3; Expected `object`, got `int`" in fault for fault in read(store).faults)
