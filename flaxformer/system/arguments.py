"""Types of the arguments of declarations, such as `Study` and `Claim`, checked from their annotations.

@dataclasses.dataclass(frozen=True)
class Limit:
    values: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_arguments(self)      # Limit(3): "Limit: values is 3; expected a list of whole numbers"
"""

import dataclasses
import functools
import inspect
import itertools
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union

from flaxformer.system.errors import UserError, did_you_mean, quote

MOST_ITEMS = 1_000_000
"""Largest number of items of an argument that is a sequence."""
LARGEST = 2**63 - 1
"""Largest size of an integer, which files of results can hold."""
NAMES = {
    str: ("text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True or False"),
    Path: ("a path", "paths"),
    types.NoneType: ("None", "None"),
}
"""Types in words: one value, and several."""
P = ParamSpec("P")
T = TypeVar("T")
hints_of: Callable[[object], dict[str, object]] = functools.cache(typing.get_type_hints)
"""Evaluated annotations of a class or a function."""


def check_arguments(declaration: Any) -> None:
    """Check the types of a frozen dataclass's fields; sequences become tuples, and numbers of NumPy those of Python.

    A field `Sequence[...]` takes any iterable except text and mappings.

    Raises:
      UserError: the class, the field, its value, and what was expected.
    """
    kind = type(declaration)
    for field in dataclasses.fields(declaration):
        value = getattr(declaration, field.name)
        checked = _check_value(f"{kind.__name__}: {field.name}", value, hints_of(kind)[field.name])
        if checked is not value:
            object.__setattr__(declaration, field.name, checked)


def check_call(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that its arguments are checked and converted as those of `check_arguments`.

    Raises:
      UserError: the function, the argument, its value, and what was expected.
    """
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def check_and_call(*arguments: P.args, **options: P.kwargs) -> T:
        bound, hints = signature.bind(*arguments, **options), hints_of(function)
        for argument, value in bound.arguments.items():
            if argument in hints:
                bound.arguments[argument] = _check_value(f"{name}: {argument}", value, hints[argument])
        return function(*bound.args, **bound.kwargs)

    return check_and_call


def _check_value(where: str, value: object, hint: object) -> object:
    """Return the value, converted if its type needs it.

    Raises:
      UserError: it has another type.
    """
    kinds = _alternatives(hint)
    sequence = next((kind for kind in kinds if _origin(kind) is Sequence), None)
    if sequence and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | tuple):
        value = tuple(map(_plain, itertools.islice(value, MOST_ITEMS + 1)))
    value = _plain(value)
    if isinstance(value, tuple) and len(value) > MOST_ITEMS:
        raise UserError(f"{where} has more than {MOST_ITEMS:,} items; expected at most as many")
    if (words := next((kind for kind in kinds if _origin(kind) is Literal), None)) and isinstance(value, str):
        names = [name for name in typing.get_args(words) if isinstance(name, str)]
        if value not in names and str not in kinds:
            raise UserError(f"{where} is {quote(value)}{did_you_mean(value[:100], names)}")
    if wrong := _mismatch(where, value, hint):
        place, part, expected = wrong
        raise UserError(f"{place} is {_text(part)}; expected {expected}")
    return value


def _plain(value: object) -> object:
    """Return a number of NumPy as one of Python, and any other value as it is."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


Mismatch = tuple[str, object, str]
"""Place and value of a part that has another type, and what was expected."""


def _nearest(where: str, value: object, hint: object, wrong: Sequence[Mismatch | None]) -> Mismatch:
    """Return the mismatch of the alternative that agrees outside a part; without one, that of the whole value."""
    mismatches = [mismatch for mismatch in wrong if mismatch is not None]
    whole = next((mismatch for mismatch in mismatches if "64 bits" in mismatch[2]), (where, value, _describe(hint)))
    return next((mismatch for mismatch in mismatches if mismatch[0] != where), whole)


def _mismatch(where: str, value: object, hint: object) -> Mismatch | None:
    """Return the first part of a value that has another type than the annotation; None without one."""
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        wrong = [_mismatch(where, value, kind) for kind in kinds]
        return _nearest(where, value, hint, wrong) if all(wrong) else None
    origin, inner = _origin(hint), typing.get_args(hint)
    if origin is Sequence or origin is tuple:
        return _sequence_mismatch(where, value, hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_mismatch(where, value, hint)
    if origin is Literal:
        holds = any(value is word or (type(value) is type(word) and value == word) for word in inner)
    elif origin in (int, float):
        if isinstance(value, int) and abs(value) > LARGEST:
            return where, value, f"{NAMES[origin][0]} of at most 64 bits"
        holds = isinstance(value, int if origin is int else int | float) and not isinstance(value, bool)
    elif origin is Callable:
        holds = callable(value)
    else:
        holds = origin is Any or not isinstance(origin, type) or isinstance(value, origin)
    return None if holds else (where, value, _describe(hint))


def _sequence_mismatch(where: str, value: object, hint: object) -> Mismatch | None:
    inner = typing.get_args(hint)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return where, value, _describe(hint)
    kind = inner[0] if inner else object
    return next(filter(None, (_mismatch(f"{where}[{n}]", item, kind) for n, item in enumerate(value))), None)


def _mapping_mismatch(where: str, value: object, hint: object) -> Mismatch | None:
    if not isinstance(value, _origin(hint)):
        return where, value, _describe(hint)
    assert isinstance(value, Mapping)
    key_hint, value_hint = typing.get_args(hint) or (object, object)
    for key, item in value.items():
        if _mismatch(where, key, key_hint):
            return f"{where}: a key", key, _describe(key_hint)
        if wrong := _mismatch(f"{where}[{quote(key)}]", item, value_hint):
            return wrong
    return None


def _alternatives(hint: object) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, Union) else (hint,)


def _origin(hint: object) -> Any:
    return typing.get_origin(hint) or hint


def _describe(hint: object, is_plural: bool = False) -> str:
    """An annotation in words, such as "a list of texts, or None"."""
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        *first, last = dict.fromkeys(_describe(kind, is_plural) for kind in kinds)
        return f"{', '.join(first)} or {last}" if first else last
    origin, inner = _origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(repr(word) for word in inner)
    if origin in NAMES:
        return NAMES[origin][is_plural]
    if origin is Sequence or origin is tuple:
        items = f" of {_describe(inner[0], is_plural=True)}" if inner else ""
        return f"{'lists' if is_plural else 'a list'}{items}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{'dicts' if is_plural else 'a dict'}{' {' + ': '.join(map(_describe, inner)) + '}' if inner else ''}"
    if origin is Callable:
        return "functions" if is_plural else "a function"
    return getattr(origin, "__name__", "any value")


def _text(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else quote(value)
