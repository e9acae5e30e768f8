"""Names and prose follow the rules that a program can check; CONTRIBUTING.md has all of them."""

import ast
import collections
import re
from pathlib import Path

import pytest

import flaxformer
from flaxformer import nn, params

ROOT = Path(flaxformer.__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
OPENINGS = re.compile(
    r"(What|Whether|Who|Why|All that|How|So many|Of (a|an|the|all|each)\b|That which|Where (the|a)\b)", re.IGNORECASE
)
AMBIGUOUS = {"slot", "slots", "told", "tell", "tells", "look", "looks", "spread", "spreads"}
"""Words that had several meanings in this package: no function, class or argument is named by them."""
ARRAYS = {"Float", "Int", "Bool", "Shaped", "UInt", "Num", "Inexact", "Key"}
MIRRORED = {"Model", "Encoder", "Decoder", "EncoderDecoder", "MultiHeadAttention", "KIND", "ParametersT"}
"""Names that a module has because its twin for another library, or its type variable, has them."""


def definitions(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]


def documentation(tree):
    """All docstrings of a module, those of its constants and fields too."""
    yield from filter(None, map(ast.get_docstring, (tree, *definitions(tree))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def axis_names(tree):
    """The names in all array annotations such as Float[Array, "*batch T D"]."""
    for node in ast.walk(tree):
        kind = getattr(node, "value", None)
        if isinstance(node, ast.Subscript) and getattr(kind, "id", getattr(kind, "attr", "")) in ARRAYS:
            shape = node.slice.elts[1] if isinstance(node.slice, ast.Tuple) else None
            words = shape.value.split() if isinstance(shape, ast.Constant) else []
            yield from {word.lstrip("*#_?") for word in words if not word.isdigit() and word != "..."} - {""}


def first_column(text):
    """The names in the first column of a docstring's table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return {name.strip() for cell in cells[1:] for name in cell.split(",")}


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_open_with_a_noun_or_an_imperative(name):
    assert [text.splitlines()[0] for text in documentation(MODULES[name]) if OPENINGS.match(text)] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_name_has_a_word_of_several_meanings(name):
    nodes = definitions(MODULES[name])
    names = [node.name for node in nodes]
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            arguments = node.args
            names += [own.arg for own in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    assert [own for own in names if AMBIGUOUS & {*own.lower().strip("_").split("_")}] == []


def test_every_class_has_a_name_of_its_own():
    found = collections.defaultdict(set)
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(name)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                alias = node.targets[0].id
                if alias[0].isupper() and not alias.isupper():
                    found[alias].add(name)
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in MIRRORED} == {}


def test_the_glossary_has_every_axis_name_and_no_other():
    used = {axis for tree in MODULES.values() for axis in axis_names(tree)}
    glossary = first_column(nn.__doc__)
    assert sorted(used - glossary - {"{size}"}) == []
    assert sorted(glossary - used) == []


def test_the_table_of_random_streams_has_every_stream():
    text = params.__doc__[params.__doc__.index("| stream |") :]
    words = {word for cell in first_column(text) for word in cell.split()}
    used = set()
    for tree in MODULES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fold_in_name":
                used |= {own.value for own in node.args if isinstance(own, ast.Constant)}
    assert {"parameters", "data", "dropout"} < used
    assert sorted(used - words) == []
