"""The page of all claims: a section each, with every tested form and the way to its report."""

import collections
from collections.abc import Sequence
from html import escape
from pathlib import Path

from flaxformer.claims.record import Record, Statement
from flaxformer.report import html, index, phrasing
from flaxformer.report.numbers import duration
from flaxformer.report.tables import Table
from flaxformer.report.write import report_path
from flaxformer.store.store import Store

WEAKER = (
    "The quick form: fewer seeds, steps and arms than the declared evidence, and so weaker. Run it without --quick."
)
HEADER = ("what was tested", "effect [95 %]", "claimed", "n", "verdict")


def render(root: Path, records: Sequence[Record]) -> str:
    """The page: how many hold, every claim with its evidence, and the list of all probes and studies."""
    counts = collections.Counter(line.verdict for one in records for line in one.lines)
    counted = ", ".join(f"{counts[word]} {word}" for word in (*phrasing.MARKS, "failed") if counts[word])
    n, seconds = len(records), sum(one.seconds for one in records)
    total = f"{n} claim{'s' if n != 1 else ''} in {counts.total()} tested forms: {counted or 'none yet'}."
    parts = [
        "<h1>The claims, measured</h1>",
        f'<p class="answer">{escape(total)}</p>',
        f'<p class="soft">Effects are means over seeds with 95 % t-intervals; verdicts are Holm-corrected within each '
        f"probe or study. Measured in {duration(seconds)}.</p>",
        f'<p class="soft">{escape(WEAKER)}</p>' if any(one.quick for one in records) else "",
        *(_case(root, one) for one in records),
        html.section("Every probe and study", index.listing(root)),
    ]
    return html.page("The claims, measured", parts)


def _case(root: Path, one: Record) -> str:
    rows = [[line.tested, line.measured, line.claimed, str(line.n), line.verdict] for line in one.lines]
    body = html.table(Table("", HEADER, rows, len(HEADER)), [_link(root, line) for line in one.lines], cards=True)
    head = f"<h2>{one.number}. {escape(one.claim)}</h2>"
    return f'{head}<p class="soft">{escape(one.source)} · {duration(one.seconds)}</p>{body}'


def _link(root: Path, line: Statement) -> str | None:
    return report_path(Store(line.folder)).relative_to(root).as_posix() if line.folder else None
