"""Verdicts on the goals of a suite."""

from collections.abc import Mapping, Sequence

from flaxformer.bench.declare import Benchmark
from flaxformer.bench.results import Measurement, ResultLine, lines
from flaxformer.bench.suite import BenchmarkGoal, GoalResult, Suite
from flaxformer.report.table import Table

SuiteResults = Mapping[str, Sequence[Measurement]]
"""Measurements of each section that was begun."""


def judge(suite: Suite, results: SuiteResults, accelerators: Sequence[str]) -> list[GoalResult]:
    """Return the verdict on each goal.

    Args:
      accelerators: names of the accelerators of this machine.
    """
    return [_judge(goal, suite, results, accelerators) for goal in suite.goals]


def _judge(goal: BenchmarkGoal, suite: Suite, results: SuiteResults, accelerators: Sequence[str]) -> GoalResult:
    if goal.section not in results or goal.section not in suite.sections:
        return GoalResult(goal, "not measured", why=f"section {goal.section} was not measured")
    benchmark = suite.sections[goal.section].benchmark
    result_lines = [
        line
        for line in lines(benchmark, results[goal.section])
        if all(line.point[name] == value for name, value in goal.point.items())
    ]
    value, why = _value(goal, benchmark, result_lines)
    if value is None:
        return GoalResult(goal, "not measured", why=why)
    if goal.device and not any(goal.device in name for name in accelerators):
        where = ", ".join(dict.fromkeys(accelerators)) or "a machine without an accelerator"
        return GoalResult(goal, "not measured", value, f"the goal is for {goal.device}, and this is {where}")
    return GoalResult(goal, "met" if value >= goal.at_least else "missed", value)


def _value(goal: BenchmarkGoal, benchmark: Benchmark, result_lines: Sequence[ResultLine]) -> tuple[float | None, str]:
    """Return the number or the ratio of a goal; or None, and why."""
    goal_line = next((line for line in result_lines if line.way == goal.way), None)
    if goal_line is None or goal.number not in goal_line.numbers:
        why = "" if goal_line is None else goal_line.skipped or ("it failed" if goal_line.errors else "")
        return None, f"{goal.way} was not measured" + (f": {why}" if why else "")
    if not goal.than:
        return goal_line.numbers[goal.number], ""
    peers = [way.name for way in benchmark.ways if way.role == "peer"] if goal.than == "peer" else [goal.than]
    alike = [line for line in result_lines if line.way in peers and line.point == goal_line.point]
    other_numbers = [line.numbers[goal.number] for line in alike if goal.number in line.numbers]
    if not other_numbers:
        return None, f"no other was measured: {', '.join(peers)}"
    if benchmark.lower_is_better and goal.number == benchmark.compared:
        return min(other_numbers) / goal_line.numbers[goal.number], ""
    return goal_line.numbers[goal.number] / max(other_numbers), ""


def goals_table(results: Sequence[GoalResult]) -> Table:
    """Return the goals with their verdicts."""
    rows = [
        [result.goal.words, "–" if result.value is None else _number(result.value), result.verdict, result.why or "–"]
        for result in results
    ]
    return Table("", ["goal", "measured", "verdict", "why not"], rows, 1)


def goal_lines(results: Sequence[GoalResult]) -> list[str]:
    """Return the goals with their verdicts, a line each."""
    lines = []
    for result in results:
        value = "" if result.value is None else f": {_number(result.value)}"
        lines.append(f"{result.verdict}: {result.goal.words}{value}" + (f" ({result.why})" if result.why else ""))
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
