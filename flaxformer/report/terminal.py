"""The report in the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flaxformer.report import phrasing, tables
from flaxformer.store.status import STATES
from flaxformer.study.analysis import MOST_DRAWN, Analysis

STYLES = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}


def show(console: Console, analysis: Analysis) -> None:
    """Print the question, what was found, what was not asked, what is not shown, and the tables of numbers."""
    study = analysis.study
    console.print(Text(study["question"], style="bold"))
    console.print(Text("; ".join(phrasing.fixed(analysis)), style="dim"))
    for claim in analysis.claims:
        verdict = claim.judgement.verdict
        line = Text.assemble((f"{phrasing.MARKS[verdict]} {verdict}", STYLES[verdict]), ": ", claim.text)
        console.print(line)
        console.print(Padding(Text(phrasing.finding(claim), style="dim"), (0, 0, 0, 4)))
    if analysis.exploratory_findings:
        console.print(Text("Not claimed, but there (exploratory: a new study has to confirm it):"))
        for finding in phrasing.exploratory_findings(analysis):
            console.print(Padding(Text(f"· {finding}"), (0, 0, 0, 2)))
    for limit in analysis.limits:
        console.print(Text.assemble(("Not shown: ", "dim"), limit))
    for table in (tables.arms(analysis), tables.quantities(analysis)):
        if table.rows:
            console.print(as_rich(table))
    if study["references"]:
        console.print(Text(f"Simple models on the same evaluation data: {phrasing.references(analysis)}", style="dim"))


def show_answers(console: Console, answers: Iterable[tuple[str, str]]) -> None:
    """Print a line for each of several studies: its name and its answer."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, answer in answers:
        table.add_row(Text(name, style="bold"), Text(answer))
    console.print(table)


def as_rich(table: tables.Table) -> Table:
    """A table as rich prints it."""
    own = Table(box=None, pad_edge=False, header_style="dim")
    for i, header in enumerate(table.header):
        own.add_column(header, justify="left" if table.is_text(i) else "right")
    for row in table.rows[:MOST_DRAWN]:
        own.add_row(*map(Text, row))
    if len(table.rows) > MOST_DRAWN:
        own.add_row(Text(f"… {len(table.rows) - MOST_DRAWN} more in results.md"))
    return own


def show_status(console: Console, found: Mapping[str, Any]) -> None:
    """Print what `status` found: the rungs of a halving, one line per group, one line per lease."""
    for step, rung in found["rungs"].items():
        console.print(f"After {step} steps, where the worst arms are stopped:", style="dim", highlight=False)
        show_status(console, rung)
    if found["rungs"]:
        console.print("To the end:", style="dim")
    states = [name for name in STATES if found[name] or name in ("done", "running", "failed", "missing")]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("program", "declared", *states, "last row"):
        table.add_column(header, justify="left" if header == "program" else "right", no_wrap=True)
    for own in found["groups"]:
        ago = _ago(own["seconds_since_last_row"])
        table.add_row(own["group"], *(str(own[name]) for name in ("declared", *states)), ago)
    if len(found["groups"]) != 1:
        table.add_row("all", *(str(found[name]) for name in ("declared", *states)), "", style="bold")
    console.print(table)
    for lease in found["leases"]:
        trials = "all" if lease["trials"] is None else lease["trials"]
        console.print(
            f"{lease['group']}: {trials} runs held by process {lease['pid']} on {lease['host']} since "
            f"{_ago(lease['seconds_held'])}, {lease['state']}, last heard of {_ago(lease['seconds_silent'])}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    for name, what in found["damaged"].items():
        console.print(Text(f"{found['folder']}/{name} is damaged ({what}); 'run' trains what it held", style="yellow"))


def _ago(seconds: float | None) -> str:
    """An age in its largest unit."""
    if seconds is None:
        return "–"
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    return next((f"{seconds / size:.1f} {unit} ago" for size, unit in units if seconds >= size), f"{seconds:.0f} s ago")
