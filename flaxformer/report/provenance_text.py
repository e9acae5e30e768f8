"""Provenance in words: where and when the runs were made, the commands that repeat them, and the log's events."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.analysis.declaration_limits import verification
from flaxformer.report.sections import Bullets, Code, Folded, Paragraph, Part
from flaxformer.report.table import MOST_ROWS, PAGE
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.line_forms import command_words
from flaxformer.store.log_entries import Replication, Verification
from flaxformer.system.digests import JsonObject
from flaxformer.system.json_differences import differences
from flaxformer.system.user_code.changes import CodeChange
from flaxformer.system.wording import count_of, duration

SHOWN = 5
"""Number of commands that are shown, the last ones."""
NOTEBOOK = (
    "It was run from Python that is in no file, such as a notebook: the code of its components is identified by its "
    "text, but no copy of it is here, and what cells read outside functions is not recorded. Keep the notebook."
)
"""Remark on a study without a file."""
MOST_SEEDS = 50
"""Number of seeds that are listed one by one."""
FOLDER_OPTIONS = ("--output", "--on-code-change")
"""Options of a command that belong to its own folder of results."""


def distinct_values(launches: Sequence[JsonObject], *names: str) -> list[str]:
    """The distinct values of columns of the launches, in the order of first appearance; absent ones are left out."""
    values = (" ".join(str(launch.get(name) or "") for name in names).strip() for launch in launches)
    return [value for value in dict.fromkeys(values) if value]


def last_date(launches: Sequence[JsonObject]) -> str:
    """The date of the last launch."""
    return max((launch["launched"] for launch in launches), default="")[:10]


def seconds(analysis: Analysis) -> float:
    """Seconds of runs, summed over devices."""
    return float(analysis.results.numbers("seconds").sum())


def provenance(analysis: Analysis, launches: Sequence[JsonObject]) -> list[tuple[str, str]]:
    """Names and values of the provenance: time, devices, versions and code; the data are in their card."""
    days = distinct_values([{"day": launch["launched"][:16].replace("T", " ")} for launch in launches], "day")
    span = f"{days[0]} to {days[-1]} UTC" if len(days) > 1 else f"{days[0]} UTC" if days else ""
    spent = seconds(analysis)
    versions = [
        ", ".join(
            f"{name} {launch.get(name, '?')}" for name in ("flaxformer", "python", "jax", "jaxlib", "flax", "optax")
        )
        for launch in launches
    ]
    recipes = analysis.study.recipes.values()
    return [
        (
            "Time",
            f"{duration(spent)} in {'runs' if analysis.rows else 'measurements'}, summed over devices" * (spent > 0),
        ),
        ("Launched", f"{span}, {count_of(len(launches), 'launch')}" if span else ""),
        ("Devices", "; ".join(distinct_values(launches, "devices"))),
        ("Precision", "; ".join(distinct_values(launches, "precision"))),
        ("Commit", "; ".join(distinct_values(launches, "commit"))),
        ("Versions", "; ".join(dict.fromkeys(versions))),
        ("Platform", "; ".join(distinct_values(launches, "platform"))),
        ("Semantics", "; ".join(sorted({str(recipe.semantics) for recipe in recipes}))),
        ("Measured by", f"code {analysis.study.measured_by}" if analysis.study.kind == "probe" else ""),
        ("User code", "; ".join(user_code(analysis))),
        ("Read by user code", "; ".join(analysis.reads)),
        ("Declarations", _log(analysis)),
        ("Replications and verification", "; ".join(event_sentences(analysis.log))),
        ("Code changes", "; ".join(map(_change, analysis.study.code_changes))),
    ]


def _log(analysis: Analysis) -> str:
    """Number of entries of the log of declarations, and the digests of the first and the last one."""
    if not analysis.log.digests:
        return "no log"
    n, first = count_of(len(analysis.log.digests), "entry"), analysis.log.digests[0]
    return f"{n}, digest of the first {first}, of the last {analysis.log.head}"


def user_code(analysis: Analysis) -> list[str]:
    """Definitions outside the package that the results depend on, each with its digest."""
    codes = [recipe.code for recipe in analysis.study.recipes.values()]
    definitions = {f"{name} {digest}" for code in [*codes, analysis.study.code] for name, digest in code.items()}
    return sorted(definitions)


def _change(change: CodeChange) -> str:
    action = {"keep": "kept", "retrain": "set aside"}[change.decision]
    return f"{change.time}: {', '.join(change.changed)}; {count_of(change.results, 'result')} {action}"


def commands(launches: Sequence[JsonObject]) -> str:
    """The distinct commands that give the results at the recorded commit, the last ones.

    A study file that the commit does not have, or has in another form, is left to `commands_for_copies`.
    """
    in_commit = [launch for launch in launches if not launch.get("file") or launch.get("file_in_commit")]
    return "\n".join(distinct_values(in_commit, "command")[-SHOWN:])


def commands_for_copies(launches: Sequence[JsonObject]) -> str:
    """The commands that run the folder's own copies of the study's code, the last ones; empty without copies."""
    lines = []
    for launch in launches:
        file, code = launch.get("file"), launch.get("code")
        if file and code:
            words = command_words(launch.get("command") or "flaxformer run")
            arguments = [word for word in words[2:] if Path(word).name != file]
            lines.append(
                shlex.join([*words[:2], f"code/{code}/{file}", *_without_folder_options(arguments), "--output", "NEW"])
            )
    return "\n".join(list(dict.fromkeys(lines))[-SHOWN:])


def _without_folder_options(words: Sequence[str]) -> list[str]:
    """The words of a command without `FOLDER_OPTIONS` and their values."""
    pairs = zip(["", *words], words, strict=False)
    return [
        word for before, word in pairs if word.partition("=")[0] not in FOLDER_OPTIONS and before not in FOLDER_OPTIONS
    ]


def reproduction(analysis: Analysis, launches: Sequence[JsonObject]) -> list[Part]:
    """Commands that give the results again, what determines them, and the recipes of the arms."""
    study, repeated, copies = analysis.study, commands(launches), commands_for_copies(launches)
    has_changes = any("+changes" in (launch.get("commit") or "") for launch in launches)
    place = f"At the commit above{', with the changes that the working tree had' if has_changes else ''}:"
    where = f"{'Or in' if repeated else 'In'} this folder, which keeps the code of the study as it ran:"
    listed = ((place, repeated), (where, copies))
    parts = [part for text, code in listed if code for part in (Paragraph(text, PAGE, ""), Code(code, is_wrapped=True))]
    seeds = ", ".join(map(str, study.seeds))
    seeds = seeds if len(study.seeds) <= MOST_SEEDS else seeds_in_words(study.seeds)
    what = "The recipe and the seed determine a run" if study.recipes else "The seed determines a measurement"
    again = "Results that exist are not computed again: give a new output folder."
    if study.recipes and any(launch.get("file", "") is None for launch in launches):
        parts.append(Paragraph(NOTEBOOK, PAGE, ""))
    return [*parts, Paragraph(f"{what}; the seeds are {seeds}. {again}", PAGE, ""), *_recipes(analysis)]


def _recipes(analysis: Analysis) -> list[Part]:
    """The recipe of the first arm, and what the other arms change in it."""
    if not analysis.study.recipes:
        return []
    arm, recipe = next(iter(analysis.study.recipes.items()))
    text = json.dumps(recipe.run, indent=1, ensure_ascii=False)
    changed = Bullets(changes(analysis, MOST_ROWS), PAGE)
    return [Folded(f"The recipe of '{arm}'", Code(text)), Folded("Changes of the other arms", changed)]


def changes(analysis: Analysis, at_most: int) -> list[str]:
    """Differences of the recipes of other arms from that of the first, and how many more arms there are."""
    recipes = {name: recipe.run for name, recipe in analysis.study.recipes.items()}
    base, *other_arms = recipes
    lines = [f"{name}: {'; '.join(differences(recipes[base], recipes[name]))}" for name in other_arms[:at_most]]
    more = len(other_arms) - at_most
    return [*lines, *([f"and {count_of(more, 'other arm')}, in study.json"] if more > 0 else [])]


def event_sentences(log: DeclarationLog) -> list[str]:
    """Every attempt to replicate, and the last verification, each with its date."""
    entries: list[Replication | Verification] = [*log.of(Replication), *log.of(Verification)[-1:]]
    return [f"{entry.time[:10]}: {event_sentence(entry)}" for entry in entries]


def event_sentence(event: Replication | Verification) -> str:
    """An event of the log in one clause."""
    return _replication(event) if isinstance(event, Replication) else verification(event)


def _replication(event: Replication) -> str:
    where = f"at the seeds {seeds_in_words(event.seeds)} in {event.folder}"
    if event.verdicts is None:
        return f"attempt to replicate begun {where}"
    verdicts = "; ".join(f"{text}: {verdict}" for text, verdict in event.verdicts.items())
    return f"replicated {where} ({verdicts or 'no claim'})"
