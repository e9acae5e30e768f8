"""Provenance in words: what ran where, and how to run it again, from the launches that a folder records."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from flaxformer.report.numbers import duration
from flaxformer.store.store import Row
from flaxformer.struct import differences
from flaxformer.study.analysis import Analysis

SHOWN = 5
"""Launches that are shown, the last ones."""


def distinct(launches: Sequence[Row], *names: str) -> list[str]:
    """The different values that launches have, in the order of first appearance, an absent one left out."""
    found = (" ".join(str(launch.get(name) or "") for name in names).strip() for launch in launches)
    return [value for value in dict.fromkeys(found) if value]


def date(launches: Sequence[Row]) -> str:
    """The day of the last launch."""
    return max((launch["launched"] for launch in launches), default="")[:10]


def seconds(analysis: Analysis) -> float:
    """Time spent in runs and measurements, summed over devices."""
    rows = [*analysis.rows, *(row for one in analysis.quantities[:1] for row in one.rows if row)]
    return sum(row.get("seconds") or 0.0 for row in rows)


def ran(analysis: Analysis, launches: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what ran where, as names and values."""
    days = distinct([{"day": launch["launched"][:16].replace("T", " ")} for launch in launches], "day")
    span = f"{days[0]} to {days[-1]} UTC" if len(days) > 1 else f"{days[0]} UTC" if days else ""
    spent = seconds(analysis)
    versions = [
        ", ".join(
            f"{name} {launch.get(name, '?')}" for name in ("flaxformer", "python", "jax", "jaxlib", "flax", "optax")
        )
        for launch in launches
    ]
    recipes = analysis.study["recipes"].values()
    data = {", ".join(f"{k} {v}" for k, v in recipe["data"].items()) or "generated from the seed" for recipe in recipes}
    return [
        (
            "Time",
            f"{duration(spent)} in {'runs' if analysis.rows else 'measurements'}, summed over devices" * (spent > 0),
        ),
        ("Launched", f"{span}, {len(launches)} launch{'es' if len(launches) != 1 else ''}" if span else ""),
        ("Devices", "; ".join(distinct(launches, "devices"))),
        ("Precision", "; ".join(distinct(launches, "precision"))),
        ("Commit", "; ".join(distinct(launches, "commit"))),
        ("Versions", "; ".join(dict.fromkeys(versions))),
        ("Platform", "; ".join(distinct(launches, "platform"))),
        ("Data", "; ".join(sorted(data))),
        ("Semantics", "; ".join(sorted({str(recipe["semantics"]) for recipe in recipes}))),
        ("Measured by", f"code {analysis.study['measured_by']}" if analysis.study["kind"] == "probe" else ""),
        ("User code", "; ".join(user_code(analysis))),
        ("Code changes", "; ".join(map(_change, analysis.study.get("code_changes", ())))),
    ]


def user_code(analysis: Analysis) -> list[str]:
    """The definitions outside the package that the results use, each with its digest."""
    codes = [recipe.get("code") or {} for recipe in analysis.study["recipes"].values()]
    found = {f"{name} {own}" for code in [*codes, analysis.study.get("code") or {}] for name, own in code.items()}
    return sorted(found)


def _change(one: Row) -> str:
    done = {"keep": "results kept", "retrain": "results set aside"}[one["decision"]]
    return f"{one['time']}: {', '.join(one['changed'])}; {one['results']} {done}"


def commands(launches: Sequence[Row]) -> str:
    """The different commands that made the results, the last ones."""
    return "\n".join(distinct(launches, "command")[-SHOWN:])


def commands_for_copies(launches: Sequence[Row]) -> str:
    """The commands that run the folder's own copies of the study's code, the last ones; empty without copies."""
    found = []
    for launch in launches:
        file, own = launch.get("file"), launch.get("code")
        if file and own:
            words = shlex.split(launch.get("command") or "flaxformer run")
            rest = [word for word in words[2:] if Path(word).name != file]
            found.append(shlex.join([*words[:2], f"code/{own}/{file}", *_without_decided(rest), "--output", "NEW"]))
    return "\n".join(list(dict.fromkeys(found))[-SHOWN:])


DECIDED = ("--output", "--on-code-change")
"""Options of a command that say nothing for another folder."""


def _without_decided(words: Sequence[str]) -> list[str]:
    """The words of a command without the options that its folder of results decides, and their values."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if word.partition("=")[0] not in DECIDED and before not in DECIDED]


def changes(analysis: Analysis) -> list[str]:
    """Return what every other arm changes in the recipe of the first."""
    recipes = {name: recipe["run"] for name, recipe in analysis.study["recipes"].items()}
    base, *others = recipes
    return [f"{name}: {'; '.join(differences(recipes[base], recipes[name]))}" for name in others]
