"""Names and prose follow the rules that a program can check; CONTRIBUTING.md has all of them."""

import ast
import collections
import re
from pathlib import Path

import pytest

import flaxformer
from flaxformer import nn
from flaxformer.core import params

ROOT = Path(flaxformer.__file__).parent
TESTS = Path(__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
OPENINGS = re.compile(
    r"(What|Whether|Who|Why|All that|How|So many|Of (a|an|the|all|each)\b|That which|Where (the|a)\b)", re.IGNORECASE
)
AMBIGUOUS = {"slot", "slots", "told", "tell", "tells", "look", "looks", "spread", "spreads"}
"""Words that had several meanings in this package: no function, class or argument is named by them."""
DISTRIBUTIVE = re.compile(
    r"\b(one|two|three|\d+) (?!(?:with|after|where|for|of|in|at|to|as|and|or|is)\b)(\w+ )?an? "
    r"(arm|batch|class|core|cell|device|group|head|layer|line|node|process|query|row|run|second|seed|sentence|sequence|"
    r"step|task|token|trial)\b"
)
"""Counts such as "one a core", in place of "one per core"."""
COINED = {"told", "tell", "tells", "said", "spread", "spreads", "slot", "slots", "looked", "looks"}
COINED |= {"dealt", "gone", "settled", "hands", "unfolded", "grown", "admit"}
"""Words of CONTRIBUTING.md's tables that no test is named by."""
MOST_ANY, MOST_IGNORES = 108, 6
"""Numbers of `Any` and of `type: ignore` in the package; only to be lowered."""
ARRAYS = {"Float", "Int", "Bool", "Shaped", "UInt", "Num", "Inexact", "Key"}
MIRRORED = {"Model", "Encoder", "Decoder", "EncoderDecoder", "MultiHeadAttention", "KIND"}
"""Names that the modules for Flax Linen and for Flax NNX, or that the templates, share."""


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
                is_type_variable = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "TypeVar"
                if alias[0].isupper() and not alias.isupper() and not is_type_variable:
                    found[alias].add(name)
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in MIRRORED} == {}


def test_the_glossary_has_every_axis_name_and_no_other():
    used = {axis for tree in MODULES.values() for axis in axis_names(tree)}
    glossary = first_column(nn.__doc__)
    assert sorted(used - glossary - {"{size}"}) == []
    assert sorted(glossary - used) == []


def test_the_table_of_random_streams_has_every_stream():
    text = params.__doc__[params.__doc__.index("| folded in |") :]
    words = {word for cell in first_column(text) for word in cell.split()}
    used = set()
    for tree in MODULES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fold_in_name":
                used |= {own.value for own in node.args if isinstance(own, ast.Constant)}
    assert {"parameters", "data", "dropout"} < used
    assert sorted(used - words) == []


@pytest.mark.parametrize("name", MODULES)
def test_counts_are_written_with_per(name):
    texts = [node.value for node in ast.walk(MODULES[name]) if isinstance(node, ast.Constant)]
    assert [found[0] for text in texts if isinstance(text, str) for found in DISTRIBUTIVE.finditer(text)] == []


def test_counts_in_the_readme_are_written_with_per():
    text = (ROOT.parent / "README.md").read_text()
    assert [found[0] for found in DISTRIBUTIVE.finditer(text)] == []


def test_names_of_tests_have_no_coined_words():
    names = [
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in definitions(ast.parse(path.read_text()))
        if node.name.startswith("test_")
    ]
    assert [name for name in names if COINED & {*name.split("_")}] == []


def test_any_and_ignored_type_errors_become_fewer():
    text = "\n".join(path.read_text() for path in ROOT.rglob("*.py"))
    assert len(re.findall(r"\bAny\b", text)) <= MOST_ANY
    assert text.count("type: ignore") <= MOST_IGNORES


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree):
    """Private names of the package that a test imports, reads or replaces."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flaxformer":
            yield from (alias.name for alias in node.names if is_private(alias.name))
            own |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and getattr(node.value, "id", "") in own:
            yield node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr" and len(node.args) > 1:
            target, name = node.args[:2]
            if getattr(target, "id", "") in own and isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield name.value


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_tests_use_public_names_alone(path):
    assert list(private_uses(ast.parse(path.read_text()))) == []


def test_private_uses_are_found():
    """The search itself: an import, an attribute, and a replacement."""
    text = "from flaxformer import nn\nfrom flaxformer.nn import _a\nnn._b\nmonkeypatch.setattr(nn, '_c', 1)\nself._d"
    assert sorted(private_uses(ast.parse(text))) == ["_a", "_b", "_c"]
