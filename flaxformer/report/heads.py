"""Numbers per head and per depth among the metrics of a study, as `flaxformer.interpret.named` calls them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from flaxformer.report import measured
from flaxformer.report.numbers import number
from flaxformer.report.phrasing import half_width
from flaxformer.study.analysis import Analysis
from flaxformer.study.arms import ArmSummary
from flaxformer.study.judging import key_of
from flaxformer.study.statistics import Estimate, estimate

HEAD = re.compile(r"(?P<quantity>(?!initial_)[^/]+)/(?P<layer>(?:encoder/)?blocks/\d+/\w+)/\w+/(?P<head>\d+)")
"""Name of a number of one head, such as "head_importance/blocks/1/attention/heads/0"."""
LENS = re.compile(r"logit_lens/loss/(?P<depth>\d+)")


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
        return [[_text(one) for one in own] for own in self.layers.values()]


def head_grids(analysis: Analysis) -> list[HeadGrid]:
    """Return the grids of the first arm, one per quantity that its runs give for every head."""
    if not analysis.arms:
        return []
    seeds = [numbers for numbers in numbers_by_seed(analysis, analysis.arms[0]) if numbers]
    found: dict[str, dict[str, list[list[float]]]] = {}
    for numbers in seeds:
        own: dict[str, dict[str, list[float]]] = {}
        for name, value in numbers.items():
            if match := HEAD.fullmatch(name):
                own.setdefault(match["quantity"], {}).setdefault(match["layer"], []).append(value)
        for quantity, layers in own.items():
            for layer, values in layers.items():
                ranked = sorted(values, reverse=True) if len(seeds) > 1 else values
                found.setdefault(quantity, {}).setdefault(layer, []).append(ranked)
    return [HeadGrid(quantity, _estimates(layers), len(seeds) > 1) for quantity, layers in found.items()]


def _estimates(layers: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[Estimate]]:
    """Return the estimate of each head, by layer, from a row of numbers per seed."""
    return {layer: [estimate(one) for one in zip(*rows, strict=True)] for layer, rows in layers.items()}


def lens_curves(analysis: Analysis) -> dict[str, list[Estimate]]:
    """Return the loss of the logit lens by depth, for every arm that has it, by the arm's name."""
    found = {}
    for arm in analysis.arms:
        rows = [numbers for numbers in numbers_by_seed(analysis, arm) if numbers]
        depths = sorted({int(match["depth"]) for row in rows for name in row if (match := LENS.fullmatch(name))})
        if depths:
            name = ",".join(f"{axis}={label}" for axis, label in arm.labels.items()) or "baseline"
            names = [f"logit_lens/loss/{depth}" for depth in depths]
            found[name] = [estimate([row[one] for row in rows if one in row]) for one in names]
    return found


def numbers_by_seed(analysis: Analysis, arm: ArmSummary) -> list[dict[str, float]]:
    """Return the metrics at the end of training, and the numbers measured from kept weights, of each run of an arm."""
    after = measured.by_trial(analysis)
    trials = [trial["trial"] for trial in analysis.study["trials"] if key_of(trial["labels"]) == key_of(arm.labels)]
    by_name = {row.trial: row for row in arm.rows if row is not None}
    ended = [(trial, by_name[trial]) for trial in trials if trial in by_name and by_name[trial].status == "done"]
    return [dict(row.metrics) | after.get(trial, {}) for trial, row in ended]


def _text(one: Estimate) -> str:
    if one.n < 2:
        return number(one.mean)
    return f"{number(one.mean, half_width(one))} ± {number(half_width(one), half_width(one))}"
