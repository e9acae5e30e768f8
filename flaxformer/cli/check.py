"""The command `flaxformer check FILE`."""

import contextlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from flaxformer.cli.arguments import Check
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.terminal import print_json
from flaxformer.core.overrides import override
from flaxformer.laws import LAWS, Result, Subject, check_names, check_subject, distinct_models, scales
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.study.load import load, load_study
from flaxformer.system.python_files import declares
from flaxformer.system.wording import count_of, duration
from flaxformer.training import Run
from flaxformer.training.memory import check_memory

STYLES = {"ok": "green", "violated": "bold red", "not applicable": "dim"}


def main(arguments: Check, console: Console) -> int:
    """Check each model and print a table per model."""
    check_names(arguments.laws)
    if jax.config.values["jax_num_cpu_devices"] < 2:
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", 2)
    if arguments.json:
        return _print_json(arguments)
    violations: list[tuple[str, Result]] = []
    for name, run in distinct_models(runs_of(arguments)):
        check_memory(run, name)
        console.print(Text(name, style="bold"))
        violations += [(name, result) for result in _check(arguments, console, run)]
        jax.clear_caches()  # the next model needs none of the compiled programs
    if violations:
        console.print(Text.assemble(*how_to_repair(violations)), soft_wrap=True)
        console.print(_how_to_exempt([result.law for _, result in violations]), soft_wrap=True)
    return FAILED if violations else 0


def _print_json(arguments: Check) -> int:
    """Print an object per model and law, one per line, as soon as it is known."""
    is_violated = False
    for name, run in distinct_models(runs_of(arguments)):
        check_memory(run, name)
        for result in check_subject(Subject(run.without_init), arguments.laws):
            is_violated |= result.finding.is_violated
            row = {"model": name, "law": result.law, "verdict": result.finding.verdict, "words": result.finding.words}
            print_json(row | {"seconds": round(result.seconds, 3)}, in_line=True)
        jax.clear_caches()
    return FAILED if is_violated else 0


def _check(arguments: Check, console: Console, run: Run) -> list[Result]:
    """Print a model's table; return the results of the laws that it violates."""
    subject, broken, seconds = Subject(run.without_init), [], 0.0  # laws hold at random weights
    table = RichTable(box=None, pad_edge=False, show_header=False)
    for _ in ("law", "verdict"):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    with console.status("") as status:
        for result in check_subject(
            subject, arguments.laws, lambda law: status.update(f"{law}: {escape(LAWS[law].claim)}")
        ):
            verdict, seconds = result.finding.verdict, seconds + result.seconds
            broken += [result] if verdict == "violated" else []
            words = result.finding.words or LAWS[result.law].claim
            style = "" if verdict == "ok" else STYLES[verdict]
            shown = Text(verdict, style=STYLES[verdict])
            table.add_row(result.law, shown, Text(f"{result.seconds:.1f} s", style="dim"), Text(words, style=style))
    console.print(table)
    count = len(arguments.laws or LAWS)
    console.print(
        Text(
            f"{count_of(count, 'law')}, {len(broken)} violated, {duration(seconds)}",
            style="bold red" if broken else "",
        )
    )
    if not arguments.laws and not (any(result.law == "start" for result in broken) and _has_error(subject)):
        console.print()
        console.print(fit_width(_scales_table(subject), console.width))
    return broken


def runs_of(arguments: Check) -> list[tuple[str, Run]]:
    """The runs of the file: every arm of a study, or the one run."""
    if declares(arguments.file, "study"):
        return [(arm.name, arm.run) for arm in load_study(arguments.file, arguments.overrides).arms()]
    return [(arguments.file.stem, override(load(arguments.file, "run", Run), arguments.overrides))]


def _has_error(subject: Subject) -> bool:
    """True if the model cannot be evaluated."""
    try:
        with jax.enable_x64(True):
            subject.output()
    except Exception:
        return True
    return False


def how_to_repair(violations: Sequence[tuple[str, Result]]) -> Iterator[tuple[str, str]]:
    """Yield the violations of all models, each with how to repair it, as pieces of text with their styles."""
    for model, result in violations:
        yield f"\n{model}: {result.law} violated", STYLES["violated"]
        yield f"\n    {result.finding.words}", ""
        yield f"\n    To repair: {LAWS[result.law].repairs(result.finding)}.", ""
    yield "", ""


def _how_to_exempt(broken: Sequence[str]) -> str:
    """The message on how to exempt a component from laws that it violates on purpose."""
    reasons = ", ".join(f'"{name}": "the reason"' for name in dict.fromkeys(broken))
    return (
        "\nOnly if a component violates a law on purpose, declare it in its class:\n"
        f"    exempt_from = {{{reasons}}}\n"
        "The law is then not checked on models with this component; the table has the\nreason."
    )


def _scales_table(subject: Subject) -> Table:
    """Scales at initialisation: of the first, middle and last layer, or of the whole model in the first column."""
    rows = []
    for place, value in scales(subject).items():
        layers = np.atleast_1d(value)
        middle = f"{layers[len(layers) // 2]:.3g}" if len(layers) > 2 else ""
        last = f"{layers[-1]:.3g}" if len(layers) > 1 else ""
        rows.append([place, f"{layers[0]:.3g}", middle, last])
    return Table("", ["at initialisation", "first layer", "middle", "last layer"], rows, 1)
