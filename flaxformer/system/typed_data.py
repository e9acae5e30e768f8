"""Typed records of plain data that another program, or a person, may have written (msgspec)."""

import math
import re
import sys
from typing import Annotated, TypeVar

import msgspec

from flaxformer.system.digests import FormError, JsonObject

INTEGERS = range(-(2**63), 2**63)
"""Integers that a file or a table can hold."""
T = TypeVar("T")
Int64 = Annotated[int, msgspec.Meta(ge=INTEGERS.start, le=INTEGERS.stop - 1)]
FiniteNumber = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite number."""
Count = Annotated[int, msgspec.Meta(ge=1, le=INTEGERS.stop - 1)]
Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]
"""A probability that is neither 0 nor 1."""
PLACE = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", re.DOTALL)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable object of JSON with typed fields; fields with their default are not written."""


def convert(data: object, kind: type[T]) -> T:
    """Return plain data as an instance of a type, after checking every field; unknown fields are ignored.

    Raises:
      FormError: the place of the field and what was expected.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        match = PLACE.fullmatch(str(error))
        text, place = match.groups() if match else (str(error), None)
        value = _value_at(data, place) if place and "; expected" not in text else ""
        raise FormError(f"{place}: {value}{text}" if place else text) from None


def plain(record: Record) -> JsonObject:
    """Return a record as plain data."""
    data: JsonObject = msgspec.to_builtins(record)
    return data


def expect(holds: bool, where: str, value: object, expected: str) -> None:
    """Raise ValueError, which `convert` reports with the place of the record, unless a condition holds."""
    if not holds:
        raise ValueError(f"{where} is {_printable(value)}; expected {expected}")


def _printable(value: object) -> str:
    """A value in at most 60 printable characters."""
    text = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return ascii(text)[1:-1]


def _value_at(data: object, place: str) -> str:
    """The value at a place such as axes[0].name, as the beginning of a message; "" where it is not determined."""
    for name in re.findall(r"[^.\[\]]+|\.\.\.", place):
        if isinstance(data, dict) and name in data:
            data = data[name]
        elif isinstance(data, list) and name.isdecimal() and int(name) < len(data):
            data = data[int(name)]
        else:
            return ""
    return f"{_printable(data)}; "


def is_storable(value: int | float) -> bool:
    """True for a number that every file and table can hold: finite, and an integer of at most 64 bits."""
    return value in INTEGERS if isinstance(value, int) else math.isfinite(value)
