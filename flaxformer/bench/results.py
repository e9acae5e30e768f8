"""Summary of the measurements of all rounds: medians, ranges, and ratios within each round."""

import dataclasses
import operator
import statistics
from collections.abc import Mapping, Sequence

from flaxformer.bench.declare import Benchmark, Numbers, WorkPoint


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Numbers of one way at one point in one round, or the error, or why it was not measured."""

    round: int
    point: WorkPoint
    way: str
    numbers: Numbers | None
    error: str | None = None
    skipped: str | None = None


@dataclasses.dataclass(frozen=True)
class Interval:
    """Median, minimum and maximum over rounds."""

    median: float
    low: float
    high: float
    rounds: int


def interval(values: Sequence[float]) -> Interval | None:
    """Return the median and range of values; None without any."""
    return Interval(statistics.median(values), min(values), max(values), len(values)) if values else None


def by_round(measurements: Sequence[Measurement], point: WorkPoint, way: str, number: str) -> dict[int, float]:
    """Return one number of one way at one point, by round."""
    return {
        measurement.round: float(value)
        for measurement in measurements
        if measurement.point == point and measurement.way == way and measurement.numbers
        if isinstance(value := measurement.numbers.get(number), int | float)
    }


def quotients(over: Mapping[int, float], under: Mapping[int, float]) -> list[float]:
    """Return over / under for each round that has both, so that drift between rounds cancels."""
    return [over[number] / under[number] for number in sorted(over) if under.get(number)]


@dataclasses.dataclass(frozen=True)
class ResultLine:
    """Summary of one way at one point: compared number, ratio to the reference, share of the limit, other medians."""

    point: WorkPoint
    way: str
    compared: Interval | None
    ratio: Interval | None
    share: Interval | None
    numbers: dict[str, float]
    errors: int
    skipped: str = ""
    """Reason that it was not measured; "" if it was, or failed."""


def lines(benchmark: Benchmark, measurements: Sequence[Measurement]) -> list[ResultLine]:
    """Return one line per way and point that was measured, in the order of the file."""
    result_lines = []
    for point in benchmark.points():
        for way in benchmark.ways:
            way_measurements = [
                measurement
                for measurement in measurements
                if measurement.point == point and measurement.way == way.name
            ]
            if way_measurements:
                result_lines.append(_line(benchmark, measurements, point, way.name, way_measurements))
    return result_lines


def _line(
    benchmark: Benchmark,
    measurements: Sequence[Measurement],
    point: WorkPoint,
    way: str,
    way_measurements: Sequence[Measurement],
) -> ResultLine:
    def of(name: str, number: str) -> dict[int, float]:
        return by_round(measurements, point, name, number)

    share = None
    if benchmark.limit and way != benchmark.limit.way:
        number = benchmark.limit.number
        share = interval(quotients(of(way, number), of(benchmark.limit.way, number)))
    names = {
        number
        for measurement in measurements
        if measurement.way == way and measurement.numbers
        for number in measurement.numbers
    }
    medians = {number: interval(list(of(way, number).values())) for number in sorted(names)}
    return ResultLine(
        point,
        way,
        medians.get(benchmark.compared),
        faster(benchmark, measurements, point, way, benchmark.reference),
        share,
        {number: median.median for number, median in medians.items() if median},
        sum(measurement.numbers is None and measurement.skipped is None for measurement in way_measurements),
        next((measurement.skipped for measurement in way_measurements if measurement.skipped and not medians), ""),
    )


def faster(
    benchmark: Benchmark, measurements: Sequence[Measurement], point: WorkPoint, way: str, than: str
) -> Interval | None:
    """Return how many times as fast as another way a way is, within each round."""
    numbers, other = (by_round(measurements, point, name, benchmark.compared) for name in (way, than))
    return interval(quotients(other, numbers) if benchmark.lower_is_better else quotients(numbers, other))


def conclusions(benchmark: Benchmark, measurements: Sequence[Measurement]) -> list[str]:
    """Compare the fastest way of this package with the fastest peer at each point; then the conclusions of the file."""
    result_lines, sentences = lines(benchmark, measurements), []
    role = {way.name: way.role for way in benchmark.ways}
    fastest = min if benchmark.lower_is_better else max
    for point in benchmark.points():
        best = {
            side: fastest(candidates, key=operator.itemgetter(0))[1]
            for side in ("ours", "peer")
            if (
                candidates := [
                    (line.compared.median, line.way)
                    for line in result_lines
                    if line.point == point and role[line.way] == side and line.compared
                ]
            )
        }
        if len(best) == 2 and (ratio := faster(benchmark, measurements, point, best["ours"], best["peer"])):
            where = place(benchmark, point)
            sentences.append(
                f"{where + ': ' if where else ''}{best['ours']} is {ratio.median:.2f} × as fast as {best['peer']}, the "
                f"fastest peer ({ratio.low:.2f} to {ratio.high:.2f})"
            )
    return [*sentences, *benchmark.conclude([(line.point, line.way, line.numbers) for line in result_lines])]


def place(benchmark: Benchmark, point: WorkPoint) -> str:
    """Return the name that distinguishes a point from the others."""
    return ", ".join(f"{name} {point[name]}" for name in benchmark.varied_options)
