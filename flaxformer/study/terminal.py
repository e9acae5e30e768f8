"""The report in the terminal."""

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flaxformer.study import words
from flaxformer.study.analysis import Analysis

STYLES = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}


def show(console: Console, analysis: Analysis) -> None:
    """Print the question, what was found, what was not asked, what is not shown, and the table of arms."""
    study = analysis.study
    console.print(Text(study["question"], style="bold"))
    console.print(Text("; ".join(words.fixed(analysis)), style="dim"))
    for claim in analysis.claims:
        verdict = claim.judgement.verdict
        line = Text.assemble((f"{words.MARKS[verdict]} {verdict}", STYLES[verdict]), ": ", claim.text)
        console.print(line)
        console.print(Padding(Text(words.finding(claim), style="dim"), (0, 0, 0, 4)))
    if analysis.surprises:
        console.print(Text("Not claimed, but there (exploratory: a new study has to confirm it):"))
        for finding in words.surprises(analysis):
            console.print(Padding(Text(f"· {finding}"), (0, 0, 0, 2)))
    for limit in analysis.limits:
        console.print(Text.assemble(("Not shown: ", "dim"), limit))
    if analysis.arms:
        console.print(_arms(analysis))
    if analysis.quantities:
        console.print(_quantities(analysis))
    lines = ", ".join(f"{name} {loss:.3f}" for name, loss in study["references"].items())
    if lines:
        console.print(Text(f"Simple models on the same evaluation data: {lines}", style="dim"))


def _quantities(analysis: Analysis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("quantity", "mean", "95 % interval", "sd", "seeds"):
        table.add_column(header, justify="left" if header == "quantity" else "right")
    for one in analysis.quantities:
        mean = one.estimate
        interval = f"{words.number(mean.low)} to {words.number(mean.high)}"
        table.add_row(*one.labels.values(), words.number(mean.mean), interval, words.number(mean.sd), str(mean.n))
    return table


def _arms(analysis: Analysis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for axis in analysis.study["axes"]:
        table.add_column(axis["name"])
    for header in (analysis.study["metric"].replace("_", " "), "95 % interval", "sd", "seeds", "diverged"):
        table.add_column(header, justify="right")
    for arm in analysis.arms:
        mean = arm.estimate
        interval = f"{words.number(mean.low)} to {words.number(mean.high)}"
        table.add_row(
            *arm.labels.values(),
            words.number(mean.mean),
            interval,
            words.number(mean.sd),
            str(mean.n),
            str(arm.diverged),
        )
    return table
