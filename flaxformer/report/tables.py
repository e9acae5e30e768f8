"""Tables of a report, and their forms in Markdown and in LaTeX with booktabs rules."""

import itertools
import math
import statistics
from collections.abc import Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.claim_history import changes
from flaxformer.analysis.sweep import Sweep
from flaxformer.analysis.variance import seed_variances
from flaxformer.report import (
    cost_tables,
    costs,
    evaluation_tables,
    events,
    phrasing,
    qualifications,
    scaling_text,
    tex,
    verdicts,
)
from flaxformer.report.numbers import exact, number, numbers, p_value, round_digits
from flaxformer.report.table import MOST_ROWS, Table
from flaxformer.report.texts import one_line, passive
from flaxformer.statistics.judgement import Estimate, estimate
from flaxformer.store.log_entries import DeclarationEntry, Entry, Interim
from flaxformer.system.wording import count_of, join_words

LONG = 34
"""Number of characters from which a column of text is wrapped in LaTeX."""


def markdown(table: Table) -> str:
    """A table in GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(passive(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|".join(" --- " if table.is_text(i) else " ---: " for i in range(len(table.header)))
    text = "\n".join([line(table.header), f"|{rule}|", *map(line, table.rows)]) + "\n"
    return text + (f"\n{table.remark}\n" if table.remark else "")


def latex(table: Table) -> str:
    """A `tabular` that needs the package booktabs; long columns of text are wrapped."""
    columns = [max(len(row[i]) for row in (table.header, *table.rows)) for i in range(len(table.header))]
    wrapped = [i for i, width in enumerate(columns) if table.is_text(i) and width > LONG]
    room = 0.9 - 0.012 * sum(width for i, width in enumerate(columns) if i not in wrapped)
    total = sum(min(columns[i], 80) for i in wrapped)
    form = ""
    for i, width in enumerate(columns):
        share = max(room, 0.3) * min(width, 80) / total if i in wrapped else 0
        form += f"p{{{share:.2f}\\linewidth}}" if i in wrapped else "l" if table.is_text(i) else "r"

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(tex.text, map(one_line, cells))) + r" \\"

    top = [r"\begin{tabular}{" + form + "}", r"\toprule", line(table.header), r"\midrule"]
    remark = [f"% {table.remark}"] if table.remark else []
    return "\n".join([*remark, *top, *map(line, table.rows), r"\bottomrule", r"\end{tabular}"]) + "\n"


def tables_of(analysis: Analysis) -> list[Table]:
    """Every table that has rows, the answer's first."""
    found = [
        claims(analysis),
        simple_effects(analysis),
        without_diverged(analysis),
        variances(analysis),
        *sweeps(analysis),
        *scaling(analysis),
    ]
    found += [explorations(analysis), arms(analysis), evaluation_tables.evaluations(analysis)]
    found += [cost_tables.arm_costs(analysis), cost_tables.effective_speed_ups(analysis), quantities(analysis)]
    found.append(declarations(analysis))
    return [table for table in found if table.rows]


def arms(analysis: Analysis, is_brief: bool = False) -> Table:
    """The metric of every arm, with the digits of the typical interval; in brief, without scores of stopped arms."""
    half, sd = _typical_uncertainty([arm.estimate for arm in analysis.arms])
    metric, has_costs = phrasing.metric(analysis.study), not is_brief and cost_tables.has_costs(analysis)
    rows, reference = [], costs.reference(analysis)
    for arm, cost in zip(analysis.arms[:MOST_ROWS], analysis.costs, strict=False):
        row = [*arm.labels.values(), *_estimate(arm.estimate, half, sd), str(arm.estimate.n), str(arm.diverged)]
        if len(analysis.stopped):
            row += [str(arm.stopped_at or "–"), _estimate(arm.stopped_estimate(analysis.study.metric), half, sd)[0]]
        row = row[:-1] if is_brief and len(analysis.stopped) else row
        rows.append(row + (cost_tables.brief(cost, reference) if has_costs else []))
    axes = [axis.name for axis in analysis.study.axes]
    header = [*axes, metric, "95 % interval", "sd", "seeds", "diverged"]
    stopped = ["stopped at step", *([] if is_brief else [f"{metric} there"])] if len(analysis.stopped) else []
    costs_header = list(cost_tables.BRIEF) if has_costs else []
    omitted = len(analysis.arms) - len(rows)
    return Table("Arms", header + stopped + costs_header, rows, len(axes), omitted, "arms")


