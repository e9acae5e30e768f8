"""Numbers that were measured from kept weights after training: their columns, and their table by arm."""

import re
import statistics

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import phrasing
from flaxformer.report.numbers import number
from flaxformer.report.table import NOT_IN_PAPER, Table
from flaxformer.statistics.estimates import estimate
from flaxformer.statistics.finite import WithoutValue, describe_left_out, finite, finite_values
from flaxformer.system.wording import join_words

TITLE = "Measured after training"
MAP = re.compile(
    r"attention_map/(?P<path>(?:encoder/)?blocks/\d+/\w+/weights)/(?P<head>\d+)/(?P<query>\d+)/(?P<key>\d+)"
)
"""Name of one weight of a map, such as "attention_map/blocks/1/attention/weights/0/3/2": head, query and key."""


def by_trial(analysis: Analysis) -> dict[str, dict[str, float]]:
    """The measured numbers of every trial that has some, by column."""
    numbers: dict[str, dict[str, float]] = {}
    for trials in analysis.measured.values():
        for trial, measurement in trials.items():
            numbers.setdefault(trial, {}).update(measurement.values)
    return numbers


def table(analysis: Analysis) -> Table:
    """The mean of every measured number of every arm, with its interval over the seeds; maps have a figure instead."""
    numbers, rows = by_trial(analysis), []
    for arm in analysis.arms if numbers else ():
        per_seed = [numbers.get(analysis.results.trials[place], {}) for place in arm.places]
        for name in dict.fromkeys(name for values in per_seed for name in values if not MAP.fullmatch(name)):
            rows.append([*arm.labels.values(), name, *_cells(arm, name, per_seed)])
    header = [*analysis.axes, "number", "mean [95 %]", "sd", "seeds"]
    return Table(TITLE, header, rows, len(analysis.axes) + 1, on=NOT_IN_PAPER)


def _cells(arm: ArmSummary, name: str, per_seed: list[dict[str, float]]) -> list[str]:
    values = finite_values(seed_numbers.get(name) for seed_numbers in per_seed)
    summary = estimate(values)
    sd = number(statistics.stdev(values), summary.sd) if len(values) > 1 else "–"
    return [phrasing.interval(summary), sd, str(len(values))]


def remark(analysis: Analysis) -> str:
    """Sentence on what measured the numbers; empty without any."""
    measured = {function: trials for function, trials in analysis.measured.items() if trials}
    if not measured:
        return ""
    codes = [f"{function} (code {next(iter(trials.values())).measured_by})" for function, trials in measured.items()]
    has_row = analysis.results.table["status"].is_not_null()
    present = analysis.results.table.filter(has_row)["trial"].to_list()
    missing = {function: sum(name not in trials for name in present) for function, trials in measured.items()}
    lacking = [f" {count} runs lack those of {function}." for function, count in missing.items() if count]
    gaps = [f" {sentence}" for sentence in describe_left_out(without_value(analysis))]
    return (
        f"Measured from kept weights by {join_words(codes)}. These numbers are exploratory: no claim is about "
        f"them.{''.join([*lacking, *gaps])}"
    )


def without_value(analysis: Analysis) -> list[WithoutValue]:
    """The seeds at which a measured number of an arm is not finite."""
    numbers, gaps = by_trial(analysis), []
    seeds = {trial.trial: trial.seed for trial in analysis.study.trials}
    for arm in analysis.arms if numbers else ():
        trials = [analysis.results.trials[place] for place in arm.places]
        of_arm = {trial: numbers[trial] for trial in trials if trial in numbers}
        for name in dict.fromkeys(name for values in of_arm.values() for name in values if not MAP.fullmatch(name)):
            lost = [trial for trial, values in of_arm.items() if name in values and finite(values[name]) is None]
            at, declared = tuple(seeds[trial] for trial in lost), len(analysis.study.seeds)
            gaps.append(WithoutValue(name, at, declared, phrasing.labels(arm.labels)))
    return [gap for gap in gaps if gap.seeds]
