"""The report in the terminal: whole, and the answer on one screen."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import effect_tables, phrasing, provenance_text, tables, verdicts
from flaxformer.report.document import document
from flaxformer.report.sections import Bullets, Paragraph, Part, Verdicts
from flaxformer.report.table import ItemTable, Table
from flaxformer.report.width import fit_width, shorten_cells
from flaxformer.study.divergence import RULE
from flaxformer.system.wording import count_of

STYLES = {"soft": "dim", "warning": "yellow"}
"""Styles of paragraphs by their class in the page."""
MOST_CLAIMS, MOST_LIMITS, MOST_EVENTS, MOST_ARMS, MOST_EFFECTS = 5, 2, 2, 8, 12
"""Largest numbers of claims, limits, events, arms and effects that are shown; of warnings, all are."""


def show(console: Console, analysis: Analysis) -> None:
    """Print the question, the verdicts, exploratory findings, limits, and the tables of arms and quantities."""
    report = document(analysis)
    console.print(Text(report.question, style="bold"))
    console.print(Text(report.about, style="dim"))
    for part in report.parts:
        if "terminal" in part.on:
            _print(console, part)


def _print(console: Console, part: Part) -> None:
    """Print a part that has content."""
    match part:
        case Paragraph(text, style=style):
            if text:
                console.print(Text(text, style=STYLES.get(style, "")))
        case Bullets(texts, label=label):
            for text in texts:
                console.print(Text.assemble((label, "dim" if label.strip("· ") else ""), text))
        case Verdicts(notes):
            for claim, lines in notes:
                console.print(Text.assemble(verdicts.marked_verdict(claim), ": ", claim.text))
                for line in lines:
                    console.print(Padding(Text(line, style="dim"), (0, 0, 0, 4)))
        case Table() | ItemTable():
            shown = part.in_form("terminal")
            if shown.rows:
                console.print()
                console.print(fit_width(shorten_cells(shown), console.width))
        case _:
            raise NotImplementedError(f"{type(part).__name__} in a terminal")


def show_answers(console: Console, answers: Iterable[tuple[str, str]]) -> None:
    """Print the name and the answer of each of several studies."""
    for name, answer in answers:
        console.print(Text(name, style="bold"))
        console.print(Padding(Text(answer), (0, 0, 0, 2), expand=False))


def show_answer(console: Console, analysis: Analysis, overrides: tuple[str, ...] = ()) -> None:
    """Print the question, the answer with a line per claim, overrides, events, every warning, and the first limits.

    For a leave-one-out study, the table of effects stands in place of the claims.

    Args:
      console: the terminal.
      analysis: the study's analysis.
      overrides: changes of the study's file that its last command made.
    """
    console.print(Text(analysis.study.question, style="bold"))
    console.print(Text("; ".join(phrasing.describe_runs(analysis)), style="dim"))
    claims = [*analysis.claims, *analysis.withdrawn]
    if answer := verdicts.answer(analysis.claims).strip():
        console.print(Text(answer))
    has_effects = analysis.study.combine == "leave-one-out" and 0 < len(analysis.changes) <= MOST_EFFECTS
    if has_effects:
        console.print(fit_width(effect_tables.brief_effects(analysis).in_form("terminal"), console.width))
    if has_effects and claims:
        console.print(Text(_counts(claims)))
    for claim in [] if has_effects else claims[:MOST_CLAIMS]:
        console.print(claim_line(claim, is_alone=len(claims) < 3))
    if len(claims) > MOST_CLAIMS and not has_effects:
        console.print(Text(f"  and {len(claims) - MOST_CLAIMS} more claims"))
    if not claims and not has_effects:
        console.print(Text(verdicts.verdict(analysis)))
        arms = tables.arms(analysis).in_form("terminal")
        if arms.rows and len(arms.rows) <= MOST_ARMS:
            console.print(fit_width(shorten_cells(arms), console.width))
    for line in (*_changes(overrides), *_events(analysis), *_limits(analysis)):
        console.print(line)


def claim_line(claim: JudgedClaim, is_alone: bool) -> Text:
    """A claim's verdict, text and effect; alone, or beside one other, with the whole finding and what qualifies it."""
    remarks = [phrasing.finding(claim), *verdicts.qualifications(claim)]
    if not is_alone and claim.judgement.effect.n:
        more = len(remarks) - 1
        remarks = [phrasing.effect(claim), *([count_of(more, "qualification")] if more else [])]
    return Text.assemble(verdicts.marked_verdict(claim), ": ", claim.text, (f" ({'; '.join(remarks)})", "dim"))


def _counts(claims: Sequence[JudgedClaim]) -> str:
    """The number of claims with each verdict and its mark."""
    counts = Counter(verdicts.marked_verdict(claim)[0] for claim in claims)
    texts = [f"{n} {verdict}" for verdict, n in counts.most_common()]
    return f"Of {count_of(len(claims), 'claim')}, after Holm: {', '.join(texts)}."


def _changes(overrides: tuple[str, ...]) -> Iterator[Text]:
    if overrides:
        yield Text.assemble(("Overridden: ", "yellow"), " ".join(overrides))


def _events(analysis: Analysis) -> list[Text]:
    """The last events of the study's log, such as attempts to replicate it."""
    return [
        Text.assemble(("Event: ", "dim"), text)
        for text in [*provenance_text.event_sentences(analysis.log)][-MOST_EVENTS:]
    ]


def _limits(analysis: Analysis) -> Iterator[Text]:
    """All warnings; the first of the other limits, without the rule that every report has; and the number of others."""
    warnings = analysis.warnings
    for warning in warnings:
        yield Text.assemble(("Limit: ", "yellow"), warning)
    limits = [limit for limit in analysis.limits if limit != RULE and limit not in warnings]
    for limit in limits[:MOST_LIMITS]:
        yield Text.assemble(("Limit: ", "dim"), limit)
    if len(limits) > MOST_LIMITS:
        yield Text(f"       and {len(limits) - MOST_LIMITS} more", style="dim")
