"""HTML page of all claims: one section per claim, with each tested statement and a link to its report."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from flaxformer.claims.record import CaseRecord, Statement, totals
from flaxformer.report import html, index
from flaxformer.report.numbers import duration
from flaxformer.report.table import Table
from flaxformer.report.write import report_path
from flaxformer.store.store import Store
from flaxformer.system.wording import count_of

WEAKER = "Quick form: fewer seeds, steps and arms than the declared evidence, and so weaker. Run it without --quick."
HEADER = ("what was tested", "effect [95 %]", "claimed", "n", "verdict", "declared")


def render(root: Path, records: Sequence[CaseRecord], entries: Sequence[index.Entry]) -> str:
    """Return the page: counts of verdicts, each claim with its evidence, and a list of all probes and studies."""
    seconds = sum(case.seconds for case in records)
    total = f"{count_of(len(records), 'claim')} in {totals(records)}"
    parts = [
        "<h1>The claims, measured</h1>",
        f'<p class="answer">{escape(total)}</p>',
        f'<p class="soft">Effects are means over seeds with the intervals that are tested: 95 %, or 90 % for '
        f"equalities. Verdicts are Holm-corrected within each probe or study; facts are exact values of the "
        f"programs. Measured in {duration(seconds)}.</p>",
        f'<p class="soft">{escape(WEAKER)}</p>' if any(case.quick for case in records) else "",
        *(_case(root, case) for case in records),
        html.section("Every probe and study", index.index_table(root, entries)),
    ]
    return html.page("The claims, measured", parts)


def _case(root: Path, case: CaseRecord) -> str:
    rows = [[line.tested, line.measured, line.claimed, str(line.n), line.verdict, line.declared] for line in case.lines]
    body = html.table(Table("", HEADER, rows, len(HEADER)), [_link(root, line) for line in case.lines])
    head = f"<h2>{case.number}. {escape(case.claim)}</h2>"
    return f'{head}<p class="soft">{escape(case.source)} · {duration(case.seconds)}</p>{body}'


def _link(root: Path, line: Statement) -> str | None:
    return report_path(Store(line.folder)).relative_to(root).as_posix() if line.folder else None
