"""The command `flaxformer bench`: one benchmark, or a suite of several within a time, written as it is measured."""

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.bench import choose, page, show
from flaxformer.bench.declare import Benchmark
from flaxformer.bench.draw import draw
from flaxformer.bench.goals import goal_lines, judge
from flaxformer.bench.machine import machine
from flaxformer.bench.results import Measurement, conclusions, place
from flaxformer.bench.run import Measuring, measure
from flaxformer.bench.suite import Budget, Suite
from flaxformer.cli.arguments import Bench
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_paths
from flaxformer.report.width import fit_width
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.links import output_folder


def main(arguments: Bench, console: Console) -> int:
    """Measure one benchmark, or list all."""
    if arguments.name is None:
        return _list(arguments, console)
    benchmark, file = choose.load(arguments.folder, arguments.name)
    if isinstance(benchmark, Suite):
        return _measure_suite(arguments, console, benchmark, file)
    return _measure(arguments, console, benchmark, file)


def _list(arguments: Bench, console: Console) -> int:
    """Print each benchmark's question, options and implementations."""
    for name in choose.find(arguments.folder):
        benchmark, _ = choose.load(arguments.folder, name)
        if isinstance(benchmark, Suite):
            about = f"sections {', '.join(benchmark.sections)}"
        else:
            options = " ".join(f"{key}={','.join(map(str, values))}" for key, values in benchmark.options.items())
            about = f"{options}\n{', '.join(way.name for way in benchmark.ways)}"
        console.print(Text(name, "bold"))
        lines = Text.assemble(benchmark.question, (f"\n{about}", "dim"))
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


def _measure(arguments: Bench, console: Console, benchmark: Benchmark, file: Path) -> int:
    """Measure every way at every point; print and write the results."""
    if arguments.minutes is not None:
        raise UserError(f"minutes is {arguments.minutes:g}; {benchmark.name} has no sections to divide a time among")
    benchmark = choose.with_options(benchmark, arguments.overrides, arguments.quick)
    benchmark = _comparison(arguments, benchmark)
    rounds = arguments.rounds if arguments.rounds is not None else 1 if arguments.quick else benchmark.rounds
    ways, left_out = choose.choose_ways(benchmark, arguments.only, benchmark.options)
    for line in left_out:
        console.print(line, style="yellow", soft_wrap=True)
    if not ways:
        raise UserError(f"{benchmark.name} has no implementation left to measure")
    paths = [way.path for way in benchmark.ways if way.path]
    about = {"command": _command(arguments, benchmark.name, paths), "rounds": rounds, "machine": machine()}
    path = _path(arguments, benchmark.name)
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


def _measure_suite(arguments: Bench, console: Console, suite: Suite, file: Path) -> int:
    """Measure the sections of a suite; print and write their tables, and the verdicts on the goals."""
    suite = _select(arguments, suite)
    minutes = suite.minutes if arguments.minutes is None else arguments.minutes
    about = {"command": _command(arguments, suite.name), "minutes": minutes, "machine": machine()}
    path = _path(arguments, suite.name)
    budget = Budget(60 * minutes, {name: section.share for name, section in suite.sections.items()})
    results: dict[str, list[Measurement]] = {}
    left_out: dict[str, list[str]] = {}
    try:
        for name in suite.sections:
            budget.begin(name)
            benchmark = suite.sections[name].benchmark
            ways, left_out[name] = choose.choose_ways(benchmark, (), benchmark.options)
            measurements = results.setdefault(name, [])
            page.keep(path, suite, results, about, left_out)
            rounds = arguments.rounds or (1 if arguments.quick else benchmark.rounds)
            with console.status("") as status:
                for event in measure(benchmark, file, ways, rounds, name, budget.seconds):
                    if isinstance(event, Measuring):
                        status.update(Text(" ".join(filter(None, [name, event.way, place(benchmark, event.point)]))))
                        continue
                    measurements.append(event)
                    page.keep(path, suite, results, about, left_out)
            console.print(Text.assemble((name, "bold"), f": {benchmark.question}"))
            if measurements:
                console.print(fit_width(show.table(benchmark, measurements), console.width))
            for line in conclusions(benchmark, measurements):
                console.print(line)
            for line in [*left_out[name], *page.missing(suite, results, name)]:
                console.print(line, style="yellow", soft_wrap=True)
            console.print()
        console.print(Text("goals", "bold"))
        for line in goal_lines(judge(suite, results, page.accelerators_of(about))):
            console.print(line)
    finally:  # what was measured is written already, also when this is interrupted
        if path.exists():
            show_paths(console, {"Numbers": path, "Tables": path.with_suffix(".md")})
    return FAILED if any(measurement.error for measurements in results.values() for measurement in measurements) else 0


def _select(arguments: Bench, suite: Suite) -> Suite:
    """Return the suite with the sections and the options of the command line.

    Raises:
      UserError: it has no such section or option.
    """
    for name in ("reference", "compared"):
        if (value := getattr(arguments, name)) is not None:
            raise UserError(f"{name} is '{value}'; {suite.name} has sections, which have their own: expected none")
    for name in arguments.only:
        if name not in suite.sections:
            raise UserError(f"{suite.name} has no section '{name}'{did_you_mean(name, list(suite.sections))}")
    words: dict[str, list[str]] = {name: [] for name in suite.sections}
    for word in arguments.overrides:
        section, dot, assignment = word.partition(".")
        if section not in words or not dot:
            raise UserError(f"option '{word}' is of no section; expected such as {next(iter(words))}.OPTION=VALUE")
        words[section].append(assignment)
    sections = {}
    for name, declared in suite.sections.items():
        named = dataclasses.replace(declared.benchmark, name=name)
        benchmark = choose.with_options(named, words[name], arguments.quick)
        sections[name] = dataclasses.replace(declared, benchmark=benchmark)
    suite = dataclasses.replace(suite, sections=sections)
    return suite.select_sections(arguments.only) if arguments.only else suite


def _path(arguments: Bench, name: str) -> Path:
    """The file of the numbers of this measurement."""
    root = output_folder(arguments.output or Path("runs/bench") / name)
    return root / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"


def _command(arguments: Bench, name: str, paths: Sequence[str] = ()) -> str:
    """The command that measures this again; the options that are paths are left out."""
    words = [word for word in arguments.overrides if word.partition("=")[0] not in paths]
    words += [f"--minutes {arguments.minutes:g}"] if arguments.minutes is not None else []
    words += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    words += ["--only", *arguments.only] if arguments.only else []
    words += ["--reference", arguments.reference] if arguments.reference else []
    words += ["--compared", arguments.compared] if arguments.compared else []
    return " ".join(["flaxformer bench", name, *words, *(["--quick"] if arguments.quick else [])])
