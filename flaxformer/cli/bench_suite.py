"""`flaxformer bench` for a suite: several benchmarks within a time, written after each measurement."""

import dataclasses
import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flaxformer.bench import choose, page, show
from flaxformer.bench.declare import Benchmark
from flaxformer.bench.goals import goal_lines, judge
from flaxformer.bench.machine import machine
from flaxformer.bench.results import Measurement, conclusions, place
from flaxformer.bench.run import Measuring, measure
from flaxformer.bench.suite import Budget, Section, Suite
from flaxformer.cli.arguments import Bench
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_paths
from flaxformer.report.width import fit_width
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.links import output_folder

MOST_MINUTES = 10_000


def main(arguments: Bench, console: Console, suite: Suite, file: Path) -> int:
    """Measure the sections of a suite; print and write their tables, and the verdicts on the goals."""
    suite = _select(arguments, suite)
    minutes = suite.minutes if arguments.minutes is None else arguments.minutes
    if not 0 < minutes <= MOST_MINUTES:
        raise UserError(f"minutes is {minutes:g}; expected a number above 0 and at most {MOST_MINUTES:,}")
    about = {"command": _command(arguments, suite), "minutes": minutes, "machine": machine()}
    root = output_folder(arguments.output or Path("runs/bench") / suite.name)
    path = root / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"
    budget = Budget(60 * minutes, {name: section.share for name, section in suite.sections.items()})
    results: dict[str, list[Measurement]] = {}
    left_out: dict[str, list[str]] = {}
    try:
        for name in suite.sections:
            budget.begin(name)
            _measure(name, suite, file, arguments, budget, console, results, left_out, path, about)
        console.print(Text("goals", "bold"))
        for line in goal_lines(judge(suite, results, page.accelerators_of(about))):
            console.print(line)
    finally:  # what was measured is written already, also when this is interrupted
        if path.exists():
            show_paths(console, {"Numbers": path, "Tables": path.with_suffix(".md")})
    return FAILED if any(measurement.error for measurements in results.values() for measurement in measurements) else 0


def _measure(
    name: str,
    suite: Suite,
    file: Path,
    arguments: Bench,
    budget: Budget,
    console: Console,
    results: dict[str, list[Measurement]],
    left_out: dict[str, list[str]],
    path: Path,
    about: dict[str, object],
) -> None:
    """Measure one section, and print its table."""
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
    sections = {
        name: dataclasses.replace(
            section, benchmark=choose.with_options(_benchmark_of(section, name), words[name], arguments.quick)
        )
        for name, section in suite.sections.items()
    }
    suite = dataclasses.replace(suite, sections=sections)
    return suite.select_sections(arguments.only) if arguments.only else suite


def _benchmark_of(section: Section, name: str) -> Benchmark:
    """Return the benchmark of a section, with the section's name."""
    return dataclasses.replace(section.benchmark, name=name)


def _command(arguments: Bench, suite: Suite) -> str:
    """Return the command that measures this again."""
    words: list[str] = [*arguments.overrides]
    words += [f"--minutes {arguments.minutes:g}"] if arguments.minutes is not None else []
    words += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    words += ["--only", *arguments.only] if arguments.only else []
    return " ".join(["flaxformer bench", suite.name, *words, *(["--quick"] if arguments.quick else [])])
