"""Tables of a report: what each is about, and its columns, which every form of the report takes from here."""

import dataclasses
import itertools
import math
from collections.abc import Callable

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.claim_history import changes
from flaxformer.analysis.explore import Exploration
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.noise import SeedVariance, seed_variances
from flaxformer.analysis.sweep import SweepLine
from flaxformer.report import numbers, phrasing, provenance_text, verdicts
from flaxformer.report.costs import brief_costs
from flaxformer.report.estimates import estimate_columns, estimate_values, interval_text
from flaxformer.report.numbers import p_value, round_digits
from flaxformer.report.table import (
    DOCUMENTS,
    EVERYWHERE,
    NOT_IN_PAPER,
    PRINTED,
    ItemTable,
    Table,
    TableColumn,
    levels,
    number,
    words,
)
from flaxformer.statistics.estimates import Estimate, estimate
from flaxformer.store.log_entries import DeclarationEntry, Entry, Interim
from flaxformer.system.wording import count_of, join_words


def claims(analysis: Analysis) -> ItemTable[JudgedClaim]:
    """Every claim with its test, the withdrawn ones last."""
    items = [*analysis.claims, *analysis.withdrawn]

    def if_tested(text: Callable[[JudgedClaim], str]) -> Callable[[JudgedClaim], str]:
        return lambda claim: text(claim) if claim.judgement.effect.sd else "–"

    columns: list[TableColumn[JudgedClaim]] = [
        words("claim", lambda claim: claim.text),
        words("verdict", verdicts.verdict_of),
        words("measured [95 %]", phrasing.effect),
        words("claimed", phrasing.claim_text),
        words("declared", verdicts.when_declared, on=DOCUMENTS),
        TableColumn("holds at seeds", lambda claim: f"{claim.judgement.holding} of {claim.judgement.effect.n}"),
        TableColumn("detectable", if_tested(_detectable), on=DOCUMENTS),
        TableColumn("p (Holm)", if_tested(lambda claim: p_value(claim.judgement.p_holm))),
    ]
    return ItemTable("Claims", columns, items, on=PRINTED)


def _detectable(claim: JudgedClaim) -> str:
    return numbers.number(claim.judgement.detectable, phrasing.half_width(claim.judgement.effect))


def simple_effects(analysis: Analysis) -> Table:
    """The two effects that each interaction compares; they are declared with the claim, and are not verdicts."""
    rows = []
    for claim in analysis.claims:
        for effect in claim.context.simple_effects:
            judged = effect.judgement
            measured = " ".join(filter(None, (phrasing.interval(judged.effect, "+"), claim.unit)))
            row = [claim.text, verdicts.contrast(effect), phrasing.labels(effect.context), measured]
            rows.append([*row, f"{judged.agreeing} of {judged.effect.n}", p_value(judged.p)])
    header = ["interaction", "effect", "with", "measured, positive as claimed [95 %]"]
    return Table("Simple effects of the interactions", [*header, "same sign at seeds", "p (alone)"], rows, 4)


def without_diverged(analysis: Analysis) -> Table:
    """The claims with diverged runs, with these and without."""
    rows = []
    for claim in analysis.claims:
        if (again := claim.context.without_diverged) is not None:
            effects = [phrasing.effect(claim), phrasing.effect(claim, again.effect) if again.effect.n else "–"]
            both = [claim.judgement.verdict, again.verdict]
            rows.append([claim.text, *effects, *both, f"{claim.context.diverged} of {claim.judgement.effect.n}"])
    header = ["claim", "with diverged runs", "without", "verdict with", "verdict without", "diverged seeds"]
    return Table("Claims without diverged runs", header, rows, 5)


def variances(analysis: Analysis) -> ItemTable[SeedVariance]:
    """The standard deviation of the metric over the seeds of each source of randomness; empty for other studies."""

    def sd(item: SeedVariance) -> list[str]:
        return numbers.numbers((item.sd, item.low, item.high), (item.high - item.low) / 2)

    columns: list[TableColumn[SeedVariance]] = [
        words("arm", lambda item: phrasing.labels(item.labels) or "baseline"),
        words("varies with the seed", lambda item: ", ".join(item.sources)),
        TableColumn(f"sd of {phrasing.metric(analysis.study)}", lambda item: sd(item)[0]),
        TableColumn("95 % interval", lambda item: interval_text(*sd(item)[1:])),
        TableColumn("share of the variance", lambda item: "–" if math.isnan(item.share) else f"{item.share:.0%}"),
        number("seeds", lambda item: item.n),
    ]
    items = seed_variances(analysis.study, analysis.arms)
    return ItemTable("Variance by source of randomness", columns, items, on=NOT_IN_PAPER)


