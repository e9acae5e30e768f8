"""Content of an entry of the log: what a study asks, and digests of everything that its numbers depend on.

A run is identified twice. Its *configuration* is what was trained: the config without its seed. Its *recipe* is the
configuration with the data, the package's semantics, and all user code. Names of arms are in neither, so that results
which are known stay known under other labels, and with other code.
"""

import json
from collections.abc import Iterable, Mapping

from flaxformer.system.digests import JsonObject, digest

QUESTION = ("name", "question", "caveats", "metric", "unit", "goal", "seeds", "claims", "measured_by")
"""Fields of a declaration that an entry holds as they are."""
AXIS = ("name", "path", "labels", "baseline")


def content(declaration: JsonObject) -> JsonObject:
    """Return what an entry holds of a declaration.

    arms: digest of each arm's configuration; recipes: digest of each arm's recipe; code: digests of all user code, by
    the name of the definition; measured_by: digest of the code, and of the recipes, that give measured or derived
    numbers.
    """
    recipes = declaration["recipes"]
    return question(declaration) | {
        "arms": {name: configuration_digest(recipe) for name, recipe in recipes.items()},
        "recipes": {name: recipe_digest(recipe) for name, recipe in recipes.items()},
        "code": _code(recipes.values(), declaration.get("code") or {}),
    }


def question(declaration: JsonObject) -> JsonObject:
    """Return the part of the content that does not depend on recipes: texts, definitions, claims and seeds."""
    scaling = declaration.get("scaling")
    return {name: declaration.get(name) for name in QUESTION} | {
        "axes": [{name: axis[name] for name in AXIS} for axis in declaration["axes"]],
        "scaling": None if scaling is None else {name: value for name, value in scaling.items() if name != "scales"},
    }


def configuration_digest(recipe: JsonObject) -> str:
    """Digest of what is trained, whatever the data, the code and the module of a user's class."""
    return _digest_of({"run": _without_modules(recipe["run"]), "until": recipe.get("until")})


def _without_modules(config: object) -> object:
    """A config in canonical form with the plain name of each class, such as "MyAdamW" for "heads.MyAdamW"."""
    if isinstance(config, Mapping):
        kind = config.get("kind")
        named = {"kind": kind.rpartition(".")[2]} if isinstance(kind, str) else {}
        return {name: _without_modules(value) for name, value in config.items()} | named
    return [_without_modules(one) for one in config] if isinstance(config, list) else config


def recipe_digest(recipe: JsonObject) -> str:
    """Digest of a recipe with all user code that it depends on."""
    return _digest_of(recipe)


def _digest_of(data: JsonObject) -> str:
    return digest(json.dumps(data, sort_keys=True, ensure_ascii=False).encode(errors="replace"))


def _code(recipes: Iterable[JsonObject], derived: JsonObject) -> JsonObject:
    """Digests of all user code that the results depend on, by the name of the definition."""
    found = dict(derived)
    for recipe in recipes:
        found |= recipe.get("code") or {}
    return dict(sorted(found.items()))
