"""Comparison of user code with the code that made a folder's results, and what to do with results of older code."""

import datetime
from collections.abc import Collection, Mapping
from typing import Literal, Protocol, TypedDict

from flaxformer.system.errors import UserError, did_you_mean

OnCodeChange = Literal["refuse", "keep", "retrain"]
DECISIONS = ("refuse", "keep", "retrain")
DERIVED = ""
"""Key, among names of arms, of the numbers that a probe measures or that a study derives from several arms."""
MOST_NAMES = 12
"""Number of definitions that an error message lists."""


class CodeChange(TypedDict):
    """Record of a decision, as a declaration lists it."""

    time: str
    decision: str
    changed: list[str]
    arms: list[str]
    results: int


def check_decision(on_code_change: str) -> None:
    """Check that a decision exists.

    Raises:
      UserError: with the nearest one.
    """
    if on_code_change not in DECISIONS:
        raise UserError(f"on_code_change is '{on_code_change}'{did_you_mean(on_code_change, DECISIONS)}")


def compare_digests(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the definitions whose digests differ, sorted by name, such as "heads.py: MyAdamW (changed)"."""
    words = {name: "changed" for name in new if name in old} | {name: "new" for name in new if name not in old}
    words |= {name: "removed" for name in old if name not in new}
    return [f"{name} ({words[name]})" for name in sorted(words) if old.get(name) != new.get(name)]


class HasCode(Protocol):
    """Something with digests of user code by the name of the definition, such as a recipe."""

    @property
    def code(self) -> Mapping[str, str]:
        """Digest by name."""


class HasRecipes(HasCode, Protocol):
    """Something with a recipe for each arm, such as a declaration; its code is that of measured or derived numbers."""

    @property
    def recipes(self) -> Mapping[str, HasCode]:
        """Recipe by arm."""


def compare_declarations(old: HasRecipes, new: HasRecipes) -> dict[str, list[str]]:
    """Return the definitions that changed, by arm; under `DERIVED`, those of measured or derived numbers.

    Only arms that both declarations have, and of them those with a change, are in the result.
    """
    pairs: dict[str, tuple[HasCode, HasCode]] = {
        arm: (old.recipes[arm], recipe) for arm, recipe in new.recipes.items() if arm in old.recipes
    }
    pairs[DERIVED] = old, new
    found = {name: compare_digests(before.code, after.code) for name, (before, after) in pairs.items()}
    return {name: definitions for name, definitions in found.items() if definitions}


def refusal(where: object, changes: Mapping[str, Collection[str]], results: str) -> str:
    """Return the error message that lists what changed and how to go on.

    Args:
      where: the folder.
      changes: the changed definitions, by arm.
      results: what the former code has made, such as "2 results of 1 arm".
    """
    names = list(dict.fromkeys(name for definitions in changes.values() for name in definitions))
    lines = [f"  {name}" for name in names[:MOST_NAMES]]
    lines += [f"  and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    listed = "\n".join(lines)
    return (
        f"{where} holds {results} made by code that has changed since, or that read what has:\n{listed}\n"
        "Give --on-code-change keep to keep them as they are, which is recorded;\n"
        "--on-code-change retrain to set them aside and make them again; or --output another folder."
    )


def count_in_words(changes: Mapping[str, Collection[str]], results: int) -> str:
    """Return the numbers of affected results and arms in words, such as "2 results of 1 arm"."""
    arms = [arm for arm in changes if arm != DERIVED]
    of = f" of {len(arms)} arm{'s' * (len(arms) != 1)}" if arms else ""
    return f"{results} result{'s' * (results != 1)}{of}"


def record_decision(decision: str, changes: Mapping[str, Collection[str]], results: int) -> CodeChange:
    """Return the record of a decision that is made now."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "decision": decision,
        "changed": list(dict.fromkeys(name for definitions in changes.values() for name in definitions)),
        "arms": [arm for arm in changes if arm != DERIVED],
        "results": results,
    }
