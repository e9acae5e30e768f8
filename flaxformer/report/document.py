"""The report as one document: its sections in order, each part with the forms of the report that have it.

A new section is a line of `document`; a new column is a line of its table in `tables`, `cost_tables` or
`scaling_tables`. Every form of the report (`page`, `markdown`, `tex`, `terminal`, `files`) takes both from here.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.report import (
    cost_tables,
    costs,
    data_card,
    effect_tables,
    figures,
    measured,
    phrasing,
    provenance_text,
    scaling_tables,
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


def document(analysis: Analysis, launches: Sequence[JsonObject] = ()) -> StudyReport:
    """Return the report of a study or a probe: the question, the answer, and the evidence."""
    sweeps = range(len(analysis.sweeps))
    return StudyReport(
        name=analysis.study.name,
        question=analysis.study.question,
        about="; ".join(phrasing.describe_runs(analysis)),
        answer=verdicts.verdict(analysis),
        verdict=verdicts.worst_verdict(analysis),
        sections=[
            ReportSection("", [figures.claims(analysis), *_answer(analysis)]),
            ReportSection("Claims", [tables.claims(analysis)]),
            ReportSection("Qualifications", [Bullets(verdicts.qualified_claims(analysis.claims))]),
            _section(tables.simple_effects(analysis)),
            _section(tables.without_diverged(analysis)),
            _section(
                effect_tables.effects(analysis),
                figures.effects(analysis),
                after=[Paragraph(phrasing.effects(analysis), NOT_IN_PAPER), effect_tables.effects_on_cost(analysis)],
            ),
            _section(tables.variances(analysis)),
            ReportSection("Best values", [Bullets(phrasing.first_sweep_findings(analysis), LISTS)]),
            *(_section(tables.sweep(analysis, i), figures.sweep(analysis, i)) for i in sweeps),
            ReportSection(
                "Scaling",
                [
                    figures.scaling(analysis),
                    figures.joint_law(analysis),
                    Bullets(scaling_text.findings(analysis), LISTS),
                    *scaling_tables.scaling(analysis),
                ],
            ),
            ReportSection("Learning curves", [figures.curves(analysis)]),
            ReportSection("Heads", [figures.heads_of_layers(analysis)]),
            ReportSection("Attention maps", figures.attention_maps(analysis)),
            ReportSection("Logit lens", [figures.lens(analysis)]),
            ReportSection("Exploratory contrasts", _explorations(analysis)),
            ReportSection("Events", [Bullets(provenance_text.event_sentences(analysis.log), ("terminal",), "Event: ")]),
            ReportSection("Limits", [Bullets(analysis.limits, NOT_IN_PAPER, "Limit: ")]),
            _section(tables.arms(analysis), figures.arms(analysis), after=_notes_on_arms(analysis)),
            _section(tables.evaluations(analysis)),
            ReportSection("Data", data_card.of_study(analysis)),
            _section(
                cost_tables.arm_costs(analysis),
                figures.compute(analysis),
                after=[
                    Paragraph(costs.summary(analysis), NOT_IN_PAPER),
                    Bullets(costs.speed_ups_of_claims(analysis), ("terminal",)),
                ],
            ),
            _section(cost_tables.effective_speed_ups(analysis)),
            _section(tables.quantities(analysis), figures.quantities(analysis)),
            _section(measured.table(analysis), after=[Paragraph(measured.remark(analysis), NOT_IN_PAPER)]),
            ReportSection("Failed runs", _failures(analysis)),
            _section(tables.declarations(analysis)),
            ReportSection("Provenance", [Definitions(provenance_text.provenance(analysis, launches))]),
            ReportSection("How to reproduce", provenance_text.reproduction(analysis, launches)),
        ],
    )


def _section(table: Table | ItemTable, *before: Part, after: Sequence[Part] = ()) -> ReportSection:
    """Return the section of a table, under its title, with parts before and after it."""
    return ReportSection(table.title, [*before, table, *after])


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
