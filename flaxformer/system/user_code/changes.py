"""Comparison of user code with the code that made a folder's results, and what to do with results of older code."""

import datetime
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypedDict

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


def compare_declarations(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the definitions that changed, by arm; under `DERIVED`, those of measured or derived numbers.

    Only arms that both declarations have, and of them those with a change, are in the result.
    """
    before, after = old["recipes"], new["recipes"]
    pairs = {arm: (before[arm], after[arm]) for arm in after if arm in before} | {DERIVED: (old, new)}
    found = {name: compare_digests(a.get("code") or {}, b.get("code") or {}) for name, (a, b) in pairs.items()}
    return {name: definitions for name, definitions in found.items() if definitions}


def decide(
    where: object, decision: str, changes: Mapping[str, Collection[str]], results: int, affected: str = ""
) -> list[CodeChange]:
    """Return the record of a decision that is made now; none if nothing that the former code has made is affected.

    Args:
      where: the folder.
      decision: "refuse", "keep" or "retrain".
      changes: the changed definitions, by arm.
      results: number of results that the former code has made.
      affected: these in words; by default such as "2 results of 1 arm".

    Raises:
      UserError: the decision is to refuse; the message lists what changed and how to go on.
    """
    names = list(dict.fromkeys(name for definitions in changes.values() for name in definitions))
    arms = [arm for arm in changes if arm != DERIVED]
    if not changes or not results:
        return []
    if decision == "refuse":
        of = f" of {len(arms)} arm{'s' * (len(arms) != 1)}" if arms else ""
        affected = affected or f"{results} result{'s' * (results != 1)}{of}"
        more = f"\n  and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        listed = "\n".join(f"  {name}" for name in names[:MOST_NAMES]) + more
        raise UserError(
            f"{where} holds {affected} made by code that has changed since, or that read what has:\n{listed}\n"
            "Give --on-code-change keep to keep them as they are, which is recorded;\n"
            "--on-code-change retrain to set them aside and make them again; or --output another folder."
        )
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return [{"time": time, "decision": decision, "changed": names, "arms": arms, "results": results}]
