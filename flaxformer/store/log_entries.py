"""Entries of the log of declarations: what a study asks, and digests of everything that its numbers depend on; events.

A run is identified twice. Its *configuration* is what was trained: the config without its seed. Its *recipe* is the
configuration with the data, the package's semantics, and all user code. Names of arms are in neither, so that results
which are known stay known under other labels, and with other code.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from flaxformer.store.declaration import Declaration, DeclaredQuestion, Recipe
from flaxformer.system.digests import JsonObject, digest
from flaxformer.system.typed_data import Int64, Record, convert, plain


class DeclarationEntry(DeclaredQuestion, tag_field="kind", tag="declaration", frozen=True, kw_only=True):
    """A declaration that differs from the one before it."""

    time: str = ""
    """Time of the entry (UTC, ISO 8601)."""
    flaxformer: str = ""
    """Version of the package."""
    arms: dict[str, str]
    """Digest of the configuration of each arm."""
    recipes: dict[str, str]
    """Digest of the recipe of each arm."""
    code: dict[str, str]
    """Digests of all user code, by the name of the definition."""
    results: dict[str, tuple[Int64, ...]] = msgspec.field(default_factory=dict)
    """Seeds that had a result then, by arm."""
    faults: tuple[str, ...] = ()
    """Faults of the lines before it that no entry had noted."""
    previous: str = ""
    """Digest of the line before it."""


class LogEvent(Record, tag_field="kind", frozen=True, kw_only=True):
    """An event in the history of a folder."""

    time: str = ""
    flaxformer: str = ""
    faults: tuple[str, ...] = ()
    previous: str = ""


class Interim(LogEvent, tag="interim", frozen=True, kw_only=True):
    """An interim analysis: results were shown before all were there."""

    finished: Int64
    declared: Int64
    reader: str
    """The command that showed them."""


class Replication(LogEvent, tag="replication", frozen=True, kw_only=True):
    """An attempt to replicate the claims at other seeds, and the verdicts once there are any."""

    seeds: tuple[Int64, ...]
    folder: str
    verdicts: dict[str, str] | None = None


class Verification(LogEvent, tag="verification", frozen=True, kw_only=True):
    """Trials that were trained again, and what differed in each."""

    seed: Int64
    trials: tuple[str, ...]
    finished: Int64
    different: dict[str, str]
    source: str
    """Digest of the package's code."""


Entry: TypeAlias = DeclarationEntry | Interim | Replication | Verification


def read_entry(data: JsonObject) -> Entry:
    """Return the entry of plain data.

    Raises:
      FormError: the field, and what was expected.
    """
    return convert(data, cast(type[Entry], Entry))


def entry_of(declaration: Declaration) -> DeclarationEntry:
    """Return the entry of a declaration, without a time, and without the results that exist."""
    recipes = declaration.recipes
    code = dict(declaration.code)
    for recipe in recipes.values():
        code |= recipe.code
    return DeclarationEntry(
        **question(declaration),
        arms={name: configuration_digest(recipe) for name, recipe in recipes.items()},
        recipes={name: recipe_digest(recipe) for name, recipe in recipes.items()},
        code=dict(sorted(code.items())),
    )


def question(declaration: DeclaredQuestion) -> dict[str, Any]:
    """Return the fields of `DeclaredQuestion`, without coordinates and sizes of arms, which follow from recipes."""
    scaling = declaration.scaling
    return {name: getattr(declaration, name) for name in DeclaredQuestion.__struct_fields__} | {
        "axes": tuple(replace(axis, coordinates={}) for axis in declaration.axes),
        "scaling": scaling and replace(scaling, scales={}),
    }


def configuration_digest(recipe: Recipe) -> str:
    """Digest of what is trained, whatever the data, the code and the module of a user's class."""
    return _digest_of({"run": _without_modules(recipe.run), "until": recipe.until})


def _without_modules(config: object) -> object:
    """A config in canonical form with the plain name of each class, such as "MyAdamW" for "heads.MyAdamW"."""
    if isinstance(config, Mapping):
        kind = config.get("kind")
        named = {"kind": kind.rpartition(".")[2]} if isinstance(kind, str) else {}
        return {name: _without_modules(value) for name, value in config.items()} | named
    return [_without_modules(item) for item in config] if isinstance(config, list) else config


def recipe_digest(recipe: Recipe) -> str:
    """Digest of a recipe with all user code that it depends on."""
    return _digest_of(plain(recipe))


def _digest_of(data: JsonObject) -> str:
    return digest(json.dumps(data, sort_keys=True, ensure_ascii=False).encode(errors="replace"))
