"""The report as one document: its sections in order, each part with the forms of the report that have it.

A new section is a line of `SECTIONS`; a new column is a line of its table in `tables`, `costs` or `scaling_text`. Every
form of the report (`html`, `markdown`, `tex`, `terminal`, `files`) takes both from here.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import (
    costs,
    data_card,
    effect_tables,
    figures,
    measured,
    phrasing,
    provenance_text,
    scaling_text,
    tables,
    verdicts,
)
from flaxformer.report.sections import (
    Bullets,
    Code,
    Definitions,
    Folded,
    Paragraph,
    Part,
    ReportSection,
    StudyReport,
    Verdicts,
)
from flaxformer.report.table import NOT_IN_PAPER, PAGE, ItemTable, ReportForm, Table
from flaxformer.store.rows import Row
from flaxformer.system.digests import JsonObject
from flaxformer.system.wording import count_of

MOST_TRACEBACKS = 5
LISTS: tuple[ReportForm, ...] = ("markdown", "terminal")
"""Forms that have findings as lists; the page has figures in their place."""


PartsOf: TypeAlias = Callable[[Analysis], Part | Sequence[Part]]
SectionsOf: TypeAlias = Callable[[Analysis], list[ReportSection]]


def _answer(analysis: Analysis) -> list[Part]:
    """Verdicts for the terminal, each with its finding and what stands beside it."""
    notes = []
    for claim in [*analysis.claims, *analysis.withdrawn]:
        lines = [f"{phrasing.finding(claim)}; declared {verdicts.when_declared(claim)}"]
        lines += [verdicts.simple_effect(effect, claim.unit) for effect in claim.context.simple_effects]
        lines += [*filter(None, [verdicts.without_diverged(claim)]), *verdicts.qualifications(claim)]
        notes.append((claim, lines))
    further = f"{analysis.further_seeds}." if analysis.further_seeds.sets else ""
    return [
        Paragraph(verdicts.answer(analysis.claims).strip(), ("terminal",), ""),
        Paragraph(further, ("terminal",), "warning"),
        Verdicts(notes),
    ]


def _explorations(analysis: Analysis) -> list[Part]:
    """The contrasts that no claim is about: the findings, and on the page the others on a click."""
    every, n = tables.contrasts(analysis), len(analysis.exploratory_findings)
    if not every.items:
        return []
    findings, remaining = (
        dataclasses.replace(every, items=items, on=PAGE) for items in (every.items[:n], every.items[n:])
    )
    remark = (
        f"Of {count_of(len(every.items), 'contrast')} that no claim is about, {n or 'none'} "
        f"{'is a finding' if n < 2 else 'are findings'}. They are exploratory: a new study has to confirm a finding."
    )
    title = "Exploratory findings, which no claim is about (a new study has to confirm them):" if n else ""
    return [
        Paragraph(remark, PAGE),
        findings,
        Folded(count_of(len(remaining.items), "other contrast" if n else "contrast"), remaining),
        Paragraph(title, ("terminal",), ""),
        Bullets(phrasing.exploratory_findings(analysis), ("terminal",), "  · "),
        dataclasses.replace(every, on=("markdown",)),
    ]


def _notes_on_arms(analysis: Analysis) -> list[Part]:
    """Sentences on what the intervals cover, and on the losses of simple models."""
    references = phrasing.references(analysis)
    simple = f"Simple models on the same evaluation data: {references}" if references else ""
    return [
        Paragraph(analysis.coverage, NOT_IN_PAPER),
        Paragraph(simple, ("terminal",)),
    ]


def _failures(analysis: Analysis) -> list[Part]:
    """The causes with the number of runs of each, and a traceback of each of the first."""
    first: dict[str | None, Row] = {}
    runs: Counter[str | None] = Counter()
    for row in analysis.failed_runs:
        first.setdefault(row.cause, row)
        runs[row.cause] += 1
    shown = [first[cause] for cause, _ in runs.most_common(MOST_TRACEBACKS)]
    tracebacks = [(Paragraph(row.trial, PAGE, ""), Code(str(row.error))) for row in shown]
    return [Bullets(phrasing.failures(analysis)), *(part for pair in tracebacks for part in pair)]


def _section(title: str | None, *parts_of: PartsOf) -> SectionsOf:
    """Return the function of an analysis that gives a section; without a title, it has that of its first table."""

    def sections_of(analysis: Analysis) -> list[ReportSection]:
        parts: list[Part] = []
        for function in parts_of:
            made = function(analysis)
            parts += made if isinstance(made, Sequence) else [made]
        tables_in = (part.title for part in parts if isinstance(part, Table | ItemTable))
        return [ReportSection(next(tables_in) if title is None else title, parts)]

    return sections_of


def _sweeps(analysis: Analysis) -> list[ReportSection]:
    """Return a section per sweep."""
    pairs = [(figures.sweep(analysis, i), tables.sweep(analysis, i)) for i in range(len(analysis.sweeps))]
    return [ReportSection(table.title, [figure, table]) for figure, table in pairs]


SECTIONS: tuple[SectionsOf, ...] = (
    _section("", figures.claims, _answer),
    _section("Claims", tables.claims),
    _section("Qualifications", lambda a: Bullets(verdicts.qualified_claims(a.claims))),
    _section(None, tables.simple_effects),
    _section(None, tables.without_diverged),
    _section(
        None,
        figures.effects,
        effect_tables.effects,
        lambda a: Paragraph(phrasing.effects(a), NOT_IN_PAPER),
        effect_tables.effects_on_cost,
    ),
    _section(None, tables.variances),
    _section("Best values", lambda a: Bullets(phrasing.first_sweep_findings(a), LISTS)),
    _sweeps,
    _section(
        "Scaling",
        figures.scaling,
        figures.joint_law,
        lambda a: Bullets(scaling_text.findings(a), LISTS),
        scaling_text.tables,
    ),
    _section("Learning curves", figures.curves),
    _section("Heads", figures.heads_of_layers),
    _section("Attention maps", figures.attention_maps),
    _section("Logit lens", figures.lens),
    _section("Exploratory contrasts", _explorations),
    _section("Events", lambda a: Bullets(provenance_text.event_sentences(a.log), ("terminal",), "Event: ")),
    _section("Limits", lambda a: Bullets(a.limits, NOT_IN_PAPER, "Limit: ")),
    _section(None, figures.arms, tables.arms, _notes_on_arms),
    _section(None, tables.evaluations),
    _section("Data", data_card.of_study),
    _section(
        None,
        figures.compute,
        costs.arm_costs,
        lambda a: Paragraph(costs.summary(a), NOT_IN_PAPER),
        lambda a: Bullets(costs.speed_ups_of_claims(a), ("terminal",)),
    ),
    _section(None, costs.effective_speed_ups),
    _section(None, figures.quantities, tables.quantities),
    _section(None, measured.table, lambda a: Paragraph(measured.remark(a), NOT_IN_PAPER)),
    _section("Failed runs", _failures),
    _section(None, tables.declarations),
)
"""The sections in order, before those on how the results were made; each is left out where it has no content."""


def document(analysis: Analysis, launches: Sequence[JsonObject] = ()) -> StudyReport:
    """Return the report of a study or a probe: the question, the answer, and the evidence."""
    origin = [
        ReportSection("Provenance", [Definitions(provenance_text.provenance(analysis, launches))]),
        ReportSection("How to reproduce", provenance_text.reproduction(analysis, launches)),
    ]
    return StudyReport(
        name=analysis.study.name,
        question=analysis.study.question,
        about="; ".join(phrasing.describe_runs(analysis)),
        answer=verdicts.verdict(analysis),
        verdict=verdicts.worst_verdict(analysis),
        sections=[*(section for sections_of in SECTIONS for section in sections_of(analysis)), *origin],
    )
