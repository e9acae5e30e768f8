"""User code that changed since the results of a folder were made: what changed, and what to do with the results."""

import datetime
from collections.abc import Collection, Mapping
from typing import Any, Literal

from flaxformer.struct import UserError, did_you_mean

OnCodeChange = Literal["refuse", "keep", "retrain"]
DECISIONS = ("refuse", "keep", "retrain")
DERIVED = ""
"""Stands for the numbers that a probe measures or a study derives, where an arm's name stands for its runs."""
SHOWN = 12
"""Names in a message."""


def check(on_code_change: str) -> None:
    """Refuse a decision that does not exist."""
    if on_code_change not in DECISIONS:
        raise UserError(f"on_code_change is '{on_code_change}'{did_you_mean(on_code_change, DECISIONS)}")


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The definitions whose digests differ, each with how."""
    words = {name: "changed" for name in new if name in old} | {name: "new" for name in new if name not in old}
    words |= {name: "removed" for name in old if name not in new}
    return [f"{name} ({words[name]})" for name in sorted(words) if old.get(name) != new.get(name)]


def changed_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what differs in the code of each arm that two declarations share, and of measured or derived numbers."""
    before, after = old["recipes"], new["recipes"]
    pairs = {arm: (before[arm], after[arm]) for arm in after if arm in before} | {DERIVED: (old, new)}
    found = {name: differing(a.get("code") or {}, b.get("code") or {}) for name, (a, b) in pairs.items()}
    return {name: what for name, what in found.items() if what}


def message(where: object, changes: Mapping[str, Collection[str]], held: str) -> str:
    """Return what changed, and the two ways forward; `held` says what the code before the change has made."""
    names = list(dict.fromkeys(name for what in changes.values() for name in what))
    lines = [f"  {name}" for name in names[:SHOWN]]
    lines += [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    shown = "\n".join(lines)
    return (
        f"{where} holds {held} made by code that has changed since:\n{shown}\n"
        "Give --on-code-change keep to keep them as they are, which is recorded;\n"
        "--on-code-change retrain to set them aside and make them again; or --output another folder."
    )


def held(changes: Mapping[str, Collection[str]], results: int) -> str:
    """Return in words how many results of how many arms were made by code that has changed."""
    arms = [arm for arm in changes if arm != DERIVED]
    of = f" of {len(arms)} arm{'s' * (len(arms) != 1)}" if arms else ""
    return f"{results} result{'s' * (results != 1)}{of}"


def entry(decision: str, changes: Mapping[str, Collection[str]], results: int) -> dict[str, Any]:
    """A decision as a line of the declaration."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "decision": decision,
        "changed": list(dict.fromkeys(name for what in changes.values() for name in what)),
        "arms": [arm for arm in changes if arm != DERIVED],
        "results": results,
    }
