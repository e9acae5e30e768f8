"""Effects of single changes in a table and as data: on the metric within the whole and alone, and on the cost."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.effects import Change, Effect
from flaxformer.analysis.speedup import SpeedUp
from flaxformer.report import costs, phrasing, verdicts
from flaxformer.report.estimates import estimate_values
from flaxformer.report.table import EVERYWHERE, ItemTable, TableColumn, number, words
from flaxformer.statistics.estimates import Estimate
from flaxformer.statistics.finite import finite
from flaxformer.store.declaration import Terms, key_of
from flaxformer.system.digests import JsonObject

CONTEXTS: dict[str, Callable[[Change], Effect]] = {
    "within the whole": lambda change: change.within,
    "alone": lambda change: change.alone,
}
"""Contexts of a change: the whole, or the baseline."""
COSTS = {
    "speed-up in compute": ("compute", "compute_to_other"),
    "speed of a step": ("step",),
    "speed-up in time": ("time", "time_to_other"),
}
"""Columns of what a change does to the cost, and the speed-ups of which a file has the numbers."""
PARTS = ("ratio", "low", "high")
"""Numbers of a speed-up in a file."""


def effects(analysis: Analysis) -> ItemTable[Change]:
    """Every change by its effect, which is positive where it is good, with the mark of a claim's verdict; then sums."""
    tested = [claim for claim in analysis.claims if claim.kind != "equal" and not claim.by]
    marks = {_key(claim.terms): verdicts.marked_verdict(claim)[0][0] for claim in tested}

    def effect(name: str, of: Callable[[Change], Effect], when: bool = True) -> TableColumn[Change]:
        def text(change: Change) -> str:
            return f"{phrasing.interval(of(change).metric, '+')} {marks.get(_key(of(change).terms), '')}".rstrip()

        def metric(change: Change) -> Estimate:
            return of(change).metric

        return TableColumn(name, text, estimate_values(name.replace(" ", "_"), metric), when=when)

    contexts = _contexts(analysis)
    columns: list[TableColumn[Change]] = [
        words("change", lambda change: change.name),
        *(effect(name, of) for name, of in contexts.items()),
        effect("interaction", lambda change: change.interaction, len(contexts) > 1),
        number("seeds", lambda change: change.alone.metric.n, on=()),
    ]
    title = f"Effects on the {phrasing.metric(analysis.study)}"
    return ItemTable(title, columns, analysis.changes, "effects", EVERYWHERE)


def brief_effects(analysis: Analysis) -> ItemTable[Change]:
    """The effects within the whole and alone."""
    table = effects(analysis)
    return dataclasses.replace(table, columns=table.columns[: 1 + len(_contexts(analysis))])


def effects_on_cost(analysis: Analysis) -> ItemTable[Change]:
    """Ratios of the cost of equal scores, for each change and for all together: above 1, cheaper with the change."""
    columns: list[TableColumn[Change]] = [TableColumn("change", lambda change: change.name, is_text=True)]
    columns += [column for name, of in _contexts(analysis).items() for column in _costs(name, of)]
    items = [change for change in analysis.changes if change.alone.speeds.keys() - {"step"}]
    return ItemTable("Effects on the cost", columns, items, "effects")


def _contexts(analysis: Analysis) -> dict[str, Callable[[Change], Effect]]:
    """The contexts in which the changes of a study were made."""
    return {name: of for name, of in CONTEXTS.items() if any(of(change).terms for change in analysis.changes)}


def _key(terms: Terms) -> frozenset[tuple[float, str]]:
    """The arms of a contrast and their weights, in any order."""
    return frozenset((weight, key_of(labels)) for weight, labels in terms)


def _costs(context: str, of: Callable[[Change], Effect]) -> Iterator[TableColumn[Change]]:
    """Yield the columns of speed-ups in one context, of which a file has all numbers."""

    def cost(name: str, speeds: Sequence[str]) -> TableColumn[Change]:
        def value(speed: str, part: str) -> Callable[[Change], object]:
            return lambda change: speed_json(of(change).speeds.get(speed))[part]

        def text(change: Change) -> str:
            known = of(change).speeds
            return costs.speed_up_to_common_score(known.get(speeds[0]), known.get(speeds[-1]))

        names = {(speed, part): f"{context.replace(' ', '_')}_{speed}_{part}" for speed in speeds for part in PARTS}
        return TableColumn(f"{name}, {context}", text, {name: value(*key) for key, name in names.items()})

    return (cost(*column) for column in COSTS.items())


def effects_json(analysis: Analysis) -> list[JsonObject]:
    """Return every change as plain data: its effects on the metric, positive where good, and its speed-ups."""
    return [
        {
            "change": change.name,
            "single": change.is_single,
            **{
                name: {part: finite(getattr(effect.metric, part)) for part in ("mean", "low", "high")}
                | {
                    "n": effect.metric.n,
                    "speed_ups": {name: speed_json(up) for name, up in effect.speeds.items() if up},
                }
                for name, effect in {part: getattr(change, part) for part in ("within", "alone", "interaction")}.items()
                if effect.terms
            },
        }
        for change in analysis.changes
    ]


def speed_json(speed: SpeedUp | None) -> JsonObject:
    """Return a speed-up as plain data: a ratio, its interval, and the seeds at which the ratio is a bound."""
    if speed is None:
        return dict.fromkeys(("ratio", "low", "high", "above", "below"))
    low, high = map(finite, speed.interval)
    return {"ratio": finite(speed.ratio), "low": low, "high": high, "above": speed.above, "below": speed.below}
