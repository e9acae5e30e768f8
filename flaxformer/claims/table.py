"""One table of all cases: claim, source, effect with its interval, n, verdict, time."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer.claims.run import Outcome
from flaxformer.study import tables, words
from flaxformer.study.store import write_atomically
from flaxformer.study.terminal import STYLES

HEADER = ("claim", "what was tested", "effect [95 %]", "n", "verdict", "time")
WEAKER = (
    "The quick form: fewer seeds, steps and arms than the declared evidence, and so weaker. Run it without --quick."
)


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row for each tested form of each claim; number, source and time stand in the first row of a case."""
    table: list[tuple[str, ...]] = []
    for outcome in outcomes:
        first = True
        for _, analysis in outcome.analyses:
            for claim in analysis.claims:
                effect = words.signed(claim.judgement.effect) if claim.judgement.effect.n else "–"
                unit = f" {claim.unit}" if claim.unit else ""
                head = f"{outcome.case.number}. {outcome.case.claim} ({outcome.case.source})" if first else ""
                time = words.duration(outcome.seconds) if first else ""
                n = str(claim.judgement.effect.n)
                table.append((head, claim.text, effect + unit, n, claim.judgement.verdict, time))
                first = False
        if outcome.failure:
            head = f"{outcome.case.number}. {outcome.case.claim} ({outcome.case.source})" if first else ""
            table.append((head, outcome.failure, "–", "0", "failed", words.duration(outcome.seconds)))
    return table


def show(console: Console, outcomes: Sequence[Outcome], quick: bool) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for header in HEADER:
        table.add_column(header, justify="right" if header in ("n", "time") else "left", vertical="top")
    for row in rows(outcomes):
        if row[0]:
            table.add_section()
        *head, verdict, time = row
        table.add_row(*head, Text(verdict, style=STYLES.get(verdict, "red")), time)
    console.print()
    console.print(table)
    if quick:
        console.print(Text(WEAKER, style="yellow"))


def write(root: Path, outcomes: Sequence[Outcome], quick: bool) -> Path:
    """Write the table as claims.md and claims.tex; returns the first's path."""
    root.mkdir(parents=True, exist_ok=True)
    note = f"\n{WEAKER}\n" if quick else ""
    write_atomically(root / "claims.md", (tables.markdown(HEADER, rows(outcomes)) + note).encode())
    write_atomically(root / "claims.tex", tables.latex(HEADER, rows(outcomes)).encode())
    return root / "claims.md"
