"""Summary of the measurements of all rounds: medians, spreads, and ratios taken round by round."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from flaxformer.bench.declare import Benchmark, WorkPoint


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One way at one point in one round: its numbers, or why there are none."""

    round: int
    point: WorkPoint
    way: str
    numbers: Mapping[str, Any] | None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Interval:
    """The median of some rounds, the least and the largest of them."""

    median: float
    low: float
    high: float
    rounds: int


def interval(values: Sequence[float]) -> Interval | None:
    """Median and range of at least one value; None of none."""
    return Interval(statistics.median(values), min(values), max(values), len(values)) if values else None


def by_round(measurements: Sequence[Measurement], point: WorkPoint, way: str, number: str) -> dict[int, float]:
    """One number of one way at one point, by the round in which it was measured."""
    return {
        one.round: float(one.numbers[number])
        for one in measurements
        if one.point == point and one.way == way and one.numbers and isinstance(one.numbers.get(number), int | float)
    }


def quotients(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    """a / b of every round that has both: what drifts from round to round drifts for both, and falls out."""
    return [over[number] / under[number] for number in sorted(over) if under.get(number)]


@dataclasses.dataclass(frozen=True)
class ResultLine:
    """One way at one point: what was compared, its ratio to the reference, its share of the limit, other medians."""

    point: WorkPoint
    way: str
    compared: Interval | None
    ratio: Interval | None
    share: Interval | None
    others: dict[str, float]
    errors: int


def lines(benchmark: Benchmark, measurements: Sequence[Measurement]) -> list[ResultLine]:
    """A line for every way at every point where it was measured, in the order of the file."""
    found = []
    for point in benchmark.points():
        for way in benchmark.ways:
            own = [one for one in measurements if one.point == point and one.way == way.name]
            if own:
                found.append(_line(benchmark, measurements, point, way.name, sum(one.numbers is None for one in own)))
    return found


def _line(
    benchmark: Benchmark, measurements: Sequence[Measurement], point: WorkPoint, way: str, errors: int
) -> ResultLine:
    def of(name: str, number: str) -> dict[int, float]:
        return by_round(measurements, point, name, number)

    share = None
    if benchmark.limit and way != benchmark.limit.way:
        number = benchmark.limit.number
        share = interval(quotients(of(way, number), of(benchmark.limit.way, number)))
    names = {number for one in measurements if one.way == way and one.numbers for number in one.numbers}
    medians = {number: interval(list(of(way, number).values())) for number in sorted(names)}
    return ResultLine(
        point,
        way,
        medians.get(benchmark.compared),
        faster(benchmark, measurements, point, way, benchmark.reference),
        share,
        {number: one.median for number, one in medians.items() if one},
        errors,
    )


def faster(
    benchmark: Benchmark, measurements: Sequence[Measurement], point: WorkPoint, way: str, than: str
) -> Interval | None:
    """Return how many times as fast as another a way is, round by round."""
    own, other = (by_round(measurements, point, name, benchmark.compared) for name in (way, than))
    return interval(quotients(other, own) if benchmark.lower_is_better else quotients(own, other))


def conclusions(benchmark: Benchmark, measurements: Sequence[Measurement]) -> list[str]:
    """At every point our fastest way against the fastest peer, by their medians; and what the file itself concludes."""
    found, lines_of = lines(benchmark, measurements), []
    role = {way.name: way.role for way in benchmark.ways}
    fastest = min if benchmark.lower_is_better else max
    for point in benchmark.points():
        best = {
            side: fastest(own, key=lambda line: line.compared.median).way  # type: ignore[union-attr]
            for side in ("ours", "peer")
            if (own := [one for one in found if one.point == point and role[one.way] == side and one.compared])
        }
        if len(best) == 2 and (ratio := faster(benchmark, measurements, point, best["ours"], best["peer"])):
            where = place(benchmark, point)
            lines_of.append(
                f"{where + ': ' if where else ''}{best['ours']} is {ratio.median:.2f} × as fast as {best['peer']}, the "
                f"fastest of the others ({ratio.low:.2f} to {ratio.high:.2f})"
            )
    return [*lines_of, *benchmark.conclude([(line.point, line.way, line.others) for line in found])]


def place(benchmark: Benchmark, point: WorkPoint) -> str:
    """Return the name that distinguishes a point from the others."""
    return ", ".join(f"{name} {point[name]}" for name in benchmark.varied)
