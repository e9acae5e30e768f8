"""Digests of the user code that a result can depend on: whole modules, and the values that they hand to the package.

A result that uses a class or function from outside installed packages depends on all of the study file and of the user
modules that it imports, directly or through others: a digest per definition, of its syntax tree without docstrings.
Comments, docstrings and formatting do not count, nor does what the study declares (`reduced`): its configs are
compared as data, and its claims, captions and seeds change no result. So an edit of a helper that no result uses
counts too; an analysis of what uses what would sometimes miss an edit that changes numbers.

Values that code cannot be read from count as well: the variables that a function captures, the arguments of a partial
function, the attributes of a callable object, and all definitions of a notebook that a result uses.
"""

import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from flaxformer.system.files import digest_of
from flaxformer.system.user_code import source
from flaxformer.system.user_code.source import is_user_class, is_user_file, is_user_module, normalized_text, source_path
from flaxformer.system.user_code.statements import definitions, has_acting_statement

CONSTANT = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
GENERATED = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
"""Methods that dataclasses generate, which differ between versions of Python."""
NUMERIC = {"components", "config", "core", "data", "model", "nn", "tasks", "training"}
"""Packages of flaxformer that determine numerical results."""
WRAPPERS = ("__wrapped__", "__func__", "fget", "fset", "func")
"""Attributes of methods, properties, partial and jitted functions that hold the wrapped function."""


def code_digests(roots: Iterable[object], file: Path | None = None) -> dict[str, str]:
    """Return a digest of each user definition that a result depends on, by a readable name: "heads.py: MyAdamW".

    Args:
      roots: functions, classes, or instances of user classes that the result uses.
      file: the study file.

    Returns:
      An empty dict if the roots are the package's own, and no user code changes the package.
    """
    search = _Search()
    for root in [*roots, *_patches()]:
        search.visit(root, "")
    modules = source.user_modules(file, search.modules.values())
    is_used = bool(search.texts or search.modules) or any(map(has_acting_statement, modules))
    for module in modules if is_used else ():
        for name, text in definitions(module):
            search.record(f"{source_path(module.__name__)}: {name}", text)
    return {name: digest_of("\0".join(sorted(texts)).encode()) for name, texts in sorted(search.texts.items())}


class _Search:
    """The user modules of some objects, and the text of each value and interactive definition by its readable name."""

    def __init__(self) -> None:
        self.texts: dict[str, set[str]] = {}
        self.modules: dict[str, types.ModuleType] = {}
        self._seen: dict[int, object] = {}
        """Objects that have been visited, by id; they are referenced here so that no id is reused."""

    def record(self, name: str, text: str) -> None:
        """Add a text to those of a name."""
        if name:
            self.texts.setdefault(name, set()).add(text)

    def visit(self, value: object, name: str) -> None:
        """Find the user code of an object; plain data is recorded under `name`."""
        if isinstance(value, CONSTANT):
            self.record(name, repr(value))
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._visit_object(value, name)

    def _visit_object(self, value: object, name: str) -> None:
        if isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._add_module(value.__name__)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self.record(name, _array_text(value))
        elif isinstance(value, Mapping | list | set | frozenset | tuple):
            items: dict[object, object] = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
            for key, item in items.items():
                # Numbers in a mutable container, such as a log, do not count; functions in it do.
                if isinstance(value, tuple | frozenset) or not isinstance(item, CONSTANT):
                    self.visit(item, f"{name}[{key!r}]")
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
            place = f"{source_path(type(value).__module__)}: {type(value).__qualname__}"
            self._visit_items(getattr(value, "__dict__", {}), place)

    def _visit_items(self, items: Mapping[str, object] | Mapping[int, object], name: str) -> None:
        for key, item in dict(items).items():
            self.visit(item, f"{name}.{key}")

    def _visit_function(self, function: types.FunctionType) -> None:
        """Visit a function's module, the variables that it captures, and what it wraps."""
        place = f"{source_path(function.__module__ or '?')}: {function.__qualname__}"
        self._visit_items(_captured_variables(function), place)
        self.visit(getattr(function, "__wrapped__", None), "")
        if not _is_written_by_user(function):
            return
        self._visit_items(dict(enumerate(function.__defaults__ or ())), place)
        self._visit_items(function.__kwdefaults__ or {}, place)
        self._visit_globals(function.__code__, function.__globals__)
        self._add_module(function.__module__)
        # Also beside the whole module: of two functions of one module, which is used is not in the module's text.
        nodes = source.function_nodes(function.__code__)
        texts = [normalized_text(node) for node in nodes] or [source.code_text(function.__code__)]
        for text in texts:
            self.record(place.partition(".<locals>")[0], f"used {text}")

    def _visit_globals(self, code: types.CodeType, scope: Mapping[str, object]) -> None:
        """Visit the global objects that code reads: their values may come from elsewhere than the module's text."""
        for name in code.co_names:
            if name in scope:
                self.visit(scope[name], f"{source_path(str(scope.get('__name__')))}: {name}")
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._visit_globals(inner, scope)

    def _visit_class(self, kind: type) -> None:
        """Visit a class's module, its bases, and the functions and values of its attributes."""
        for base in kind.__mro__[1:]:
            self.visit(base, "")
        if not is_user_class(kind):
            return
        self._add_module(kind.__module__)
        self.record(f"{source_path(kind.__module__)}: {kind.__qualname__}", "used")
        for key, item in vars(kind).copy().items():
            if not (key.startswith("__") and isinstance(item, (*CONSTANT, tuple, dict))):
                self.visit(item, f"{source_path(kind.__module__)}: {kind.__qualname__}.{key}")

    def _add_module(self, name: str) -> None:
        """Add a module if it is a user's."""
        module = sys.modules.get(name)
        if is_user_module(module):
            self.modules[name] = module


def _is_written_by_user(function: types.FunctionType) -> bool:
    """True if a function is of a user file or of an interactive program, and not generated for a dataclass."""
    is_interactive = source.is_interactive(function.__module__) and function.__name__ not in GENERATED
    return is_interactive or is_user_file(function.__code__.co_filename)


# --- objects ---------------------------------------------------------------------------------------------


def _captured_variables(function: types.FunctionType) -> dict[str, object]:
    """Return the variables of enclosing functions that a function reads."""
    captured: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return captured


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
                yield from filter(_is_user_code, _entries(item, name))


def _is_user_code(item: object) -> bool:
    """True if an object is a function or class that the user wrote."""
    if isinstance(item, type):
        return is_user_class(item)
    function = inspect.unwrap(item) if callable(item) else None
    return isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename)


def _entries(item: object, module: str) -> list[object]:
    """Return the values of a table, a class that the module defines with its members, or the item alone."""
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple):
        return list(item)
    return [item, *vars(item).values()] if isinstance(item, type) and item.__module__ == module else [item]
