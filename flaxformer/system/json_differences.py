"""Plain JSON data as dotted paths with values, and the differences of two."""

import json

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
"""Plain JSON data."""


def flatten(data: Json, prefix: str = "") -> dict[str, Json]:
    """Return nested JSON objects as one dictionary from dotted path to value."""
    if not isinstance(data, dict):
        return {prefix: data}
    by_path: dict[str, Json] = {}
    for name, value in data.items():
        by_path |= flatten(value, f"{prefix}.{name}" if prefix else name)
    return by_path


def differences(old: Json, new: Json) -> list[str]:
    """Compare two configs in canonical form; return one line `path: old -> new` per field that differs."""
    before, after = flatten(old), flatten(new)
    lines = []
    for path in dict.fromkeys([*before, *after]):
        if path in before and path in after and before[path] == after[path]:
            continue
        was, now = (json.dumps(by_path[path]) if path in by_path else "(absent)" for by_path in (before, after))
        lines.append(f"{path}: {was} -> {now}")
    return lines
