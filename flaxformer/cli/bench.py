"""The command `flaxformer bench`."""

import dataclasses
import datetime
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.bench import choose, show
from flaxformer.bench.declare import Benchmark, Way
from flaxformer.bench.draw import draw
from flaxformer.bench.machine import machine
from flaxformer.bench.results import Measurement, conclusions, place
from flaxformer.bench.run import Measuring, measure
from flaxformer.bench.suite import Suite
from flaxformer.cli import bench_suite
from flaxformer.cli.arguments import Bench
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_paths
from flaxformer.report.width import fit_width
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.links import output_folder

MOST_ROUNDS = 10_000


def main(arguments: Bench, console: Console) -> int:
    """Measure one benchmark, or list all."""
    if arguments.name is None:
        return _list(arguments, console)
    benchmark, file = choose.load(arguments.folder, arguments.name)
    if isinstance(benchmark, Suite):
        return bench_suite.main(arguments, console, benchmark, file)
    if arguments.minutes is not None:
        raise UserError(f"minutes is {arguments.minutes:g}; {benchmark.name} has no sections to divide a time among")
    benchmark = choose.with_options(benchmark, arguments.overrides, arguments.quick)
    benchmark = _comparison(arguments, benchmark)
    rounds = arguments.rounds if arguments.rounds is not None else 1 if arguments.quick else benchmark.rounds
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UserError(f"rounds is {rounds}; expected a number from 1 to {MOST_ROUNDS:,}")
    ways, left_out = choose.choose_ways(benchmark, arguments.only, benchmark.options)
    for line in left_out:
        console.print(line, style="yellow", soft_wrap=True)
    if not ways:
        raise UserError(f"{benchmark.name} has no implementation left to measure")
    return _measure(arguments, console, benchmark, file, ways, rounds, left_out)


def _list(arguments: Bench, console: Console) -> int:
    """Print each benchmark's question, options and implementations."""
    for name in choose.find(arguments.folder):
        benchmark, _ = choose.load(arguments.folder, name)
        if isinstance(benchmark, Suite):
            console.print(Text(name, "bold"))
            lines = Text.assemble(benchmark.question, (f"\nsections {', '.join(benchmark.sections)}", "dim"))
            console.print(Padding(lines, (0, 0, 0, 2), expand=False))
            continue
        options = " ".join(f"{key}={','.join(map(str, values))}" for key, values in benchmark.options.items())
        ways = ", ".join(way.name for way in benchmark.ways)
        lines = Text.assemble(benchmark.question, (f"\n{options}\n{ways}", "dim"))
        console.print(Text(name, "bold"))
        console.print(Padding(lines, (0, 0, 0, 2), expand=False))
    return 0


def _comparison(arguments: Bench, benchmark: Benchmark) -> Benchmark:
    """The benchmark with the reference and the compared number that the user chose, else with the file's."""
    known = {"reference": [way.name for way in benchmark.ways], "compared": list(benchmark.columns)}
    chosen = {name: value for name in known if (value := getattr(arguments, name)) is not None}
    for name, value in chosen.items():
        if value not in known[name]:
            raise UserError(f"{name} is '{value}'{did_you_mean(value, known[name])}")
    return dataclasses.replace(benchmark, **chosen)


def _measure(
    arguments: Bench,
    console: Console,
    benchmark: Benchmark,
    file: Path,
    ways: list[Way],
    rounds: int,
    left_out: list[str],
) -> int:
    """Measure every way at every point; print and write the results."""
    about = {"command": _command(arguments, benchmark), "rounds": rounds, "machine": machine()}
    root = output_folder(arguments.output or Path("runs/bench") / benchmark.name)
    path = root / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"
    measurements: list[Measurement] = []
    with console.status("") as status:
        for event in measure(benchmark, file, ways, rounds):
            where = " ".join(filter(None, [event.way, place(benchmark, event.point)]))
            if isinstance(event, Measuring):
                turn = f"round {event.round} of {rounds}" if event.round else "rehearsal"
                status.update(Text(f"{turn}: {where}"))
                continue
            measurements.append(event)
            show.keep(path, benchmark, measurements, about, left_out)
            if event.error:
                console.print(Text(f"{where} failed: {event.error.splitlines()[-1]}", "red"), soft_wrap=True)
    console.print(fit_width(show.table(benchmark, measurements), console.width))
    for line in conclusions(benchmark, measurements):
        console.print(line)
    draw(path, benchmark, measurements)
    console.print()
    show_paths(console, {"Numbers": path, "Figure": path.with_suffix(".svg")})
    return FAILED if any(measurement.error for measurement in measurements) else 0


def _command(arguments: Bench, benchmark: Benchmark) -> str:
    """The command that measures this again; paths are left out."""
    paths = {way.path for way in benchmark.ways if way.path}
    words = [word for word in arguments.overrides if word.partition("=")[0] not in paths]
    words += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    words += ["--only", *arguments.only] if arguments.only else []
    words += ["--reference", arguments.reference] if arguments.reference else []
    words += ["--compared", arguments.compared] if arguments.compared else []
    return " ".join(["flaxformer bench", benchmark.name, *words, *(["--quick"] if arguments.quick else [])])
