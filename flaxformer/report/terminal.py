"""The report in the terminal, and tables that fit its width."""

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flaxformer.analysis.analysis import MOST_DRAWN, Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import (
    cost_tables,
    costs,
    events,
    measured,
    phrasing,
    qualifications,
    scaling_text,
    tables,
    verdicts,
)
from flaxformer.report.table import FOLDER

STYLES = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}
GAP = 2
"""Spaces between two columns."""
SHORT = 8
"""Width of a header that is not wrapped."""
NARROW = 24
"""Width down to which a column of text is wrapped before other means are taken."""


def show(console: Console, analysis: Analysis) -> None:
    """Print the question, the verdicts, exploratory findings, limits, and the tables of arms and quantities."""
    study = analysis.study
    console.print(Text(study.question, style="bold"))
    console.print(Text("; ".join(phrasing.describe_runs(analysis)), style="dim"))
    if answer := verdicts.answer(analysis.claims):
        console.print(Text(answer.strip()))
    if analysis.further_seeds.sets:
        console.print(Text(f"{analysis.further_seeds}.", style="yellow"))
    for claim in [*analysis.claims, *analysis.withdrawn]:
        console.print(Text.assemble(marked_verdict(claim), ": ", claim.text))
        notes = [qualifications.simple_effect(one, claim.unit) for one in claim.context.simple_effects]
        notes += [*filter(None, [qualifications.without_diverged(claim)]), *qualifications.sentences(claim)]
        notes += costs.claim_speed_ups(analysis, claim)
        for text in (f"{phrasing.finding(claim)}; declared {verdicts.when_declared(claim)}", *notes):
            console.print(Padding(Text(text, style="dim"), (0, 0, 0, 4)))
    for text in (*phrasing.first_sweep_findings(analysis), *scaling_text.findings(analysis)):
        console.print(Text(f"· {text}"))
    if analysis.exploratory_findings:
        console.print(Text("Exploratory findings, which no claim is about (a new study has to confirm them):"))
        for finding in phrasing.exploratory_findings(analysis):
            console.print(Padding(Text(f"· {finding}"), (0, 0, 0, 2), expand=False))
    for event in events.sentences(analysis.log):
        console.print(Text.assemble(("Event: ", "dim"), event))
    for limit in analysis.limits:
        console.print(Text.assemble(("Limit: ", "dim"), limit))
    cost = [cost_tables.arm_costs(analysis)] if costs.differing(analysis) else []
    shown = [tables.variances(analysis), tables.arms(analysis, is_brief=True), *cost, tables.quantities(analysis)]
    for table in shown:
        if table.rows:
            console.print()
            console.print(fit_width(shorten_cells(table), console.width))
    if (note := measured.remark(analysis)) and (own := measured.table(analysis)).rows:
        console.print()
        console.print(fit_width(shorten_cells(own), console.width))
        console.print(Text(note, style="dim"))
    if text := costs.summary(analysis):
        console.print(Text(text, style="dim"))
    if analysis.coverage:
        console.print(Text(analysis.coverage, style="dim"))
    if study.references:
        console.print(Text(f"Simple models on the same evaluation data: {phrasing.references(analysis)}", style="dim"))


def marked_verdict(claim: JudgedClaim) -> tuple[str, str]:
    """The verdict of a claim with its mark, and its style."""
    verdict = claim.judgement.verdict
    if claim.is_exploratory:
        return f"· {verdicts.verdict_of(claim)}", "dim"
    return f"{phrasing.MARKS[verdict]} {verdicts.verdict_of(claim)}", STYLES[verdict]


def show_answers(console: Console, answers: Iterable[tuple[str, str]]) -> None:
    """Print the name and the answer of each of several studies."""
    for name, answer in answers:
        console.print(Text(name, style="bold"))
        console.print(Padding(Text(answer), (0, 0, 0, 2), expand=False))


def shorten_cells(table: tables.Table) -> tables.Table:
    """The table with the first `MOST_DRAWN` rows, and a last row that says where the others are."""
    more = len(table.rows) + table.omitted - MOST_DRAWN
    if more <= 0:
        return table
    where = f"{FOLDER}/{table.file}.csv" if table.file else "results.md"
    rest = [f"and {more:,} more, in {where}", *[""] * (len(table.header) - 1)]
    return tables.Table(table.title, table.header, [*table.rows[:MOST_DRAWN], rest], table.texts)


def fit_width(table: tables.Table, width: int) -> Group:
    """The table within a width, without cutting anything.

    As far as is necessary, headers are wrapped to the width of their columns, columns of text are joined to one, which
    is wrapped, and columns of numbers that do not fit beside it follow below, with the first column again.
    """
    if not table.rows:
        return Group()
    every = range(len(table.header))
    if _total(map(_widest, _columns(table))) <= width:
        return Group(_rich(table, every))
    table = wrapped_headers(table)
    if table.texts > 1 and _least_width(table) > width:
        table = wrapped_headers(join_columns(table))
    widths = [_widest(column) for column in _columns(table)]
    texts, numbers = widths[: table.texts], widths[table.texts :]
    least = _least_width(table) - sum(size + GAP for size in numbers)
    room = width - min(_total(texts), max(least, width - sum(size + GAP for size in numbers)))
    parts: list[list[int]] = [[]]
    for column, size in enumerate(numbers, table.texts):
        if parts[-1] and sum(widths[i] + GAP for i in parts[-1]) + size + GAP > room:
            parts.append([])
        parts[-1].append(column)
    return Group(*(_rich(table, [*range(table.texts), *part]) for part in parts))


def join_columns(table: tables.Table) -> tables.Table:
    """The table with its columns of text in one."""

    def join(cells: Sequence[str], separator: str) -> list[str]:
        return [separator.join(filter(None, cells[: table.texts])), *cells[table.texts :]]

    return tables.Table(table.title, join(table.header, " · "), [join(row, " · ") for row in table.rows], 1)


def wrapped_headers(table: tables.Table) -> tables.Table:
    """The table with headers of several lines, each as wide as its column's cells or its longest word."""
    lines = []
    for header, *cells in _columns(table):
        width = max(min(len(header), SHORT), *map(len, (*header.split(), *cells)))
        lines.append(textwrap.wrap(header, max(width, 1)))
    height = max(map(len, lines))
    headers = ["\n".join([""] * (height - len(own)) + own) for own in lines]
    return tables.Table(table.title, headers, table.rows, table.texts)


def _columns(table: tables.Table) -> list[tuple[str, ...]]:
    """The header and the cells of each column."""
    return list(zip(table.header, *table.rows, strict=True))


def _widest(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n"))


def _least_width(table: tables.Table) -> int:
    """Width of the table when its widest column of text is wrapped."""
    widths = [_widest(column) for column in _columns(table)]
    if table.texts:
        widest = max(range(table.texts), key=widths.__getitem__)
        widths[widest] = min(widths[widest], NARROW)
    return _total(widths)


def _total(widths: Iterable[int]) -> int:
    """Width of columns of these widths, with the gaps between them."""
    return sum(width + GAP for width in widths) - GAP


def _rich(table: tables.Table, columns: Sequence[int]) -> Table:
    """Some columns of the table: text is wrapped where it must be, numbers never."""
    own = Table(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
    for i in columns:
        if table.is_text(i):
            own.add_column(table.header[i], overflow="fold")
        else:
            own.add_column(table.header[i], justify="right", no_wrap=True)
    for row in table.rows:
        own.add_row(*(Text(row[i]) for i in columns))
    return own
