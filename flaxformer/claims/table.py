"""Table and page of all cases: claim, source, effect with its interval, n, verdict and time."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from flaxformer.analysis.analysis import analyse
from flaxformer.claims import record
from flaxformer.claims.record import CaseRecord, Statement
from flaxformer.report import html, index, markdown, phrasing, tex
from flaxformer.report.table import Table
from flaxformer.report.texts import write_printable
from flaxformer.report.verdicts import STYLES
from flaxformer.store.places import REPORT
from flaxformer.system.files import make_folder
from flaxformer.system.links import output_folder
from flaxformer.system.wording import count_of, duration

if TYPE_CHECKING:  # a report, which calls `rewrite`, needs no JAX
    from flaxformer.claims.run import CaseResult

HEADER = ("claim", "source", "what was tested", "effect [95 %]", "claimed", "n", "verdict", "declared", "time")
TESTED = HEADER[2:8]
"""Columns of the page, which has a section per claim."""
WEAKER = "Quick form: fewer seeds, steps and arms than the declared evidence, and so weaker. Run it without --quick."
ESTIMATES = {of_fact: verdict for verdict, of_fact in record.OF_FACTS.items()}
MARKS = phrasing.MARKS | {of_fact: phrasing.MARKS[verdict] for of_fact, verdict in ESTIMATES.items()}
WIDEST = 120
"""Largest width of the table in columns of the terminal; longer lines are hard to read."""


def table(records: Sequence[CaseRecord]) -> Table:
    """Return one row per tested statement; the first row of a case also has its claim, source and time."""
    rows = []
    for case in records:
        head = [f"{case.number}. {case.claim}", case.source], duration(case.seconds)
        for line in case.lines:
            cells = [line.tested, line.measured, line.claimed, str(line.n), line.verdict, line.declared]
            rows.append([*head[0], *cells, head[1]])
            head = ["", ""], ""
    return Table("Claims", HEADER, rows, len(HEADER))


def show(console: Console, outcomes: "Sequence[CaseResult]", quick: bool) -> None:
    """Print one line per claim over the full width, and below it the tested statements."""
    records = [record.of(outcome, quick) for outcome in outcomes]
    lines = [line for case in records for line in case.lines]
    width = min(console.width, WIDEST)
    columns = {
        "effect [95 %]": min(max([13, *(len(line.measured) for line in lines)]), max(24, width // 3)),
        "n": max([1, *(len(str(line.n)) for line in lines)]),
        "verdict": max([7, *(len(_mark(line.verdict)) for line in lines)]),
    }
    for i, case in enumerate(records):
        console.print()
        head = RichTable.grid(expand=True, padding=(0, 1))
        head.add_column(justify="right", width=2)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True, style="dim")
        head.add_row(Text(str(case.number), "bold"), Text(case.claim, "bold"), Text(duration(case.seconds)))
        head.add_row("", Text(case.source, "dim"), "")
        console.print(head, width=width)
        body = RichTable(box=None, pad_edge=False, header_style="dim", show_header=i == 0, padding=(0, 2, 0, 0))
        body.add_column("what was tested", width=width - 3 - sum(columns.values()) - 2 * len(columns) - 2)
        for header, size in columns.items():
            body.add_column(header, width=size, justify="right" if header == "n" else "left", overflow="fold")
        for line in case.lines:
            what = Text.assemble(line.tested, (f"  claimed {line.claimed}" if line.claimed != "–" else "", "dim"))
            verdict = Text(_mark(line.verdict), style=STYLES.get(ESTIMATES.get(line.verdict, line.verdict), "red"))
            body.add_row(what, line.measured, str(line.n), verdict)
        console.print(Padding(body, (0, 0, 0, 3)), width=width)
    console.print()
    console.print(Text(record.totals(records)), width=width)
    if quick:
        console.print(Text(WEAKER, style="yellow"), width=width)


def _mark(verdict: str) -> str:
    return f"{MARKS.get(verdict, '!')} {verdict}"


def write(root: Path, outcomes: "Sequence[CaseResult]", quick: bool) -> Path:
    """Store the cases of this launch, write the tables of the whole folder, and return the path of the page."""
    record.keep(root, outcomes, quick)
    known = dict(pair for outcome in outcomes for pair in outcome.analyses)
    return rewrite(root, index.entries(root, lambda store: known.get(store.root) or analyse(store)))


def rewrite(root: Path, entries: Sequence[index.Entry]) -> Path:
    """Write claims.md, claims.tex and index.html from the folder alone, and return the path of the page.

    Args:
      root: the folder of the cases.
      entries: summaries of its studies and probes.
    """
    records = record.read_all(root, entries)
    make_folder(output_folder(root))
    weaker = f"\n{WEAKER}\n" if any(case.quick for case in records) else ""
    document = f"{record.totals(records)}\n\n{markdown.table(table(records))}{weaker}"
    write_printable(root / "claims.md", document)
    write_printable(root / "claims.tex", tex.table(table(records)))
    write_printable(root / "index.html", page(root, records, entries))
    return root / "index.html"


def page(root: Path, records: Sequence[CaseRecord], entries: Sequence[index.Entry]) -> str:
    """Return the page: counts of verdicts, each claim with its evidence, and a list of all probes and studies."""
    seconds = sum(case.seconds for case in records)
    total = f"{count_of(len(records), 'claim')} in {record.totals(records)}"
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
    body = html.table(Table("", TESTED, rows, len(TESTED)), [_link(root, line) for line in case.lines])
    head = f"<h2>{case.number}. {escape(case.claim)}</h2>"
    return f'{head}<p class="soft">{escape(case.source)} · {duration(case.seconds)}</p>{body}'


def _link(root: Path, line: Statement) -> str | None:
    return (line.folder / REPORT).relative_to(root).as_posix() if line.folder else None
