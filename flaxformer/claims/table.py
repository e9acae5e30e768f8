"""One table of all cases: claim, source, effect with its interval, n, verdict, time."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from flaxformer.claims import page, record
from flaxformer.claims.record import Record
from flaxformer.claims.run import CaseResult
from flaxformer.files import write_atomically
from flaxformer.report import phrasing, tables
from flaxformer.report.numbers import duration
from flaxformer.report.terminal import STYLES

HEADER = ("claim", "source", "what was tested", "effect [95 %]", "claimed", "n", "verdict", "time")
WIDEST = 120
"""Columns of a terminal that the table uses at most: the eye has to find its way back."""


def table(records: Sequence[Record]) -> tables.Table:
    """A row for each tested form of each claim; claim, source and time stand in the first row of a case."""
    rows = []
    for one in records:
        head = [f"{one.number}. {one.claim}", one.source], duration(one.seconds)
        for line in one.lines:
            rows.append([*head[0], line.tested, line.measured, line.claimed, str(line.n), line.verdict, head[1]])
            head = ["", ""], ""
    return tables.Table("Claims", HEADER, rows, len(HEADER))


def show(console: Console, outcomes: Sequence[CaseResult], quick: bool) -> None:
    """Print a line over the full width for each claim, and under it what was tested."""
    records = [record.of(outcome, quick) for outcome in outcomes]
    lines = [line for one in records for line in one.lines]
    width = min(console.width, WIDEST)
    columns = {
        "effect [95 %]": min(max([13, *(len(line.measured) for line in lines)]), max(24, width // 3)),
        "n": max([1, *(len(str(line.n)) for line in lines)]),
        "verdict": max([7, *(len(_marked(line.verdict)) for line in lines)]),
    }
    for i, one in enumerate(records):
        console.print()
        head = RichTable.grid(expand=True, padding=(0, 1))
        head.add_column(justify="right", width=2)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True, style="dim")
        head.add_row(Text(str(one.number), "bold"), Text(one.claim, "bold"), Text(duration(one.seconds)))
        head.add_row("", Text(one.source, "dim"), "")
        console.print(head, width=width)
        body = RichTable(box=None, pad_edge=False, header_style="dim", show_header=i == 0, padding=(0, 2, 0, 0))
        body.add_column("what was tested", width=width - 3 - sum(columns.values()) - 2 * len(columns) - 2)
        for header, size in columns.items():
            body.add_column(header, width=size, justify="right" if header == "n" else "left", overflow="fold")
        for line in one.lines:
            what = Text.assemble(line.tested, (f"  claimed {line.claimed}" if line.claimed != "–" else "", "dim"))
            verdict = Text(_marked(line.verdict), style=STYLES.get(line.verdict, "red"))
            body.add_row(what, line.measured, str(line.n), verdict)
        console.print(Padding(body, (0, 0, 0, 3)), width=width)
    if quick:
        console.print(Text(page.WEAKER, style="yellow"))


def _marked(verdict: str) -> str:
    return f"{phrasing.MARKS.get(verdict, '!')} {verdict}"


def write(root: Path, outcomes: Sequence[CaseResult], quick: bool) -> Path:
    """Note this launch's cases, and write the tables of all that the folder has; returns the page's path."""
    record.keep(root, outcomes, quick)
    return rewrite(root)


def rewrite(root: Path) -> Path:
    """Write claims.md, claims.tex and index.html from the folder alone; returns the page's path."""
    records = record.read_all(root)
    root.mkdir(parents=True, exist_ok=True)
    note = f"\n{page.WEAKER}\n" if any(one.quick for one in records) else ""
    write_atomically(root / "claims.md", (tables.markdown(table(records)) + note).encode())
    write_atomically(root / "claims.tex", tables.latex(table(records)).encode())
    write_atomically(root / "index.html", page.render(root, records).encode())
    return root / "index.html"
