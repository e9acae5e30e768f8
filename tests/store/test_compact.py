"""The compact form of a declaration on disk gives back the declaration, whatever it holds."""

import json

import pytest
from study.tiny import NORM, RATE, tiny

from flaxformer.store import records
from flaxformer.store.compact import compact, expand
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store
from flaxformer.study.plan import declaration
from flaxformer.system.digests import DamagedError


def as_written(data):
    return json.loads(json.dumps(data))


def exact(data):
    """The data as text, which tells 1 from 1.0 and from True; the order of names is not part of it."""
    return json.dumps(data, sort_keys=True)


@pytest.mark.parametrize("combine", ["product", "one-factor"])
@pytest.mark.parametrize("axes", [(), (NORM,), (RATE, NORM)])
@pytest.mark.parametrize("seeds", [[0], [5, 3, 4]])
def test_a_declaration_comes_back_from_its_compact_form(combine, axes, seeds):
    declared = as_written(declaration(tiny(axes=axes, seeds=seeds, combine=combine, claims=())))
    assert exact(expand(as_written(compact(declared)))) == exact(declared)


RECIPE = {"run": {"model": {"width": 8, "norm": {"kind": "LayerNorm"}}, "seed.s": [1, 2]}, "data": {"a.b": "x"}}
OTHERS = [
    RECIPE,
    {},
    {"run": None, "data": {}},
    {"run": {"model": {"width": 8.0, "norm": None}, "seed.s": [1, 2.0]}, "data": {"a.b": "x", "": {"": []}}},
    {"run": {"model": {"width": True, "norm": {"kind": "RMSNorm", "new": -0.0}}, "seed.s": {}}, "code": {"a.B": "d"}},
    {"run": {"model": {"width": float("nan"), "norm": {}}}, "data": "text"},
]


@pytest.mark.parametrize("first", range(len(OTHERS)))
def test_recipes_of_any_form_come_back(first):
    recipes = {f"arm{i}": OTHERS[(first + i) % len(OTHERS)] for i in range(len(OTHERS))}
    declared = {"trials": [], "seeds": [0], "recipes": recipes}
    before = exact(declared)
    assert exact(expand(as_written(compact(declared)))) == exact(declared) == before


def test_trials_of_another_order_are_listed_one_by_one():
    declared = as_written(declaration(tiny()))
    declared["trials"] = declared["trials"][::-1]
    assert "arms" not in compact(declared)
    assert expand(as_written(compact(declared))) == declared


def test_a_folder_of_the_earlier_form_is_read(tmp_path):
    store = Store(tmp_path)
    with store.locked():
        declared = declare(store, declaration(tiny()))
    records.write_document(tmp_path / "study.json", as_written(declared) | {"format": 3})
    assert store.declaration == as_written(declared) | {"format": 3}


@pytest.mark.parametrize(
    "changes",
    [{"arms": 3}, {"arms": [{}]}, {"recipes": {}}, {"recipe_changes": {"a": [["x", 1]]}}, {"recipe_changes": 7}],
)
def test_a_form_that_lacks_a_part_is_damage(changes):
    with pytest.raises(DamagedError, match="its arms or recipes are not as they were written"):
        expand(as_written(compact(as_written(declaration(tiny())))) | changes)
