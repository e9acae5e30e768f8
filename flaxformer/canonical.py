"""Canonical form of a config: plain JSON data, by which configs are stored and compared."""

import dataclasses
import json
from collections.abc import Iterable
from typing import overload

from flaxformer.struct import Config, UserError, qualified_name

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
"""Plain JSON data."""


@overload
def canonical(config: Config) -> dict[str, Json]: ...
@overload
def canonical(config: object) -> Json: ...
def canonical(config: object) -> Json:
    """Return a config as plain JSON data: every field by name, and the class of each part under "kind".

    Fields with `omit_default` are left out while they have their default.

    Raises:
      UserError: a value that is no number, string, None, config or tuple of these.
    """
    if isinstance(config, Config):
        given = [field for field in dataclasses.fields(config) if not _is_omitted(config, field)]
        fields = {field.name: canonical(getattr(config, field.name)) for field in given}
        return {"kind": qualified_name(type(config)), **fields}
    if isinstance(config, tuple):
        return [canonical(item) for item in config]
    if config is None or isinstance(config, bool | int | float | str):
        return config
    raise UserError(f"{config!r} has no canonical form; expected Python numbers, strings, None and configs")


def _is_omitted(config: Config, field: "dataclasses.Field[object]") -> bool:
    """True for a field with `omit_default` that has its default."""
    return bool(field.metadata.get("omit_default")) and getattr(config, field.name) == field.default


def classes_in(config: object) -> list[type]:
    """Return the class of a config and of every config in it, without duplicates."""
    children: Iterable[object] = config if isinstance(config, tuple) else ()
    found: list[type] = []
    if isinstance(config, Config):
        children = [getattr(config, field.name) for field in dataclasses.fields(config)]
        found = [type(config)]
    return list(dict.fromkeys([*found, *(kind for child in children for kind in classes_in(child))]))


def canonical_text(config: object) -> str:
    """Return `canonical` as one line of JSON with sorted keys; two configs are equal if their texts are."""
    return json.dumps(canonical(config), sort_keys=True, ensure_ascii=False)


def flatten(data: Json, prefix: str = "") -> dict[str, Json]:
    """Return nested JSON objects as one dictionary from dotted path to value."""
    if not isinstance(data, dict):
        return {prefix: data}
    rows: dict[str, Json] = {}
    for name, value in data.items():
        rows |= flatten(value, f"{prefix}.{name}" if prefix else name)
    return rows


def differences(old: Json, new: Json) -> list[str]:
    """Compare two configs in canonical form; return one line `path: old -> new` per field that differs."""
    before, after = flatten(old), flatten(new)
    lines = []
    for path in dict.fromkeys([*before, *after]):
        if path in before and path in after and before[path] == after[path]:
            continue
        was, now = (json.dumps(rows[path]) if path in rows else "(absent)" for rows in (before, after))
        lines.append(f"{path}: {was} -> {now}")
    return lines