def _typical_uncertainty(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Medians of the half-widths and of the standard deviations; NaN where the means differ by orders of magnitude."""
    varying = [one for one in estimates if one.sd > 0]
    sizes = [abs(one.mean) for one in estimates if one.n and one.mean]
    if not varying or max(sizes) >= 1e3 * min(sizes):
        return math.nan, math.nan
    return statistics.median(map(phrasing.half_width, varying)), statistics.median(one.sd for one in varying)


def _estimate(one: Estimate, half: float = math.nan, sd: float = math.nan) -> list[str]:
    """Mean, interval and standard deviation, to the digits of these uncertainties, by default the estimate's own."""
    own = (phrasing.half_width(one), one.sd) if math.isnan(half) else (half, sd)
    mean, low, high = numbers((one.mean, one.low, one.high), own[0])
    return [mean, "–" if low == "–" else f"{low} to {high}", number(one.sd, own[1])]


def sweeps(analysis: Analysis) -> list[Table]:
    """A table for each sweep over a number: the best value in each combination of the other axes."""
    return [_sweep(analysis, sweep) for sweep in analysis.sweeps]


def _sweep(analysis: Analysis, sweep: Sweep) -> Table:
    has_optimum = any(line.optimum for line in sweep.lines)
    stops = any(one.arm.stopped_at for line in sweep.lines for one in line.points)
    half, sd = _typical_uncertainty([line.best.arm.estimate for line in sweep.lines if line.best is not None])
    rows = []
    for line in sweep.lines[:MOST_ROWS]:
        best = [round_digits(line.best.numbers[name]) if line.best else "–" for name in sweep.names]
        row = [*line.labels.values(), *best, *([phrasing.optimum(line)] if has_optimum else [])]
        row += _estimate(line.best.arm.estimate if line.best else estimate([]), half, sd)[:2]
        row += [str(line.best.arm.estimate.n if line.best else 0), str(len(line.points))]
        rows.append(row + ([str(sum(one.arm.stopped_at is not None for one in line.points))] if stops else []))
    others = list(sweep.lines[0].labels)
    header = [*others, *(f"best {name}" for name in sweep.names), *(["optimum [95 %]"] if has_optimum else [])]
    header += [phrasing.metric(analysis.study), "95 % interval", "seeds", "values tried"]
    title, header = f"Best {' and '.join(sweep.names)}", header + (["stopped early"] if stops else [])
    return Table(title, header, rows, len(others), len(sweep.lines) - len(rows), "sweeps")


def scaling(analysis: Analysis) -> list[Table]:
    """Tables of the scaling laws, of held-out sizes, and of predicted effects; none for other studies."""
    return [Table(*own) for own in scaling_text.cells(analysis)]


def quantities(analysis: Analysis) -> Table:
    """Every quantity that was measured or derived; exact ones without uncertainty."""

    def row(one: ArmSummary) -> list[str]:
        mean = one.estimate
        if analysis.exact:
            return [phrasing.arm(one.labels), exact(mean.mean)]
        return [phrasing.arm(one.labels), *_estimate(mean), str(mean.n)]

    unit = f" ({analysis.study.unit})" if analysis.study.unit and not analysis.arms else ""
    header = [f"value{unit}"] if analysis.exact else [f"mean{unit}", "95 % interval", "sd", "seeds"]
    return Table("Quantities", ["quantity", *header], [row(one) for one in analysis.quantities], 1)


def claims(analysis: Analysis, is_brief: bool = False) -> Table:
    """Every claim with its test, the withdrawn ones last; in brief, as much as fits a page of a paper."""
    rows = []
    for claim in [*analysis.claims, *analysis.withdrawn]:
        judged = claim.judgement
        detectable = number(judged.detectable, phrasing.half_width(judged.effect)) if judged.effect.sd else "–"
        p = p_value(judged.p_holm) if judged.effect.sd else "–"
        seeds = f"{judged.holding} of {judged.effect.n}"
        row = [claim.text, verdicts.verdict_of(claim), phrasing.effect(claim), phrasing.claim_text(claim)]
        row += [] if is_brief else [verdicts.when_declared(claim)]
        rows.append([*row, seeds, p] if is_brief else [*row, seeds, detectable, p])
    header = ["claim", "verdict", "measured [95 %]", "claimed"]
    if is_brief:
        return Table("Claims", [*header, "holds at seeds", "p (Holm)"], rows, 4)
    header = [*header, "declared", "holds at seeds", "detectable", "p (Holm)"]
    faster = [costs.claim_speed_up(analysis, claim) for claim in [*analysis.claims, *analysis.withdrawn]]
    if any(faster):
        header.append("speed-up in compute")
        rows = [[*row, costs.speed_up_in_compute(one)] for row, one in zip(rows, faster, strict=True)]
    return Table("Claims", header, rows, 5)


def declarations(analysis: Analysis) -> Table:
    """Every entry of the log of declarations: time, what it changes, and the results that existed."""
    rows: list[list[str]] = []
    before: DeclarationEntry | None = None
    for _, group in itertools.groupby(analysis.log.entries, type):
        entries = list(group)
        if interim := [entry for entry in entries if isinstance(entry, Interim)]:
            readers = join_words(dict.fromkeys(entry.reader for entry in interim))
            seen = [entry.finished for entry in interim]
            results = str(seen[0]) if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
            rows.append([_minute(interim[0]), f"{count_of(len(seen), 'interim analysis')} ({readers})", results])
        for entry in entries:
            if isinstance(entry, DeclarationEntry):
                results = str(sum(map(len, entry.results.values())))
                rows.append([_minute(entry), "; ".join(changes(before, entry)), results])
                before = entry
            elif not isinstance(entry, Interim):
                rows.append([_minute(entry), events.sentence(entry), "–"])
    return Table("Declarations", ["time (UTC)", "declared", "existing results"], rows, 2)


def _minute(entry: Entry) -> str:
    return entry.time[:16].replace("T", " ")


def simple_effects(analysis: Analysis) -> Table:
    """The two effects that each interaction compares; they are declared with the claim, and are no verdicts."""
    rows = []
    for claim in analysis.claims:
        for one in claim.context.simple_effects:
            judged = one.judgement
            measured = " ".join(filter(None, (phrasing.interval(judged.effect, "+"), claim.unit)))
            row = [claim.text, qualifications.contrast(one), phrasing.labels(one.context), measured]
            rows.append([*row, f"{judged.agreeing} of {judged.effect.n}", p_value(judged.p)])
    header = [
        "interaction",
        "effect",
        "with",
        "measured, positive as claimed [95 %]",
        "same sign at seeds",
        "p (alone)",
    ]
    return Table("Simple effects of the interactions", header, rows, 4)


def without_diverged(analysis: Analysis) -> Table:
    """The claims with diverged runs, with these and without."""
    rows = []
    for claim in analysis.claims:
        if (again := claim.context.without_diverged) is not None:
            effects = [phrasing.effect(claim), phrasing.effect(claim, again.effect) if again.effect.n else "–"]
            words = [claim.judgement.verdict, again.verdict]
            rows.append([claim.text, *effects, *words, f"{claim.context.diverged} of {claim.judgement.effect.n}"])
    header = ["claim", "with diverged runs", "without", "verdict with", "verdict without", "diverged seeds"]
    return Table("Claims without diverged runs", header, rows, 5)


def variances(analysis: Analysis) -> Table:
    """The standard deviation of the metric over the seeds of each source of randomness; empty for other studies."""
    rows = []
    for one in seed_variances(analysis.study, analysis.arms):
        sd, low, high = numbers((one.sd, one.low, one.high), (one.high - one.low) / 2)
        interval = "–" if low == "–" else f"{low} to {high}"
        share = "–" if math.isnan(one.share) else f"{one.share:.0%}"
        rows.append(
            [phrasing.labels(one.labels) or "baseline", ", ".join(one.sources), sd, interval, share, str(one.n)]
        )
    header = ["arm", "varies with the seed", f"sd of {phrasing.metric(analysis.study)}", "95 % interval"]
    return Table("Variance by source of randomness", [*header, "share of the variance", "seeds"], rows, 2)


def explorations(analysis: Analysis) -> Table:
    """Every contrast of one axis that no claim is about, the findings first."""
    rows = []
    for one in analysis.ordered_explorations[:MOST_ROWS]:
        contrast = [one.axis, f"{one.label} − {one.reference}", phrasing.labels(one.context) or "–"]
        difference = phrasing.interval(one.judgement.effect, "+")
        rows.append([*contrast, difference, one.finding, p_value(one.judgement.p), p_value(one.judgement.p_holm)])
    header = ["axis", "contrast", "with", "difference [95 %]", "finding", "p", "p (Holm)"]
    return Table("Exploratory contrasts", header, rows, 5, len(analysis.explorations) - len(rows), "contrasts")


def document(analysis: Analysis) -> str:
    """Question, answer, limits and tables as a Markdown document."""
    parts = [f"# {passive(analysis.study.question)}\n", f"{passive(verdicts.verdict(analysis))}\n"]
    if lines := [*phrasing.first_sweep_findings(analysis), *scaling_text.findings(analysis)]:
        parts.append("".join(f"- {passive(line)}\n" for line in lines))
    parts += [f"## {passive(table.title)}\n\n{markdown(table)}" for table in tables_of(analysis)]
    parts += [f"{passive(text)}\n" for text in (costs.summary(analysis), analysis.coverage) if text]
    lists = {
        "Qualifications": qualifications.by_claim(analysis.claims),
        "Limits": analysis.limits,
        "Failed runs": phrasing.failures(analysis),
    }
    for title, lines in lists.items():
        if lines:
            parts.append(f"## {title}\n\n" + "".join(f"- {passive(line)}\n" for line in lines))
    return "\n".join(parts)


def paper(analysis: Analysis) -> str:
    """The tables of claims, sweeps, and arms or quantities in LaTeX, to copy from or to input."""
    found = [
        claims(analysis, is_brief=True),
        *sweeps(analysis),
        *scaling(analysis),
        arms(analysis),
        quantities(analysis),
    ]
    parts = [
        f"% {tex.text(table.title)}: needs \\usepackage{{booktabs}}\n{latex(table)}" for table in found if table.rows
    ]
    return "\n".join(parts)
