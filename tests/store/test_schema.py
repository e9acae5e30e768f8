"""Declarations that another program wrote: each part of another type, or that does not fit the others, is refused."""

import copy
import json

import pytest
from study.tiny import fill, tiny

from flaxformer.store import schema
from flaxformer.store.compact import expand
from flaxformer.store.declaration_log import read
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.system import digests
from flaxformer.system.errors import UserError

OTHERS = [3, 1.5, "x", True, [], {}, [[1]], {"x": {"y": 1}}]


@pytest.fixture(scope="module")
def declarations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("declared")
    fill(folder, tiny(), lambda trial: 1.0)
    claim = Claim("it is small", lower={"quantity": "size"}, than=9)
    probe = Probe(name="p", question="How large?", measure=lambda seed: {"size": 1.0}, claims=[claim])
    return [expand(digests.read_document(folder / "study.json")), json.loads(json.dumps(probe.declaration()))]


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


def test_declarations_of_this_package_are_accepted(declarations):
    for data in declarations:
        schema.check_declaration(data)
        assert data["kind"] in ("study", "probe")


def test_a_part_of_another_type_is_refused_with_its_path(declarations):
    for data in declarations:
        for path, value in parts(data):
            own = "recipes" in path[:1] or path[0] == "format"  # a recipe is shown, and never read
            for other in [] if own or value is None else OTHERS:
                if is_alike(value, other) or ("coordinates" in path and other == "x"):
                    continue
                with pytest.raises(digests.DamagedError, match=r"; expected ") as error:
                    schema.check_declaration(replaced(data, path, other))
                assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("trials", 0, "labels"), {"norm": "pre"}, "a label of each axis: norm, rate"),
        (
            ("trials", 0, "labels", "norm"),
            "sandwich",
            "trials.0.labels.norm is 'sandwich'; expected a label of axis norm",
        ),
        (("trials", 0, "seed"), 7, "a name of its own that ends in ,seed=SEED"),
        (("trials", 1, "trial"), "norm=pre,rate=low,seed=0", "a name of its own"),
        (("axes", 0, "baseline"), "none", "axes.0.baseline is 'none'; expected one of its labels"),
        (("axes", 1, "coordinates", "rate"), {"low": 1}, "the labels low, high"),
        (("seeds",), [0, 0, 1], "seeds is"),
        (("seeds",), [], "seeds is"),
        (("claims", 0, "kind"), "between", "lower or higher or equal"),
        (("claims", 0, "terms", 0), [1.0], r"expected \[weight, labels\]"),
        (("claims", 0, "terms", 0), [0.0, {}], "a weight other than 0"),
        (("claims", 0, "by"), float("nan"), "claims.0.by is nan; expected a number"),
        (("claims", 2, "within"), None, "a margin"),
        (("parameters",), 10**30, "parameters is"),
        (("kind",), "sweep", "study or probe"),
    ],
)
def test_parts_that_do_not_fit_are_refused(declarations, path, value, message):
    with pytest.raises(digests.DamagedError, match=message):
        schema.check_declaration(replaced(declarations[0], path, value))


def test_a_folder_with_a_malformed_declaration_is_refused(tmp_path, declarations):
    digests.write_document(tmp_path / "study.json", replaced(declarations[0], ("claims",), 3))
    with pytest.raises(UserError, match=r"study.json is not as 'run' writes it: claims is 3; expected a list"):
        _ = Store(tmp_path).declaration


def test_a_malformed_entry_of_the_log_is_a_fault(tmp_path):
    store = fill(tmp_path, tiny(), lambda trial: 1.0)
    path = tmp_path / "declarations.jsonl"
    [row] = digests.lines(path)[0]
    path.write_bytes(digests.line(row | {"claims": [3]}))
    assert any("claims.0 is 3; expected an object" in fault for fault in read(store).faults)
