"""Statements of a user module that can change a result."""

import ast
import copy
import functools
import types
from collections.abc import Iterator
from typing import TypeGuard

from flaxformer.system.user_code import source

DECLARED = ("study", "run", "case")
"""Names by which a file declares a study, a training job or a case."""
CODE: dict[str, tuple[str, ...]] = {
    "Study": ("measure", "derive"),
    "Search": ("measure", "derive"),
    "Probe": ("measure",),
    "Case": ("evidence",),
    "Run": (),
}
"""Arguments with code, by the class of what is declared; the other arguments are compared as data."""
WITHOUT_EFFECT = "Tracker"
"""Base of classes that receive results and change none."""
STATEMENTS = "statements that run on import"
Definition = source.Function | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def definitions(module: types.ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the name and the normalized text of each definition of a user module, and of its other statements."""
    for node in _statements(source.module_source(module)):
        yield _name(node), source.normalized_text(node)


def _name(node: ast.stmt) -> str:
    if isinstance(node, Definition):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else STATEMENTS


@functools.lru_cache(maxsize=256)
def _statements(text: str) -> list[ast.stmt]:
    """Return the statements of a module's text that count, with the imports whose names they read."""
    kept = list(relevant_statements(source.parse(text)))
    names = {node.id for statement in kept for node in ast.walk(statement) if isinstance(node, ast.Name)}
    imports = [node for node in source.parse(text).body if isinstance(node, Import)]
    return [_import_of(node, names) for node in imports if _import_of(node, names).names] + kept


def _import_of(node: Import, names: set[str]) -> Import:
    """Return an import with the names that are read."""
    node = copy.copy(node)
    node.names = [name for name in node.names if (name.asname or name.name.partition(".")[0]) in {*names, "*"}]
    return node


def relevant_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module that can change a result.

    Left out are imports, docstrings, `if __name__ …`, what is declared as data, and trackers that nothing else reads.
    """
    for node in tree.body:
        if isinstance(node, Import | ast.Pass) or source.is_docstring(node) or _is_main_guard(node):
            continue
        if _is_tracker(node) and not any(_reads(other, node.name) for other in tree.body if other is not node):
            continue
        name = _declared_name(node)
        if (
            isinstance(node, ast.Assign)
            and name
            and not any(_reads(other, name) for other in tree.body if other is not node)
        ):
            value = _code_of(node.value)
            if isinstance(value, ast.Call) and not (value.args or value.keywords):
                continue
            node = ast.Assign(node.targets, value, lineno=node.lineno)
        yield node


def _is_tracker(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    """True for a class whose one base is `Tracker`, and which no decorator receives."""
    match node:
        case ast.ClassDef(bases=[ast.Name(name) | ast.Attribute(attr=name)], decorator_list=[]):
            return name == WITHOUT_EFFECT
    return False


def _declared_name(node: ast.stmt) -> str | None:
    """Return the name that `study = Study(…)` or the like declares; None for another statement."""
    match node:
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(kind))) if name in DECLARED and kind in CODE:
            return name
    return None


def _code_of(node: ast.expr) -> ast.expr:
    """Return a declaration without the arguments that are data."""
    match node:
        case ast.List(elements) | ast.Tuple(elements):
            return ast.List([_code_of(element) for element in elements])
        case ast.Call(ast.Name(kind)) if kind in CODE:
            kept = [keyword for keyword in node.keywords if keyword.arg is None or keyword.arg in CODE[kind]]
            kept = [ast.keyword(k.arg, _code_of(k.value) if k.arg == "evidence" else k.value) for k in kept]
            return ast.Call(node.func, node.args, kept)
    return node


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and _reads(node.test, "__name__")


def has_acting_statement(module: types.ModuleType) -> bool:
    """True if a statement of a module may do more than bind names of the module when it is imported."""
    return any(map(_acts, relevant_statements(source.module_tree(module))))


def _acts(node: ast.stmt) -> bool:
    if isinstance(node, Definition):  # a function that a decorator adds to a table of the package is found there
        return False
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return not all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
    match node:
        case ast.Expr(ast.Call(ast.Name("print"))):
            return False
    return True
