"""Fields of every config of the package: a value of a wrong type is one short message that names the field."""

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import flaxformer
from flaxformer.core.struct import Config
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, TextFiles

SKIPPED = ("flaxformer.cli", "flaxformer.cli.templates", "flaxformer.interop")
for module in pkgutil.walk_packages(flaxformer.__path__, "flaxformer."):
    if not module.name.startswith(SKIPPED):
        importlib.import_module(module.name)

TEXT = TextFiles(path="text.txt")
REQUIRED: dict[str, Any] = {
    "max_length": 8, "classes": 3, "width": 4, "height": 8, "size": 4, "base_width": 8, "weights": ("*",), "path": "p",
    "source_path": "s", "target_path": "t", "name": "n", "task": TEXT, "old": "a", "new": "b", "start": 1,
    "template": "{text}", "labels": ("a", "b"), "factor": 2.0, "original_length": 8.0, "text": "text",
    "label": "label", "source": "s", "target": "t",
}  # fmt: skip
"""Valid values of the fields without a default, by name."""
REQUIRED_OF: dict[str, dict[str, Any]] = {"MixtureStage": {"weights": (1.0,)}}


class Unprintable:
    """A value whose representation raises an exception."""

    def __repr__(self) -> str:
        raise RuntimeError


WRONG = {
    "object": object(),
    "unprintable": Unprintable(),
    "bytes": b"x",
    "complex": 1j,
    "class": int,
    "function": len,
    "dict": {3: "x"},
    "set": {1},
    "list of objects": [object()],
    "integer of many bits": 10**5000,
}
"""Values that no field accepts."""


def kinds(base: type[Config] = Config) -> Iterator[type[Config]]:
    for kind in base.__subclasses__():
        yield from kinds(kind)
        if kind.__module__.startswith("flaxformer.") and not vars(kind).get("is_abstract", False):
            yield kind


def is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def required(kind: type[Config]) -> dict[str, Any]:
    """Valid values of the fields of a class that have no default."""
    names = [field.name for field in dataclasses.fields(kind) if is_required(field)]
    own = {name: REQUIRED[name] for name in names if name in REQUIRED} | REQUIRED_OF.get(kind.__name__, {})
    if kind.__name__ == "Mixture":
        domain = next(one for one in kinds() if one.__name__ == "Domain")
        own["domains"] = (domain(name="a", task=TEXT), domain(name="b", task=TEXT))
    return own


KINDS = {kind.__name__: kind for kind in kinds()}


def message(kind: type[Config], values: dict[str, Any]) -> str:
    """The message of a config that is refused; "" if it is accepted."""
    try:
        kind(**values)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_type_is_one_short_message_that_names_the_field(name: str) -> None:
    kind = KINDS[name]
    for field in dataclasses.fields(kind):
        for what, value in WRONG.items():
            if what == "list of objects" and not isinstance(typing.get_type_hints(kind)[field.name], type):
                value = tuple(value)
            said = message(kind, required(kind) | {field.name: value})
            assert f"{name}.{field.name}" in said, f"{what}: {said}"
            assert "expected" in said
            assert len(said) < 1000


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if required(kind)])
def test_a_field_without_a_default_is_asked_for_by_name(name: str) -> None:
    for missing in required(KINDS[name]):
        values = {field: value for field, value in required(KINDS[name]).items() if field != missing}
        assert f"{name}.{missing} is not given; expected" in message(KINDS[name], values)


def test_values_without_names_are_refused() -> None:
    with pytest.raises(UserError, match="Copy is given 3; expected fields by name: "):
        Copy(3)  # type: ignore[call-arg, arg-type, misc]
