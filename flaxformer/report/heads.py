"""Numbers per head and per depth among the metrics of a study, as `flaxformer.interpret.name_scalars` calls them."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import measured
from flaxformer.report.numbers import number
from flaxformer.report.phrasing import half_width
from flaxformer.statistics.estimates import Estimate, estimate
from flaxformer.statistics.finite import finite_values
from flaxformer.study.claim import arm_name

HEAD = re.compile(r"(?P<quantity>(?!initial_)[^/]+)/(?P<layer>(?:encoder/)?blocks/\d+/\w+)/\w+/(?P<head>\d+)")
"""Name of a number of one head, such as "head_importance/blocks/1/attention/heads/0"."""
LENS = re.compile(r"logit_lens/loss/\d+")


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


@dataclasses.dataclass(frozen=True)
class HeadGrid:
    """One quantity of all heads of an arm.

    quantity: its name, such as "head_importance".
    layers: estimates over the seeds by layer. With several seeds, the heads of each layer are ranked in each seed, from
      the largest number to the smallest, since the order of heads has no meaning from seed to seed.
    is_ranked: True if they are.
    """

    quantity: str
    layers: Mapping[str, Sequence[Estimate]]
    is_ranked: bool

    def texts(self) -> list[list[str]]:
        """Return each mean with half the width of its interval, such as "0.42 ± 0.03", per layer and head."""
        return [[_text(estimate) for estimate in estimates] for estimates in self.layers.values()]


def head_grids(analysis: Analysis) -> list[HeadGrid]:
    """Return the grids of the first arm, one per quantity that its runs give for every head."""
    seeds = next((numbers for _, numbers in numbers_by_arm(analysis, HEAD, analysis.arms[:1])), [])
    by_quantity: dict[str, dict[str, list[list[float]]]] = {}
    for numbers in seeds:
        seed_values: dict[str, dict[str, list[float]]] = {}
        for name, value in numbers.items():
            match = HEAD.fullmatch(name)
            assert match is not None
            seed_values.setdefault(match["quantity"], {}).setdefault(match["layer"], []).append(value)
        for quantity, layers in seed_values.items():
            for layer, values in layers.items():
                ranked = sorted(values, reverse=True) if len(seeds) > 1 else values
                by_quantity.setdefault(quantity, {}).setdefault(layer, []).append(ranked)
    return [HeadGrid(quantity, _estimates(layers), len(seeds) > 1) for quantity, layers in by_quantity.items()]


def _estimates(layers: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[Estimate]]:
    """Return the estimate of each head, by layer, from a row of numbers per seed."""
    return {layer: [estimate(values) for values in zip(*rows, strict=True)] for layer, rows in layers.items()}


def lens_curves(analysis: Analysis) -> dict[str, list[Estimate]]:
    """Return the loss of the logit lens by depth, for every arm that has it, by the arm's name."""
    curves = {}
    for arm, runs in numbers_by_arm(analysis, LENS):
        names = sorted({name for row in runs for name in row}, key=lambda name: int(name.rpartition("/")[2]))
        curves[arm_name(arm.labels)] = [estimate([row[name] for row in runs if name in row]) for name in names]
    return curves


def _text(estimate: Estimate) -> str:
    if estimate.n < 2:
        return number(estimate.mean)
    return f"{number(estimate.mean, half_width(estimate))} ± {number(half_width(estimate), half_width(estimate))}"
