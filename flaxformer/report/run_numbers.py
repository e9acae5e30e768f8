"""Numbers of each run whose names match a pattern, such as those per head or per depth."""

import re
from collections.abc import Iterator, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import measured
from flaxformer.statistics.finite import finite_values


def numbers_by_arm(
    analysis: Analysis, pattern: re.Pattern[str], arms: Sequence[ArmSummary] | None = None
) -> Iterator[tuple[ArmSummary, list[dict[str, float]]]]:
    """Yield each arm, of all or of some, with the numbers of each of its finished runs that has any, all finite.

    Args:
      pattern: of whole names. Numbers are metrics at the end of training, and those measured from kept weights.
    """
    results, after = analysis.results, measured.by_trial(analysis)
    metrics = [name for name in results.metrics if pattern.fullmatch(name)]
    if not metrics and not any(pattern.fullmatch(name) for values in after.values() for name in values):
        return
    for arm in analysis.arms if arms is None else arms:
        ended = [place for place, status in zip(arm.places, arm.statuses, strict=True) if status == "done"]
        runs = []
        for place, *values in zip(ended, *(results.numbers(name)[ended] for name in metrics), strict=True):
            numbers = {name: value for name, value in zip(metrics, values, strict=True) if value is not None}
            numbers |= {name: v for name, v in after.get(results.trials[place], {}).items() if pattern.fullmatch(name)}
            runs.append(numbers)
        complete = [numbers for numbers in runs if numbers and len(finite_values(numbers.values())) == len(numbers)]
        if complete:
            yield arm, complete
