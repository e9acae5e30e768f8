"""Numbers per head and per depth among the metrics of a study, as `flaxformer.interpret.name_scalars` calls them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from flaxformer.analysis.analysis import Analysis
from flaxformer.report.numbers import number
from flaxformer.report.phrasing import half_width
from flaxformer.report.run_numbers import numbers_by_arm
from flaxformer.statistics.judgement import Estimate, estimate
from flaxformer.study.claim import arm_name

HEAD = re.compile(r"(?P<quantity>(?!initial_)[^/]+)/(?P<layer>(?:encoder/)?blocks/\d+/\w+)/\w+/(?P<head>\d+)")
"""Name of a number of one head, such as "head_importance/blocks/1/attention/heads/0"."""
LENS = re.compile(r"logit_lens/loss/\d+")


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
    seeds = next((numbers for _, numbers in numbers_by_arm(analysis, HEAD, analysis.arms[:1])), [])
    found: dict[str, dict[str, list[list[float]]]] = {}
    for numbers in seeds:
        own: dict[str, dict[str, list[float]]] = {}
        for name, value in numbers.items():
            match = HEAD.fullmatch(name)
            assert match is not None
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
    for arm, rows in numbers_by_arm(analysis, LENS):
        names = sorted({name for row in rows for name in row}, key=lambda name: int(name.rpartition("/")[2]))
        found[arm_name(arm.labels)] = [estimate([row[one] for row in rows if one in row]) for one in names]
    return found


def _text(one: Estimate) -> str:
    if one.n < 2:
        return number(one.mean)
    return f"{number(one.mean, half_width(one))} ± {number(half_width(one), half_width(one))}"
