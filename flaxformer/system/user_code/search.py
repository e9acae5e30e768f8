"""Search for the user code that a result uses, from objects through the names in their definitions.

The search starts from objects (the classes of a config, a `measure` function), finds their definitions in the source
files, and follows every name in these through any number of user modules. Each definition is digested as a syntax
tree without docstrings, so comments, docstrings and formatting do not count. Parts of a study file that no result
reads (claims, captions, seeds) are not followed and do not count, nor does the baseline, which is compared as data.

Two kinds of code count although no name leads to them: statements that act on other modules when a user module is
imported, such as `ACTIVATIONS["mine"] = f`; and user functions in the tables and classes of this package.
"""

import ast
import functools
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from flaxformer.system.files import digest_of
from flaxformer.system.user_code import source
from flaxformer.system.user_code.source import is_user_class, is_user_file, is_user_module, normalized_text, source_path
from flaxformer.system.user_code.statements import (
    acts_on_others,
    attribute_chains,
    is_user_code,
    names_bound,
    names_used_whole,
    star_imports,
)

CONSTANT = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
DYNAMIC = {"eval", "exec", "globals", "locals", "__import__", "importlib"}
"""Names that let code read definitions its text does not name: where one is used, the whole module counts."""
NUMERIC = {"component", "config", "data", "model", "nn", "params", "parts", "tasks", "training"}
"""Parts of this package that determine numerical results."""
WRAPPERS = ("__wrapped__", "__func__", "fget", "fset", "func")
"""Attributes of methods, properties, partial and jitted functions that hold the wrapped function."""


def code_digests(roots: Iterable[object], file: Path | None = None) -> dict[str, str]:
    """Return a digest of each user definition that the roots use, by a readable name such as "heads.py: MyAdamW".

    Args:
      roots: functions, classes, or instances of user classes.
      file: the study file, whose import statements and acting statements count too.

    Returns:
      An empty dict if all code is the package's own.
    """
    search = _Search()
    for root in [*roots, *_patches()]:
        search.visit(root, "")
    search.visit_acting_statements(source.user_modules(file, search.modules.values()))
    return {name: digest_of("\0".join(sorted(texts)).encode()) for name, texts in sorted(search.texts.items())}


