"""The costs of a profiled step by part of the model, as a table and in words."""

from collections.abc import Iterator

from flaxformer.report.table import Table
from flaxformer.runner.events import Profiled
from flaxformer.system.wording import join_words
from flaxformer.targets.part_costs import PartCost

SHOWN = 10
"""Parts that are listed; the others are added up."""


def profile_table(profile: Profiled) -> Table:
    """Return the parts with most time, and the sum of all: time, share, FLOPs, traffic and roofline of one step."""
    total = profile.total.seconds or 1.0
    rows = [_row(cost, total) for cost in (*profile.costs[:SHOWN], profile.total)]
    if remaining := profile.costs[SHOWN:]:
        rows.insert(-1, ["others", "", f"{sum(cost.seconds for cost in remaining) * 1e3:.3g}", *[""] * 4])
    return Table("", ["part", "direction", "ms", "share", "GFLOP", "MB", "roofline ms"], rows, 2)


def _row(cost: PartCost, total: float) -> list[str]:
    numbers = [cost.seconds * 1e3, cost.flops / 1e9, cost.bytes / 1e6]
    milliseconds, flops, size = (f"{number:,.0f}" if number >= 1000 else f"{number:.3g}" for number in numbers)
    bound = "" if cost.bound is None else f"{cost.bound.seconds * 1e3:.3g} ({cost.bound.limit.partition(' ')[0]})"
    return [cost.part, cost.direction, milliseconds, f"{cost.seconds / total:.0%}", flops, size, bound]


def profile_lines(profile: Profiled) -> Iterator[str]:
    """Yield what stands around the table: the step and its bound before it, the files after it."""
    step, kernels = (f"{seconds * 1e3:.3g} ms" for seconds in (profile.seconds, profile.total.seconds))
    yield f"profile of steps {profile.first:,} to {profile.last:,}: a step takes {step}, its kernels {kernels}"
    if (bound := profile.total.bound) is None:
        yield f"no roofline: there are no published figures of {profile.device}"
    else:
        times = join_words(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in bound._asdict().items() if seconds)
        yield f"roofline: at least {bound.seconds * 1e3:.3g} ms, limited by {bound.limit} ({times})"
