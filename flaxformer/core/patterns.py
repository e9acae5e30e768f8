"""Patterns of the paths of weights, such as "blocks/*/attention/query"."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence


def matches(path: str, patterns: Sequence[str]) -> bool:
    """True if a path matches a pattern: `*` stands for any characters, "/" too; `?` for one; `[01]` for one of these.

    Layers have their numbers, as in "blocks/0/attention/query", however they are stored.
    """
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def unmatched_patterns(where: str, patterns: Sequence[str], paths: Iterable[str]) -> Iterator[str]:
    """Yield a message for each pattern that matches no path; it lists the paths."""
    paths = list(paths)
    for pattern in patterns:
        if not any(matches(path, (pattern,)) for path in paths):
            listed = ", ".join(without_numbers(paths))
            yield f"{where} has '{pattern}', which matches no weight; expected a pattern of: {listed}"


def without_numbers(paths: Iterable[str]) -> list[str]:
    """The paths, each once for all layers: "blocks/*/attention/query"."""
    return list(dict.fromkeys(re.sub(r"\bblocks/\d+/", "blocks/*/", path) for path in paths))
