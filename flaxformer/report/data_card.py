"""Data card: the task and the identity of its data, held-out examples, and the differences between arms."""

import json
from collections.abc import Iterator, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.report.sections import Bullets, Definitions, Folded, Part
from flaxformer.store.declaration import DeclaredData
from flaxformer.system.digests import JsonObject
from flaxformer.system.json_differences import differences, flatten
from flaxformer.system.wording import count_of, printable

MOST_ARMS = 12
"""Number of arms whose differences are listed."""
MOST_CHARACTERS = 300
"""Number of characters of a value, such as a list of labels, that are shown."""


def of_study(analysis: Analysis) -> list[Part]:
    """Return the notes on the data and, on a click, the card; nothing for a study without data."""
    arms, study = [arm.arm for arm in analysis.study.arms], analysis.study
    if not arms or not study.recipes:
        return []
    base, changes = study.recipes[arms[0]], _differences(analysis)
    rows = [
        *rows_of(base.run["task"], base.data),
        ("Evaluation", describe_evaluation(study.evaluation_data.get(arms[0]))),
        ("Arms", "" if changes else "All arms have the same task and data."),
    ]
    parts: list[Part] = [Bullets([printable(note) for note in study.data_notes])]
    return [*parts, _fold(f"The data of '{arms[0]}'", rows), *_fold_differences(changes)]


def of_job(run: JsonObject, launch: JsonObject) -> list[Part]:
    """Return the notes and the card of a training job, from its config and the last launch in its log."""
    task, data, notes = run.get("task"), launch.get("data"), launch.get("data_notes")
    if not isinstance(task, dict) or not isinstance(data, dict):  # the log of an earlier version
        return []
    notes = [printable(str(note)) for note in (notes if isinstance(notes, list) else [])]
    return [Bullets(notes), _fold("The data", rows_of(task, data))]


def rows_of(task: JsonObject, data: JsonObject) -> list[tuple[str, str]]:
    """Return the task, its fields, and what identifies the data, as names and texts.

    Args:
      task: its config in canonical form.
      data: the fingerprint of its data.
    """
    fields = {name: value for name, value in flatten(task).items() if name != "kind" and value is not None}
    identity = [(name.replace("_", " "), _text(value)) for name, value in flatten(data).items()]
    settings = ", ".join(f"{name} {_text(value)}" for name, value in fields.items())
    rows = [("Task", str(task.get("kind", ""))), ("Fields", settings)]
    return [*rows, *(identity or [("Data", "generated from the seed")])]


def _fold(summary: str, rows: Sequence[tuple[str, str]]) -> Folded:
    return Folded(printable(summary), Definitions([(printable(name), printable(text)) for name, text in rows]))


def _fold_differences(lines: Sequence[str]) -> Iterator[Part]:
    """Yield the list of the differences between arms, if there are any."""
    more = len(lines) - MOST_ARMS
    shown = [printable(line) for line in lines[:MOST_ARMS]]
    if lines:
        yield Folded("Other arms", Bullets([*shown, *([f"and {count_of(more, 'other arm')}"] if more > 0 else [])]))


def _differences(analysis: Analysis) -> list[str]:
    """Return a line for each arm whose task or data differ from those of the first arm."""
    recipes = analysis.study.recipes
    first, *other_arms = [arm.arm for arm in analysis.study.arms]

    def described(arm: str) -> JsonObject:
        return {"task": recipes[arm].run["task"], "data": recipes[arm].data}

    changes = {arm: differences(described(first), described(arm)) for arm in other_arms}
    return [f"{arm}: {_cut('; '.join(lines))}" for arm, lines in changes.items() if lines]


def describe_evaluation(data: DeclaredData | None) -> str:
    """Return the number of examples of the evaluation set, and of those that also occur in training."""
    if data is None:
        return ""
    compared = "" if data.compared is None else f", of {data.compared:,} that were drawn,"
    shared = f"{data.in_training:,}" if data.in_training else "none"
    return f"{count_of(data.examples, 'example')}; {shared} also in the training data{compared} (digest {data.digest})"


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
