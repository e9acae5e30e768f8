"""The command `flaxformer compare DIR DIR`, for two studies or two training jobs."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.analysis import Analysis, ArmSummary, analyse_to_show
from flaxformer.analysis.compare import Comparison, compare
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.cli.arguments import Compare
from flaxformer.cli.terminal import print_json
from flaxformer.report import job_comparison, phrasing
from flaxformer.report.as_json import comparison_json
from flaxformer.report.job import is_job, read_job
from flaxformer.report.numbers import exact, number, numbers
from flaxformer.report.reading import join
from flaxformer.report.table import Table
from flaxformer.report.verdicts import marked_verdict
from flaxformer.report.width import fit_width
from flaxformer.statistics.estimates import Estimate
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of


def main(arguments: Compare, console: Console) -> int:
    """Print the differences of configs or recipes, then arms and claims, or scores and curves, side by side."""
    is_of_job = {folder: is_job(folder) for folder in (arguments.a, arguments.b)}
    if all(is_of_job.values()):
        return compare_jobs(arguments, console)
    if any(is_of_job.values()):
        kinds = [f"{folder} holds a {'training job' if job else 'study'}" for folder, job in is_of_job.items()]
        raise UserError(f"{' and '.join(kinds)}; expected two studies, or two training jobs")
    folders = (arguments.a, arguments.b)
    comparison = compare(*(analyse_to_show(Store(folder), "compare") for folder in folders))
    if arguments.table is not None:
        write_table(arguments.table, join(*folders).to_dicts())
    if arguments.json:
        print_json(comparison_json(comparison, folders))
        return 0
    for side, folder, analysis in zip("AB", folders, (comparison.a, comparison.b), strict=True):
        missing = f" ({count_of(analysis.missing, 'run')} missing)" if analysis.missing else ""
        console.print(Text.assemble((f"{side}  {folder}", "bold"), missing), soft_wrap=True)
        console.print(Padding(Text(analysis.study.question, style="dim"), (0, 0, 0, 3), expand=False))
    show_recipes(console, comparison)
    if comparison.arms:
        console.print()
        if not comparison.has_same_metric:
            metrics = " and ".join(phrasing.metric(analysis.study) for analysis in (comparison.a, comparison.b))
            console.print(f"The metrics differ ({metrics}), so no difference is shown.")
        console.print(fit_width(arms_table(comparison), console.width))
    for pair in comparison.claims:
        console.print()
        console.print(Text(pair.text, style="bold"))
        for side, claim in (("A", pair.a), ("B", pair.b)):
            console.print(Padding(claim_line(side, claim), (0, 0, 0, 2), expand=False))
    if arguments.table is not None:
        console.print(f"\nTable: {arguments.table}", soft_wrap=True)
    return 0


def compare_jobs(arguments: Compare, console: Console) -> int:
    """Print scores, cost, differences of the configs, and the loss at equal steps, tokens and FLOPs."""
    for name in ("table", "json"):
        if getattr(arguments, name):
            raise UserError(f"--{name} stands with training jobs; expected two studies")
    a, b = read_job(arguments.a), read_job(arguments.b)
    for side, job in (("A", a), ("B", b)):
        console.print(Text.assemble((f"{side}  {job.folder}", "bold"), f"  {job.state}"), soft_wrap=True)
    lines = job_comparison.config_differences(a, b)
    console.print()
    show_differences(console, "the configs", lines)
    if not lines:
        console.print("The configs are the same.")
    for table in (job_comparison.scores_table(a, b), *job_comparison.curve_tables(a, b)):
        console.print()
        console.print(fit_width(table, console.width))
    console.print()
    for remark in job_comparison.remarks(a, b):
        console.print(remark)
    return 0


def show_recipes(console: Console, comparison: Comparison) -> None:
    """Print what differs in the settings and recipes, as PATH: A -> B."""
    lines = {"": comparison.settings + comparison.recipes.get("", [])} | {
        name: differences for name, differences in comparison.recipes.items() if name
    }
    console.print()
    if not any(lines.values()):
        console.print("The recipes of the arms that both have are the same.")
    for name, differences in lines.items():
        show_differences(console, name, differences)


def show_differences(console: Console, name: str, differences: Sequence[str]) -> None:
    """Print differences, if there are any, of what a name says."""
    if differences:
        console.print(f"Differences{f' of {name}' if name else ''} (A -> B):")
        for line in differences:
            console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False))


def arms_table(comparison: Comparison) -> Table:
    """A row per arm: its labels, the metric of A and of B, and B − A over the seeds that both have."""
    names = list(dict.fromkeys(axis for pair in comparison.arms for axis in pair.labels))
    rows = []
    for pair in comparison.arms:
        n = str(pair.difference.n) if pair.difference.n else "–"
        values = [_value(comparison.a, pair.a), _value(comparison.b, pair.b), _with_interval(pair.difference, "+"), n]
        rows.append([*(pair.labels.get(name, "–") for name in names), *values])
    metric = phrasing.metric(comparison.a.study) if comparison.has_same_metric else "metric"
    header = [f"{metric} of A", f"{metric} of B", "B − A, 95 %", "paired seeds"]
    return Table(
        "",
        [*names, *header] if names else ["", *header],
        rows if names else [["", *row] for row in rows],
        max(len(names), 1),
    )


def _value(analysis: Analysis, arm: ArmSummary | None) -> str:
    if arm is None or not arm.estimate.n:
        return "–"
    return exact(arm.estimate.mean) if analysis.exact else _with_interval(arm.estimate)


def _with_interval(estimate: Estimate, sign: str = "") -> str:
    """A mean with half the width of its 95 % interval, such as "4.007 ± 0.052"; the mean alone for a single seed."""
    half = phrasing.half_width(estimate)
    if math.isnan(half) or not half:
        return number(estimate.mean, sign=sign)
    mean, shown = numbers((estimate.mean, half), half)
    return f"{sign if estimate.mean > 0 else ''}{mean} ± {shown}"


def claim_line(side: str, claim: JudgedClaim | None) -> Text:
    """A claim's verdict and finding in one study."""
    if claim is None:
        return Text(f"{side}  not declared", style="dim")
    return Text.assemble(f"{side}  ", marked_verdict(claim), f": {phrasing.finding(claim)}")
