"""Functions and classes of this package in whose place a user's file has put others."""

import sys
import types
from collections.abc import Iterator

from flaxformer.system.user_code.source import PACKAGE, is_user_class, is_user_file, is_user_module


def replaced_names() -> list[str]:
    """Return the names of the package's functions, classes and methods that user code has replaced, sorted.

    All modules of the package that are imported are searched. Replaced numbers, and objects in tables such as a dict of
    functions, which a user may extend, are not found.
    """
    names = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE.name and not is_user_module(module):
            names += [f"{name}.{member}" for member, value in _members(module) if _is_of_user(value)]
    return sorted(set(names))


def _members(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the names of a module and of its classes with their values."""
    for name, value in list(vars(module).items()):
        yield name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from ((f"{name}.{member}", inner) for member, inner in list(vars(value).items()))


def _is_of_user(value: object) -> bool:
    """True for a class or a function of a user's file, also as a method or a property, or inside a wrapper."""
    if isinstance(value, type):
        return is_user_class(value)
    for _ in range(10):  # of a wrapper, what it wraps
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType) and is_user_file(code.co_filename):
            return True
        inner = (getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__"))
        value = next((part for part in inner if part is not None), None)
        if value is None:
            return False
    return False
