"""Results of a suite as JSON and as a page in Markdown, which are written again after each measurement."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flaxformer.bench import show
from flaxformer.bench.goals import SuiteResults, goals_table, judge
from flaxformer.bench.results import conclusions, lines, place
from flaxformer.bench.suite import Suite
from flaxformer.report import markdown
from flaxformer.report.texts import passive, write_printable


def keep(
    path: Path, suite: Suite, results: SuiteResults, about: Mapping[str, object], left_out: Mapping[str, list[str]]
) -> None:
    """Write the JSON file of a suite, and its page beside it.

    Args:
      path: the JSON file.
      results: measurements of the sections that were begun.
      about: the command and the machine.
      left_out: per section, messages about ways that are not installed.
    """
    verdicts = judge(suite, results, accelerators_of(about))
    sections = {
        name: show.as_data(suite.sections[name].benchmark, measurements, left_out.get(name, []))
        for name, measurements in results.items()
    }
    goals = [
        {"goal": result.goal.words, "verdict": result.verdict, "value": result.value, "why": result.why}
        for result in verdicts
    ]
    head = {"benchmark": suite.name, "question": suite.question, **about}
    show.write_json(path, head | {"sections": sections, "goals": goals})
    write_printable(path.with_suffix(".md"), page(suite, results, about, left_out))


def accelerators_of(about: Mapping[str, object]) -> list[str]:
    """Return the accelerators of a description of a machine."""
    machine = about.get("machine")
    names = machine.get("accelerators") if isinstance(machine, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def page(suite: Suite, results: SuiteResults, about: Mapping[str, object], left_out: Mapping[str, list[str]]) -> str:
    """Return the page: the machine, the goals, and a table per section with what is missing in it."""
    parts = [f"# {passive(suite.question)}\n", _conditions(about)]
    if suite.goals:
        parts.append("## Goals\n\n" + markdown.table(goals_table(judge(suite, results, accelerators_of(about)))))
    for name, section in suite.sections.items():
        if name not in results:
            parts.append(f"## {name}\n\nNot measured.\n")
            continue
        benchmark, measurements = section.benchmark, results[name]
        notes = [*conclusions(benchmark, measurements), *left_out.get(name, []), *missing(suite, results, name)]
        text = "\n".join(f"- {passive(note)}" for note in notes)
        table = markdown.table(show.table(benchmark, measurements)) if measurements else "Not measured.\n"
        parts.append(f"## {name}: {passive(benchmark.question)}\n\n{table}" + (f"\n{text}\n" if text else ""))
    return "\n".join(parts)


def missing(suite: Suite, results: SuiteResults, name: str) -> list[str]:
    """Return a line for each way of a section that failed or was not measured."""
    benchmark, notes = suite.sections[name].benchmark, []
    for line in lines(benchmark, results[name]):
        where = ", ".join(filter(None, [line.way, place(benchmark, line.point)]))
        errors = [
            measurement.error
            for measurement in results[name]
            if measurement.way == line.way and measurement.point == line.point and measurement.error
        ]
        if errors:
            notes.append(f"{where} failed: {errors[-1].splitlines()[-1]}")
        elif line.skipped:
            notes.append(f"{where}: not measured; {line.skipped}")
    return notes


def _conditions(about: Mapping[str, object]) -> str:
    """Return the command and the machine in lines."""
    machine = about.get("machine")
    known: Mapping[str, object] = machine if isinstance(machine, Mapping) else {}
    versions = known.get("versions")
    packages = (
        ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, Mapping) else ""
    )
    accelerators: Sequence[str] = accelerators_of(about)
    lines = [
        f"`{about.get('command', '')}`, {known.get('measured', '')}, commit {known.get('commit') or 'unknown'}",
        f"{', '.join(accelerators) or 'no accelerator'}; {known.get('processor', '')}, {known.get('cores', '')} cores",
        f"Python {known.get('python', '')}; {packages}",
    ]
    return "\n".join(f"- {passive(line)}" for line in lines) + "\n"