def sweep(analysis: Analysis, index: int) -> ItemTable[SweepLine]:
    """The best value of a sweep over a number in each combination of the other axes."""
    swept = analysis.sweeps[index]

    def score(line: SweepLine) -> Estimate:
        return line.best.arm.estimate if line.best else estimate([])

    def best(name: str) -> TableColumn[SweepLine]:
        def value(line: SweepLine) -> float | None:
            return line.best.numbers[name] if line.best else None

        return number(f"best {name}", value, lambda best: "–" if best is None else round_digits(best), f"best_{name}")

    def stopped_arms(line: SweepLine) -> int:
        return sum(point.arm.stopped_at is not None for point in line.points)

    scores = [line.best.arm.estimate for line in swept.lines if line.best is not None]
    columns: list[TableColumn[SweepLine]] = [
        TableColumn("sweep", lambda line: "", {"sweep": lambda line: " and ".join(swept.names)}, on=()),
        *levels(swept.lines[0].labels, lambda line: line.labels),
        *map(best, swept.names),
        TableColumn(
            "optimum [95 %]",
            phrasing.optimum,
            {
                "optimum": lambda line: line.optimum and line.optimum.value,
                "optimum_low": lambda line: line.optimum and line.optimum.low,
                "optimum_high": lambda line: line.optimum and line.optimum.high,
            },
            when=any(line.optimum for line in swept.lines),
        ),
        *estimate_columns(phrasing.metric(analysis.study), analysis.study.metric, score, scores, has_sd=False),
        number("seeds", lambda line: score(line).n),
        number("values tried", lambda line: len(line.points), file="values_tried"),
        number("stopped early", stopped_arms, file="stopped_early", when=any(map(stopped_arms, swept.lines))),
    ]
    return ItemTable(f"Best {' and '.join(swept.names)}", columns, swept.lines, file="sweeps", on=PRINTED)


def contrasts(analysis: Analysis) -> ItemTable[Exploration]:
    """Every contrast of one axis that no claim is about, the findings first."""

    def context(item: Exploration) -> str:
        return phrasing.labels(item.context) or "–"

    columns: list[TableColumn[Exploration]] = [
        words("axis", lambda item: item.axis),
        TableColumn(
            "contrast",
            lambda item: f"{item.label} − {item.reference}",
            {"label": lambda item: item.label, "reference": lambda item: item.reference},
            is_text=True,
        ),
        TableColumn("with", context, {"with": lambda item: phrasing.labels(item.context)}, is_text=True),
        TableColumn(
            "difference [95 %]",
            lambda item: phrasing.interval(item.judgement.effect, "+"),
            estimate_values("difference", lambda item: item.judgement.effect),
            is_text=True,
        ),
        words("finding", lambda item: item.finding),
        number("p", lambda item: item.judgement.p, p_value),
        number("p (Holm)", lambda item: item.judgement.p_holm, p_value, "p_holm"),
        number("false discovery rate", lambda item: item.p_discovery, p_value, "p_discovery", on=()),
        number("seeds", lambda item: item.judgement.effect.n, on=()),
    ]
    return ItemTable("Exploratory contrasts", columns, analysis.ordered_explorations, file="contrasts")


def arms(analysis: Analysis) -> ItemTable[ArmSummary]:
    """The metric of every arm, with the digits of the typical interval, and its cost in short."""
    metric, name, stops = phrasing.metric(analysis.study), analysis.study.metric, len(analysis.stopped_runs) > 0
    scores = [arm.estimate for arm in analysis.arms]
    at_stop: TableColumn[ArmSummary] = estimate_columns(
        f"{metric} there", f"stopped_{name}", lambda arm: arm.stopped_estimate(name), scores
    )[0]
    columns: list[TableColumn[ArmSummary]] = [
        *levels(analysis.axes, lambda arm: arm.labels),
        *estimate_columns(metric, name, lambda arm: arm.estimate, scores),
        number("seeds", lambda arm: arm.estimate.n),
        number("diverged", lambda arm: arm.diverged),
        number("stopped at step", lambda arm: arm.stopped_at, lambda step: str(step or "–"), "stopped_at", when=stops),
        dataclasses.replace(at_stop, on=PRINTED, when=stops),
        *brief_costs(analysis),
    ]
    return ItemTable("Arms", columns, analysis.arms, "arms", EVERYWHERE)


def evaluations(analysis: Analysis) -> ItemTable[ArmSummary]:
    """The mean of every score of the named evaluations, and of the task's, with its interval over the seeds.

    A run that diverged counts as everywhere, with its score before training. Scores of runs that a halving stopped are
    left out.
    """

    def score(name: str) -> TableColumn[ArmSummary]:
        def of(arm: ArmSummary) -> Estimate:
            scores = [] if arm.results is None else [arm.results.scores(name)[place] for place in arm.places]
            return estimate([score for score in scores if score is not None])

        return TableColumn(name.replace("_", " "), lambda arm: phrasing.interval(of(arm)), estimate_values(name, of))

    names = analysis.study.evaluation_columns
    columns = [*levels(analysis.axes, lambda arm: arm.labels), *map(score, names)]
    return ItemTable("Evaluation sets", columns, analysis.arms if names else [], file="arms")


def quantities(analysis: Analysis) -> ItemTable[ArmSummary]:
    """Every quantity that was measured or derived; exact ones without uncertainty."""
    unit = f" ({analysis.study.unit})" if analysis.study.unit and not analysis.arms else ""
    exact: list[TableColumn[ArmSummary]] = [TableColumn(f"value{unit}", lambda item: numbers.exact(item.estimate.mean))]
    columns: list[TableColumn[ArmSummary]] = [
        words("quantity", lambda item: phrasing.arm(item.labels)),
        *(exact if analysis.exact else estimate_columns(f"mean{unit}", "mean", lambda item: item.estimate)),
        number("seeds", lambda item: item.estimate.n, when=not analysis.exact),
    ]
    return ItemTable("Quantities", columns, analysis.quantities, on=EVERYWHERE)


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
                rows.append([_minute(entry), provenance_text.event_sentence(entry), "–"])
    return Table("Declarations", ["time (UTC)", "declared", "existing results"], rows, 2)


def _minute(entry: Entry) -> str:
    return entry.time[:16].replace("T", " ")
