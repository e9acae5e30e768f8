"""Seeds that a study needs for the effects that its claims want to find, by the noise floor of its metric."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from flaxformer.analysis import noise
from flaxformer.analysis.noise import Noise
from flaxformer.core.canonical import canonical
from flaxformer.report.numbers import number
from flaxformer.statistics.paired_tests import Kind
from flaxformer.study.claim import QUANTITY, Claim
from flaxformer.study.declare import Study
from flaxformer.system.json_differences import differences
from flaxformer.system.wording import count_of, duration, first_of


class Aim(NamedTuple):
    """Size that the test of a claim has to find: of an equality, its margin."""

    size: float
    sd: float
    """Standard deviation over seeds of what is tested."""
    kind: Kind
    basis: str
    """Source of the standard deviation; empty for that of the small change."""


def aim_of(claim: Claim, floor: Noise) -> Aim | None:
    """Return what the test of a claim has to find; None if it states no size, or a number that is not the metric's.

    An effect is tested against `by`, an equality at the difference 0. The difference of two arms varies as that of the
    small change, that of two such differences √2 times as much, and an arm beside a number as one recipe does.
    """
    if claim.effect is None and claim.within is None:
        return None
    if any(isinstance(labels, dict) and QUANTITY in labels for labels in (claim.first, claim.second)):
        return None
    if not isinstance(claim.second, dict):
        sd, basis = floor.sd, "the metric"
    elif claim.more_than_where is not None:
        sd, basis = math.sqrt(2) * floor.paired_sd, "two such differences that are independent"
    else:
        sd, basis = floor.paired_sd, ""
    if claim.within is not None:
        return Aim(claim.within, sd, "equality", basis)
    return Aim(float(claim.effect or 0.0) - claim.by, sd, "difference", basis)


def seeds_needed(claim: Claim, floor: Noise, family: int) -> int | None:
    """Return the smallest number of seeds that find what a claim wants to; None if unknown, or for too many."""
    aim = aim_of(claim, floor)
    return None if aim is None else floor.seeds_for(aim.size, family, aim.sd, aim.kind)


def describe(study: Study, floor: Noise | None) -> Iterator[str]:
    """Yield the effect that the study's seeds find, by the noise floor beside it, and the seeds of its claims."""
    if floor is None:
        return
    family, unit = max(len(study.claims), 1), f" {floor.unit}" if floor.unit else ""
    yield from _other_recipe(study, floor)
    smallest = number(floor.finds(len(study.seeds), family))
    yield (
        f"{count_of(len(study.seeds), 'seed')} find {smallest}{unit} or more with a probability of {noise.POWER}, for "
        f"a difference that varies as that of {floor.change} does (sd {number(floor.paired_sd)}; 'flaxformer noise')."
    )
    for claim in study.claims:
        aim = aim_of(claim, floor) if isinstance(claim, Claim) else None
        if aim is None or not isinstance(claim, Claim):
            continue
        what = f"an equality within {claim.within:g}" if claim.within is not None else f"an effect of {claim.effect:g}"
        by = f", tested against {claim.by:g}," if claim.by else ""
        of = f", for the sd {number(aim.sd)} of {aim.basis}" if aim.basis else ""
        if (seeds := seeds_needed(claim, floor, family)) is None:
            needed = f"more than {noise.MOST_SEEDS:,} seeds"
        else:
            needed = f"{count_of(seeds, 'seed')} ({duration(seeds * len(study.arms()) * floor.seconds)} in all)"
        yield f"'{claim.text}': {what}{unit}{by} needs {needed}{of}."


def _other_recipe(study: Study, floor: Noise) -> Iterator[str]:
    """A sentence on a noise floor that was measured for another recipe than the study's baseline."""
    if floor.run is None:
        return
    lines = differences(floor.run, noise.config_of(canonical(study.baseline)))
    if lines:
        shown = first_of(lines, 3, "; ")
        yield (
            f"The noise floor is that of another recipe ({shown}); 'flaxformer noise' measures this one once the "
            f"folder {study.name}-noise is removed or renamed."
        )
