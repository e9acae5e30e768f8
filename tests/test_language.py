"""Names and prose follow the rules that a program can check; CONTRIBUTING.md has all of them."""

import ast
import collections
import functools
import re
from pathlib import Path

import flaxformer
from flaxformer import nn
from flaxformer.core import params

ROOT = Path(flaxformer.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
PRIVATE_OF_JAX = re.compile(r"\bjax\._src\b")
MECHANISMS = {path for path in (ROOT / "catalog").glob("*.py") if "VARIANTS" in path.read_text()}
"""Files that are written as a user writes a component, with axes of their own."""
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
MOST_ANY, MOST_IGNORES = 106, 6
"""Numbers of `Any` and of `type: ignore` in the package; only to be lowered."""
VAGUE = {"own", "found", "one", "given", "others", "rest"}
"""Names of variables and arguments that say nothing."""
ARRAYS = {"Float", "Int", "Bool", "Shaped", "UInt", "Num", "Inexact", "Key"}
MIRRORED = {"Model", "Encoder", "Decoder", "EncoderDecoder", "MultiHeadAttention", "KIND"}
"""Names that the modules for Flax Linen and for Flax NNX, or that the templates, share."""


@functools.cache
def nodes(tree):
    """All nodes of a syntax tree, which is walked once for all tests."""
    return list(ast.walk(tree))


def by_file(search):
    """Return what a search finds in the files of the package, for those in which it finds something."""
    return {name: places for name, tree in MODULES.items() if (places := search(tree))}


def definitions(tree):
    return [n for n in nodes(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]


def documentation(tree):
    """All docstrings of a module, those of its constants and fields too."""
    yield from filter(None, map(ast.get_docstring, (tree, *definitions(tree))))
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def axis_names(tree):
    """The names in all array annotations such as Float[Array, "*batch T D"]."""
    for node in nodes(tree):
        kind = getattr(node, "value", None)
        if isinstance(node, ast.Subscript) and getattr(kind, "id", getattr(kind, "attr", "")) in ARRAYS:
            shape = node.slice.elts[1] if isinstance(node.slice, ast.Tuple) else None
            words = shape.value.split() if isinstance(shape, ast.Constant) else []
            yield from {word.lstrip("*#_?") for word in words if not word.isdigit() and word != "..."} - {""}


def first_column(text):
    """The names in the first column of a docstring's table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return {name.strip() for cell in cells[1:] for name in cell.split(",")}


def test_docstrings_open_with_a_noun_or_an_imperative():
    assert by_file(lambda tree: [t.splitlines()[0] for t in documentation(tree) if OPENINGS.match(t)]) == {}


def names_of(tree):
    """Names of the functions, classes and arguments of a module."""
    for node in definitions(tree):
        yield node.name
        if not isinstance(node, ast.ClassDef):
            yield from (own.arg for own in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))


def test_no_name_has_a_word_of_several_meanings():
    assert by_file(lambda tree: [n for n in names_of(tree) if AMBIGUOUS & {*n.lower().strip("_").split("_")}]) == {}


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
    mechanisms = {path.relative_to(ROOT).as_posix() for path in MECHANISMS}
    used = {axis for name, tree in MODULES.items() if name not in mechanisms for axis in axis_names(tree)}
    glossary = first_column(nn.__doc__)
    assert sorted(used - glossary - {"{size}"}) == []
    assert sorted(glossary - used) == []


def test_the_table_of_random_streams_has_every_stream():
    text = params.__doc__[params.__doc__.index("| folded in |") :]
    words = {word for cell in first_column(text) for word in cell.split()}
    used = set()
    for tree in MODULES.values():
        for node in nodes(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fold_in_name":
                used |= {own.value for own in node.args if isinstance(own, ast.Constant)}
    assert {"parameters", "data", "dropout"} < used
    assert sorted(used - words) == []


def without_per(tree):
    texts = [node.value for node in nodes(tree) if isinstance(node, ast.Constant)]
    return [count[0] for text in texts if isinstance(text, str) for count in DISTRIBUTIVE.finditer(text)]


def test_counts_are_written_with_per():
    assert by_file(without_per) == {}
    assert [count[0] for count in DISTRIBUTIVE.finditer((ROOT.parent / "README.md").read_text())] == []


def test_names_of_tests_have_no_coined_words():
    names = [name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())]
    assert [name for name in names if COINED & {*name.split("_")}] == []


def test_any_and_ignored_type_errors_become_fewer():
    text = "\n".join(path.read_text() for path in {*ROOT.rglob("*.py")} - MECHANISMS)
    assert len(re.findall(r"\bAny\b", text)) <= MOST_ANY
    assert text.count("type: ignore") <= MOST_IGNORES


def test_no_variable_has_a_name_that_says_nothing():
    def bound(tree):
        yield from (node.id for node in nodes(tree) if isinstance(node, ast.Name) and is_stored(node))
        yield from (node.arg for node in nodes(tree) if isinstance(node, ast.arg))

    assert by_file(lambda tree: sorted(VAGUE & {*bound(tree)})) == {}


def is_stored(name):
    return isinstance(name.ctx, ast.Store)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree):
    """Private names of the package that a test imports, reads or replaces."""
    own, nodes = set(), list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flaxformer":
            yield from (alias.name for alias in node.names if is_private(alias.name))
            own |= {alias.asname or alias.name for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and getattr(node.value, "id", "") in own:
            yield node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr" and len(node.args) > 1:
            target, name = node.args[:2]
            if getattr(target, "id", "") in own and isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield name.value


def test_tests_use_public_names_alone():
    uses = {path.relative_to(TESTS).as_posix(): [*private_uses(ast.parse(path.read_text()))] for path in FILES}
    assert {name: names for name, names in uses.items() if names} == {}


def test_tests_use_no_private_module_of_jax():
    """The one exception is the private function that `targets/gpu.py` replaces, whose tests are in its file."""
    private = {path.relative_to(TESTS).as_posix() for path in FILES if PRIVATE_OF_JAX.search(path.read_text())}
    assert private == {"targets/test_target_devices.py"}


def test_private_uses_are_found():
    """The search itself: an import, an attribute, and a replacement."""
    text = "from flaxformer import nn\nfrom flaxformer.nn import _a\nnn._b\nmonkeypatch.setattr(nn, '_c', 1)\nself._d"
    assert sorted(private_uses(ast.parse(text))) == ["_a", "_b", "_c"]