class _Search:
    """State of one search: the texts of each definition by its readable name, and the modules with definitions."""

    def __init__(self) -> None:
        self.texts: dict[str, set[str]] = {}
        self.modules: dict[str, types.ModuleType] = {}
        self._seen: dict[int, object] = {}
        """Objects that have been visited, by id; they are referenced here so that no id is reused."""

    def visit(self, value: object, name: str) -> None:
        """Record an object's code and all code that it uses; plain data is recorded under `name`."""
        if isinstance(value, CONSTANT):
            self._record(name, repr(value))
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._visit_object(value, name)

    def _visit_object(self, value: object, name: str) -> None:
        if isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._record(name, _array_text(value))
        elif isinstance(value, Mapping | list | set | frozenset | tuple):
            items: dict[object, object] = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
            for key, item in items.items():
                # Numbers in a mutable container, such as a log, do not count; functions in it do.
                self._visit_item(item, f"{name}[{key!r}]", constants=isinstance(value, tuple | frozenset))
        else:
            self._visit_instance(value, name)

    def _visit_instance(self, value: object, name: str) -> None:
        """Visit the functions that a wrapper holds, or the class and attributes of an instance of a user class."""
        for wrapper in WRAPPERS:
            if inspect.getattr_static(value, wrapper, None) is not None and callable(getattr(value, wrapper, None)):
                self.visit(getattr(value, wrapper), name)
        if isinstance(value, functools.partial):
            self._visit_items(dict(enumerate(value.args)), name or "partial")
            self._visit_items(value.keywords, name or "partial")
        elif isinstance(value, types.MethodType):
            self.visit(value.__self__, name)
        elif is_user_class(type(value)):
            self.visit(type(value), "")
            own = f"{source_path(type(value).__module__)}: {type(value).__qualname__}"
            self._visit_items(getattr(value, "__dict__", {}), own)

    def _visit_items(self, items: Mapping[str, object] | Mapping[int, object], name: str) -> None:
        for key, item in dict(items).items():
            self.visit(item, f"{name}.{key}")

    def _visit_item(self, item: object, name: str, constants: bool) -> None:
        if constants or not isinstance(item, CONSTANT):
            self.visit(item, name)

    def _visit_function(self, function: types.FunctionType) -> None:
        """Visit a function's definition, the variables that it captures, its defaults, and the names in its body."""
        own = f"{source_path(function.__module__ or '?')}: {function.__qualname__}"
        captured = _captured_variables(function)
        self._visit_items(captured, own)
        self.visit(getattr(function, "__wrapped__", None), "")
        if not is_user_file(function.__code__.co_filename):
            return
        self._visit_items(dict(enumerate(function.__defaults__ or ())), own)
        self._visit_items(function.__kwdefaults__ or {}, own)
        nodes = source.function_nodes(function.__code__)
        if not nodes:  # the file is gone, or the function was generated
            self._record(own, repr((function.__code__.co_code, function.__code__.co_names)))
        for node in nodes:
            self._record(own, normalized_text(node))
            self._follow(node, function.__globals__, function.__module__, captured)

    def _visit_class(self, kind: type) -> None:
        """Visit a class's definition and the names in it, its bases, and the variables that its methods capture."""
        for base in kind.__mro__[1:]:
            self.visit(base, "")
        if not is_user_class(kind):
            return
        own = f"{source_path(kind.__module__)}: {kind.__qualname__}"
        nodes = source.class_nodes(kind)
        scope = vars(sys.modules[kind.__module__])
        for node in nodes:
            self._record(own, normalized_text(node))
            self._follow(node, scope, kind.__module__, {})
        for key, item in vars(kind).copy().items():
            if nodes and isinstance(item, types.FunctionType) and is_user_file(item.__code__.co_filename):
                self._visit_items(_captured_variables(item), f"{own}.{key}")
            elif not (key.startswith("__") and isinstance(item, CONSTANT)) and key not in ("__dict__", "__weakref__"):
                self._visit_item(item, f"{own}.{key}", constants=not nodes)

    def _visit_module(self, module: types.ModuleType) -> None:
        """Visit every definition of a user module that is used as a whole."""
        if is_user_module(module):
            for name in list(vars(module)):
                if not name.startswith("__"):
                    self._visit_name(name, module)

    def _follow(self, node: ast.AST, scope: Mapping[str, object], name: str, captured: Collection[str]) -> None:
        """Visit the objects that the names in a definition refer to.

        Args:
          node: the definition.
          scope: the global names of its module.
          name: the module's name.
          captured: names of enclosing functions, which are visited elsewhere.
        """
        module = sys.modules.get(name)
        if is_user_module(module):
            self.modules[name] = module
        for imported in source.imported_modules(node, module):
            self.visit(imported, "")
        names = {found.id for found in ast.walk(node) if isinstance(found, ast.Name)} - set(captured)
        if names & DYNAMIC and module is not None:
            self._visit_module(module)
        used_whole = names_used_whole(node)
        for one in sorted(names & set(scope)):
            if isinstance(scope[one], types.ModuleType):
                if one in used_whole:
                    self.visit(scope[one], "")
            elif is_user_module(module):
                self._visit_name(one, module)
            else:
                self.visit(scope[one], f"{name}: {one}")
        for chain in attribute_chains(node):
            if chain[0] in names:
                self._visit_attribute(scope.get(chain[0]), chain[1:])

    def _visit_attribute(self, value: object, attributes: list[str]) -> None:
        """Visit the object of `module.attribute`, where a package's attribute may be a module."""
        for attribute in attributes:
            if not is_user_module(value) or not hasattr(value, attribute):
                return
            module, value = value, getattr(value, attribute)
            if not isinstance(value, types.ModuleType):
                self._visit_name(attribute, module)

    def _visit_name(self, name: str, module: types.ModuleType) -> None:
        """Visit the object of a global name of a user module and, for a container, the statements that fill it."""
        self.modules[module.__name__] = module
        value = vars(module).get(name)
        if isinstance(value, type | types.FunctionType | types.ModuleType):
            self.visit(value, "")
            return
        own = f"{source_path(module.__name__)}: {name}"
        nodes = [node for node in source.module_tree(module).body if name in names_bound(node)]
        origins = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        for origin in origins:
            imported = sys.modules.get(source.imported_module_name(origin, module))
            imported_name = next(alias.name for alias in origin.names if (alias.asname or alias.name) == name)
            if is_user_module(imported):
                self._visit_name(imported_name, imported)
        if not nodes:
            for starred in star_imports(module):
                if name in vars(starred):
                    self._visit_name(name, starred)
        if not origins and not isinstance(value, CONSTANT) and own not in self.texts:
            for node in nodes:
                self._record(own, normalized_text(node))
                self._follow(node, vars(module), module.__name__, {})
        if not origins or not isinstance(value, CONSTANT):
            self.visit(value, own)

    def visit_acting_statements(self, modules: Iterable[types.ModuleType]) -> None:
        """Record the statements by which user modules change others when they are imported."""
        for module in modules:
            own = f"{source_path(module.__name__)}: statements that run on import"
            for node in source.module_tree(module).body:
                if acts_on_others(node, module):
                    self._record(own, normalized_text(node))
                    self._follow(node, vars(module), module.__name__, {})

    def _record(self, name: str, text: str) -> None:
        if name:
            self.texts.setdefault(name, set()).add(text)


# --- objects ---------------------------------------------------------------------------------------------


def _captured_variables(function: types.FunctionType) -> dict[str, object]:
    """Return the variables of enclosing functions that a function reads."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _array_text(value: np.ndarray | np.generic | jax.Array) -> str:
    try:
        array = np.asarray(value)
    except Exception:  # random keys, and arrays whose buffer was donated
        return type(value).__name__
    return f"{array.dtype} {array.shape} {digest_of(np.ascontiguousarray(array).tobytes())}"


def _patches() -> Iterator[object]:
    """Yield the user functions and classes in the modules, tables and classes of this package."""
    for name, module in sorted(sys.modules.copy().items()):  # a copy: other threads may import modules meanwhile
        package, _, part = name.partition(".")
        if package == "flaxformer" and part.partition(".")[0] in NUMERIC and module is not None:
            for item in list(vars(module).values()):
                yield from filter(is_user_code, _entries(item, name))


def _entries(item: object, module: str) -> list[object]:
    """Return the values of a table, a class that the module defines with its members, or the item alone."""
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple):
        return list(item)
    return [item, *vars(item).values()] if isinstance(item, type) and item.__module__ == module else [item]
