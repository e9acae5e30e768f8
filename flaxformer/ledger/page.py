"""Page of a ledger, its lines for a terminal, and its JSON: attempts in order, with their evidence and cost."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flaxformer.analysis.analysis import Analysis, analyse
from flaxformer.ledger.judge import AttemptEvidence
from flaxformer.ledger.log import AttemptVerdict, Begun
from flaxformer.ledger.reading import ATTEMPTS, CONFIRMATION, PAGE, JudgedAttempt, LedgerResults
from flaxformer.report import figures, html, phrasing, verdicts
from flaxformer.report.as_json import claim_json
from flaxformer.report.colours import GREY, VERDICT_COLOURS
from flaxformer.report.numbers import number, numbers
from flaxformer.report.sections import Bullets, Figure, ReportSection, StudyReport
from flaxformer.report.table import Table
from flaxformer.report.texts import write_printable
from flaxformer.statistics.finite import finite
from flaxformer.store.store import Store
from flaxformer.system.digests import JsonObject
from flaxformer.system.wording import count_of, duration, join_words, with_prefix

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FORMAT = 1
"""Version of the JSON; raised when a field changes its meaning."""
MEANINGS: dict[AttemptVerdict | None, str] = {
    "kept": "the change is part of the best recipe",
    "dropped": "an improvement of the effect of interest or more is excluded",
    "open": "neither, after all its pairs",
    "unchanged": "every pair gave the same numbers",
    "failed": "a run failed, or its metric is not finite",
    "withdrawn": "ended by its author; it counts as one without effect",
    None: "under way",
}
COLOUR = {"kept": VERDICT_COLOURS["supported"], "dropped": VERDICT_COLOURS["refuted"]}
MOST_SHOWN = 12
"""Largest number of attempts that the terminal lists, the last ones."""


def evidence_line(begun: Begun, evidence: AttemptEvidence) -> str:
    """Return the evidence after a look in one line."""
    return (
        f"{count_of(evidence.pairs, 'pair')}: improvement {_effect(begun, evidence)}; evidence "
        f"{_evidence(evidence.log_e)} of {_evidence(evidence.log_needed)}"
    )


def _effect(begun: Begun, evidence: AttemptEvidence) -> str:
    low, high = evidence.limits
    half = (high - low) / 2
    mean, low_text, high_text = numbers([evidence.mean, low, high], half if math.isfinite(half) else math.nan)
    return f"{mean} [{low_text}, {high_text}]{f' {begun.unit}' if begun.unit else ''}"


def _evidence(log_e: float) -> str:
    """Evidence as a number; its logarithm may exceed the range of floats."""
    return number(math.exp(min(log_e, 700.0))) if log_e < math.log(1e6) else f"10^{log_e / math.log(10):.0f}"


def answer(results: LedgerResults) -> str:
    """Return what the ledger has come to, in sentences."""
    counts = Counter(attempt.verdict for attempt in results.attempts)
    if not results.attempts:
        return "No attempt was made yet."
    several = ", ".join(f"{counts[verdict]} {verdict or 'under way'}" for verdict in MEANINGS if counts[verdict])
    text = f"Of {count_of(len(results.attempts), 'attempt')}: {several}."
    confirmation = confirmed(results)
    if confirmation is not None and confirmation.claims:
        claim = confirmation.claims[0]
        return (
            f"{text} Confirmation on {confirmation.study.metric}: {phrasing.finding(claim)}. {verdicts.answer([claim])}"
        )
    if results.confirmations:
        return f"{text} The confirmation has begun and has no result yet."
    return f"{text} The best recipe is not confirmed yet." if results.kept else text


def confirmed(results: LedgerResults) -> Analysis | None:
    """Return the analysis of the confirmation; None while it has no results."""
    folder = results.root / CONFIRMATION
    if not results.confirmations or not (folder / "study.json").is_file():
        return None
    analysis = analyse(Store(folder))
    return analysis if len(analysis.rows) and not analysis.missing else None


def describe(results: LedgerResults) -> Iterator[str]:
    """Yield the lines that answer a command: the answer, the last attempts, the best recipe, and what limits it."""
    yield answer(results)
    for attempt in results.attempts[-MOST_SHOWN:]:
        entry, evidence = attempt.entry, attempt.evidence
        verdict = attempt.verdict or "under way"
        yield f"  {attempt.number:>3} {verdict}: {entry.reason} ({change_of(attempt)})"
        yield f"      {_effect(results.begun, evidence)}, {count_of(evidence.pairs, 'pair')}"
    if results.kept:
        yield f"Best recipe: the start with {'; '.join(map(change_of, results.kept))}"
    yield from (f"Limit: {limit}" for limit in limits(results))


def change_of(attempt: JudgedAttempt) -> str:
    """Return the change of an attempt as it was written."""
    return " ".join([*([attempt.entry.file] if attempt.entry.file else []), *attempt.entry.changes])


def limits(results: LedgerResults) -> Iterator[str]:
    """Yield what is wrong with the folder, and what is not known."""
    yield from results.faults
    begun, untuned = results.begun, sum(1 for attempt in results.attempts if not attempt.entry.rates)
    yield (
        f"at most {begun.false_keeps:.0%} of the kept changes are expected to have no effect, if paired differences "
        "are symmetric with one mode; skewed ones are kept more often"
    )
    if untuned:
        yield f"the learning rate was not tuned for the candidates of {count_of(untuned, 'attempt')}"
    opened = [attempt.number for attempt in results.attempts if attempt.verdict == "open"]
    if opened:
        noun, numbers_of = ("attempt" if len(opened) == 1 else "attempts"), join_words(map(str, opened))
        yield f"the effect of {noun} {numbers_of}, still open, may be larger or smaller than {begun.effect:g}"
    if results.kept and not results.confirmations:
        yield "the effects of kept changes are those of the pairs by which they were kept, and tend to be too large"


def document(results: LedgerResults) -> StudyReport:
    """Return the report of a ledger."""
    begun = results.begun
    unit = f" {begun.unit}" if begun.unit else ""
    about = (
        f"Attempts are compared by {begun.metric}; effect of interest {begun.effect:g}{unit}; "
        f"up to {begun.seeds} pairs each; false discovery rate at most {begun.false_keeps:.0%}."
        + (f" A run of the start may cost {begun.budget}: {count_of(begun.steps, 'step')}." if begun.budget else "")
    )
    confirmation = confirmed(results)
    verdict = confirmation.claims[0].judgement.verdict if confirmation is not None and confirmation.claims else ""
    return StudyReport(
        name=begun.name,
        question=f"Which changes improve the recipe {begun.name}?",
        about=about,
        answer=answer(results),
        verdict=verdict,
        sections=[
            ReportSection("", [_forest(results)]),
            ReportSection("", [_table(results), Bullets(list(_notes(results)))]),
            ReportSection("Evidence", [_paths(results)]),
            ReportSection("Verdicts", [Bullets(list(_meanings(results)))]),
            ReportSection("Test data", [Bullets(list(_test_data(results)))]),
            ReportSection("Limits", [Bullets([text[0].upper() + text[1:] + "." for text in limits(results)])]),
        ],
    )


def _notes(results: LedgerResults) -> Iterator[str]:
    for attempt in results.attempts:
        for note in attempt.entry.notes:
            yield f"Attempt {attempt.number}: {note}."


def _meanings(results: LedgerResults) -> Iterator[str]:
    """The verdicts that the ledger has, with their meanings."""
    verdicts_so_far = {attempt.verdict for attempt in results.attempts}
    for verdict, meaning in MEANINGS.items():
        if verdict in verdicts_so_far:
            yield f"{verdict}: {meaning}." if verdict else f"{meaning}: no verdict yet."


def _test_data(results: LedgerResults) -> Iterator[str]:
    yield f"{count_of(len(results.confirmations), 'look')} at the test data; attempts do not evaluate them."
    for entry in results.confirmations:
        attempts = count_of(entry.attempts, "attempt")
        yield f"{entry.metric}, after {attempts} ({entry.time}): see {CONFIRMATION}/report.html."


def _table(results: LedgerResults) -> Table:
    header = ["attempt", "reason", "change", "verdict", "improvement", "pairs", "evidence", "time", "FLOPs"]
    rows = [_row(results, attempt) for attempt in results.attempts]
    return Table("Attempts in order", header, rows, 4)


def _row(results: LedgerResults, attempt: JudgedAttempt) -> list[str]:
    evidence = attempt.evidence
    return [
        str(attempt.number),
        attempt.entry.reason,
        change_of(attempt),
        attempt.verdict or "under way",
        _effect(results.begun, evidence),
        str(evidence.pairs),
        f"{_evidence(evidence.log_e)} of {_evidence(evidence.log_needed)}",
        duration(attempt.seconds),
        with_prefix(attempt.flops, "FLOP"),
    ]


def _forest(results: LedgerResults) -> Figure:
    """Mean improvements with their confidence sequences, in order."""
    begun, shown = results.begun, [attempt for attempt in results.attempts if attempt.evidence.pairs]

    def draw(width: float) -> "Drawing":
        from matplotlib.figure import Figure as Drawing  # here, since importing matplotlib takes a third of a second

        drawing = Drawing(figsize=(width, 0.9 + 0.16 * len(shown)), layout="constrained")
        ax = drawing.subplots()
        widest = max((abs(e) for a in shown for e in (*a.evidence.improvements, begun.effect)), default=1.0)
        for place, attempt in enumerate(shown):
            evidence, colour = attempt.evidence, COLOUR.get(str(attempt.verdict), GREY)
            ends = [min(max(limit, -2 * widest), 2 * widest) for limit in evidence.limits]
            ax.plot(ends, [place, place], color=colour)
            ax.plot([evidence.mean], [place], "o", ms=3.2, color=colour)
        ax.axvline(0, color=GREY, linewidth=0.6)
        ax.axvline(begun.effect, color=GREY, linewidth=0.6, linestyle=":")
        ax.set_yticks(range(len(shown)), [f"{attempt.number} {change_of(attempt)}"[:48] for attempt in shown])
        ax.set_ylim(len(shown) - 0.5, -0.5)
        ax.set_xlabel(f"improvement of {begun.metric}{f' ({begun.unit})' if begun.unit else ''}")
        return drawing

    def words() -> str:
        return "; ".join(f"attempt {a.number} {a.verdict or 'under way'}: {_effect(begun, a.evidence)}" for a in shown)

    caption = (
        "Mean improvement of each attempt with its 90 % confidence sequence; dotted: the effect of interest. Green: "
        "kept; red: dropped; grey: neither. Lines end at twice the largest improvement of a pair."
    )
    return Figure("attempts", draw, caption, words, when=bool(shown))


def _paths(results: LedgerResults) -> Figure:
    """Evidence of each attempt over its pairs."""
    from flaxformer.statistics.sequential import evidence as evidence_of

    shown = [attempt for attempt in results.attempts if attempt.evidence.pairs]

    def draw(width: float) -> "Drawing":
        import numpy as np
        from matplotlib.figure import Figure as Drawing

        from flaxformer.report.drawing import set_whole_ticks

        drawing = Drawing(figsize=(width, 2.4), layout="constrained")
        ax = drawing.subplots()
        for attempt in shown:
            path = evidence_of(np.array(attempt.evidence.improvements)) / math.log(10)
            colour = COLOUR.get(str(attempt.verdict), GREY)
            ax.plot(range(len(path) + 1), [0.0, *path], color=colour, linewidth=0.8)
            ax.text(len(path), path[-1], str(attempt.number), fontsize=6, color=colour)
        needed = [attempt.evidence.log_needed for attempt in shown]
        for level in (min(needed), max(needed)):
            ax.axhline(level / math.log(10), color=GREY, linewidth=0.6, linestyle=":")
        ax.set(xlabel="pairs", ylabel="log10 of the evidence")
        set_whole_ticks(ax)
        return drawing

    def words() -> str:
        return "; ".join(
            f"attempt {a.number}: {_evidence(a.evidence.log_e)} after {a.evidence.pairs} pairs" for a in shown
        )

    caption = "Evidence that the candidate is better, after each pair; dotted: the least and the most that was needed."
    return Figure("evidence", draw, caption, words, when=bool(shown))


def as_json(results: LedgerResults) -> JsonObject:
    """Return the ledger as plain data; numbers that are not finite are null."""
    begun = results.begun
    return {
        "format": FORMAT,
        "ledger": begun.name,
        "folder": str(results.root),
        "metric": begun.metric,
        "goal": begun.goal,
        "effect": begun.effect,
        "best": [change_of(attempt) for attempt in results.kept],
        "attempts": [_attempt_json(attempt) for attempt in results.attempts],
        "looks_at_test_data": len(results.confirmations),
        "confirmation": None if (analysis := confirmed(results)) is None else claim_json(analysis.claims[0]),
        "answer": answer(results),
        "limits": list(limits(results)),
        "faults": list(results.faults),
    }


def _attempt_json(attempt: JudgedAttempt) -> JsonObject:
    evidence, entry = attempt.evidence, attempt.entry
    low, high = evidence.limits
    measured = {"improvement": evidence.mean, "low": low, "high": high}
    return {
        "number": entry.number,
        "reason": entry.reason,
        "changes": list(entry.changes),
        "file": entry.file or None,
        "verdict": attempt.verdict,
        "pairs": evidence.pairs,
        **{name: finite(value) for name, value in measured.items()},
        "log_evidence": evidence.log_e,
        "log_evidence_needed": evidence.log_needed,
        "seconds": attempt.seconds,
        "flops": attempt.flops,
        "learning_rates_tried": list(entry.rates),
        "notes": list(entry.notes),
        "folder": f"{ATTEMPTS}/{entry.number:03}",
    }


def write_page(results: LedgerResults) -> Path:
    """Write the page of a ledger, and the report of its confirmation; return its path."""
    if confirmed(results) is not None:
        from flaxformer.report.files import write

        write(Store(results.root / CONFIRMATION))
    report = document(results)
    drawn = figures.draw((part for part in report.parts if isinstance(part, Figure)), results.root / "figures")
    write_printable(results.root / PAGE, html.render(report, drawn))
    return results.root / PAGE
