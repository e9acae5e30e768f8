"""Reading of JSON: one exception for any text that is not JSON, is nested too deeply, or gives a name twice."""

import itertools
import json
from typing import Any

DEEPEST = 100
"""Largest number of levels: far above that of any file of the package, and below the limit of Python's recursion."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON.

    Raises:
      ValueError: it is not JSON, not UTF-8, or nested deeper than `DEEPEST`; or an object has a name twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"its values are nested deeper than {DEEPEST} levels") from None
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(value) > DEEPEST:
        raise ValueError(f"its values are nested deeper than {DEEPEST} levels")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON, of which Python would keep the last of two values of a name."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice!r} {names.count(twice)} times")
    return values


def _depth(value: object) -> int:
    """Return the number of levels of lists and objects, counted up to one above `DEEPEST`."""
    level = [value]
    for depth in range(DEEPEST + 1):
        level = list(itertools.chain.from_iterable(map(_items, level)))
        if not level:
            return depth
    return DEEPEST + 1


def _items(value: object) -> list[object]:
    """Return the items of a list or object; none of any other value."""
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
