"""Content of files that a process reads once, however often it is asked for, until `forget` is called."""

import functools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_REMEMBERED: "list[functools._lru_cache_wrapper[object]]" = []


def remembered(function: Callable[..., T]) -> "functools._lru_cache_wrapper[T]":
    """Return a function of files that is computed once per process and arguments, as by `functools.cache`."""
    cached = functools.cache(function)
    _REMEMBERED.append(cached)
    return cached


def forget() -> None:
    """Let all remembered functions read their files again, which may have changed since."""
    for function in _REMEMBERED:
        function.cache_clear()
