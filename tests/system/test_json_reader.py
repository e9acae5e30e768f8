"""Reading of JSON: nesting that Python cannot follow is one message, in every file that the package reads."""

import ast
import json
from pathlib import Path

import pytest

import flaxformer
from flaxformer.system.json_reader import DEEPEST, parse_json

OWN_TEXT = {"pytree.py", "trackers.py", "declaration_log.py", "claim_history.py", "distributed.py", "execution.py"}
"""Modules that read JSON which the same process has written, and never a file."""


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [DEEPEST + 1, 900, 100_000])
@pytest.mark.parametrize("kind", [str, bytes])
def test_deep_nesting_is_a_value_error(opening: str, depth: int, kind: type) -> None:
    closing = "]" if opening == "[" else "}"
    text = opening * depth + "1" + closing * depth
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        parse_json(text if kind is str else text.encode())


def test_a_name_that_occurs_twice_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="an object has the name 'a' 3 times"):
        parse_json('[{"b": {"a": 1, "c": 2, "a": 3, "a": 1}}]')


def test_other_values_are_those_of_the_standard_library() -> None:
    wide = json.dumps([[{"a": [1, None, 2.5, "[{"]}]] * 1000)
    assert parse_json(wide) == json.loads(wide)
    deepest = "[" * DEEPEST + "]" * DEEPEST
    assert parse_json(deepest) == json.loads(deepest)


@pytest.mark.long
def test_no_other_module_parses_the_json_of_a_file() -> None:
    places = set()
    for path in Path(flaxformer.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) in ("json.load", "json.loads") for call in calls):
            places.add(path.name)
    assert places <= OWN_TEXT | {"json_reader.py", "child.py"}  # child.py reads an argument of its own command line
