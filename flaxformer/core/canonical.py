"""Canonical form of a config: plain JSON data, by which configs are stored and compared."""

import dataclasses
import json
from collections.abc import Iterable
from typing import overload

from flaxformer.core.struct import Config, qualified_name
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import Json

Known = dict[int, tuple[Config, dict[str, "Json"]]]
"""Canonical forms by the identity of a config, and that config, so that the identity stays its own."""


@overload
def canonical(config: Config, known: Known | None = None) -> dict[str, Json]: ...
@overload
def canonical(config: object, known: Known | None = None) -> Json: ...
def canonical(config: object, known: Known | None = None) -> Json:
    """Return a config as plain JSON data: every field by name, and the class of each part under "kind".

    Fields with `omit_default` are left out while they have their default, and those in `never_stored` always.

    Args:
      config: the config, or a value in one.
      known: forms of earlier calls. A config that several configs have in common then has one form, which is one
        object: it must not be changed.

    Raises:
      UserError: a value that is not a number, string, None, config or tuple of these.
    """
    if isinstance(config, Config):
        if known is not None and id(config) in known:
            return known[id(config)][1]
        stored_fields = [field for field in dataclasses.fields(config) if not _is_omitted(config, field)]
        fields = {field.name: canonical(getattr(config, field.name), known) for field in stored_fields}
        form: dict[str, Json] = {"kind": qualified_name(type(config)), **fields}
        if known is not None:
            known[id(config)] = config, form
        return form
    if isinstance(config, tuple):
        return [canonical(item, known) for item in config]
    if config is None or isinstance(config, bool | int | float | str):
        return config
    raise UserError(f"{config!r} has no canonical form; expected Python numbers, strings, None and configs")


def _is_omitted(config: Config, field: "dataclasses.Field[object]") -> bool:
    """True for a field that is never stored, or one with `omit_default` that has its default."""
    if field.name in config.never_stored:
        return True
    return bool(field.metadata.get("omit_default")) and getattr(config, field.name) == field.default


def canonical_parts(config: Config, known: dict[int, tuple[object, str]]) -> tuple[tuple[str, str], ...]:
    """Return the canonical text of each field; two configs of a class are equal if these are.

    Args:
      config: the config.
      known: texts of earlier calls, by the identity of a part.
    """
    texts = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _is_omitted(config, field):
            if not isinstance(value, Config):
                texts.append((field.name, canonical_text(value)))
                continue
            if id(value) not in known:
                known[id(value)] = value, canonical_text(value)
            texts.append((field.name, known[id(value)][1]))
    return tuple(texts)


def classes_in(config: object) -> list[type]:
    """Return the class of a config and of every config in it, without duplicates."""
    children: Iterable[object] = config if isinstance(config, tuple) else ()
    classes: list[type] = []
    if isinstance(config, Config):
        children = [getattr(config, field.name) for field in dataclasses.fields(config)]
        classes = [type(config)]
    return list(dict.fromkeys([*classes, *(kind for child in children for kind in classes_in(child))]))


def canonical_text(config: object) -> str:
    """Return `canonical` as one line of JSON with sorted keys; two configs are equal if their texts are."""
    return json.dumps(canonical(config), sort_keys=True, ensure_ascii=False)
