"""Comparison of user code with the code that made a folder's results, and what to do with results of older code."""

import datetime
from collections.abc import Collection, Mapping
from typing import Literal

from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.typed_data import Int64, Record
from flaxformer.system.wording import first_of

OnCodeChange = Literal["refuse", "keep", "retrain"]
DECISIONS = ("refuse", "keep", "retrain")
DERIVED = ""
"""Key, among names of arms, of the numbers that a probe measures or that a study derives from several arms."""
MOST_NAMES = 12
"""Number of definitions that an error message lists."""


class CodeChange(Record, frozen=True, kw_only=True):
    """Decision about results whose code has changed since."""

    time: str
    changed: tuple[str, ...]
    """Names of the definitions."""
    decision: Literal["keep", "retrain"]
    arms: tuple[str, ...] = ()
    results: Int64 = 0


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


def decide(
    where: object, decision: OnCodeChange, changes: Mapping[str, Collection[str]], results: int, affected: str = ""
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
        listed = first_of(names, MOST_NAMES, "\n  ")
        raise UserError(
            f"{where} holds {affected} made by code that has changed since, or that read what has:\n  {listed}\n"
            "Give --on-code-change keep to keep them as they are, which is recorded;\n"
            "--on-code-change retrain to set them aside and make them again; or --output another folder."
        )
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return [CodeChange(time=time, changed=tuple(names), decision=decision, arms=tuple(arms), results=results)]
