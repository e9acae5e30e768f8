"""The command `flaxformer check FILE`."""

import ast
import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flaxformer.cli.options import FAILED, option
from flaxformer.laws import LAWS, Subject, check_names, check_subject, distinct_models, scales
from flaxformer.overrides import override
from flaxformer.struct import UserError
from flaxformer.study.load import declares, load, load_study
from flaxformer.training import Run

STYLES = {"ok": "green", "violated": "bold red", "not applicable": "dim"}


@dataclasses.dataclass(frozen=True)
class Check:
    """Check the laws that every architecture must obey on each model of a study or run."""

    file: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="a Python file that defines `study` or `run`")
    ]
    overrides: Annotated[
        tuple[str, ...],
        option("PATH=VALUE …", "none; --set itself may be left out", "change fields, as in model.layers=2", name="set"),
    ] = ()
    laws: Annotated[tuple[str, ...], option("NAME …", "all", f"check only these: {', '.join(LAWS)}")] = ()

    def __call__(self, console: Console) -> int:
        check_names(self.laws)
        if jax.config.jax_num_cpu_devices < 2:  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
                jax.config.update("jax_num_cpu_devices", 2)
        broken: list[str] = []
        for name, run in distinct_models(self._runs()):
            console.print(Text(name, style="bold"))
            broken += self._checked(console, run)
            jax.clear_caches()  # the next model needs none of the compiled programs
        broken = list(dict.fromkeys(broken))
        if broken:
            console.print(_how_to_exempt(broken), highlight=False, soft_wrap=True)
        return FAILED if broken else 0

    def _checked(self, console: Console, run: Run) -> list[str]:
        """Print a model's table; return the names of the laws that it violates."""
        subject, broken, seconds = Subject(run), [], 0.0
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in (
            {"no_wrap": True},
            {"no_wrap": True},
            {"no_wrap": True, "justify": "right"},
            {"overflow": "fold"},
        ):
            table.add_column(**column)
        with console.status("") as status:
            for result in check_subject(
                subject, self.laws, lambda law: status.update(f"{law}: {escape(LAWS[law].claim)}")
            ):
                verdict, seconds = result.finding.verdict, seconds + result.seconds
                broken += [result.law] if verdict == "violated" else []
                words = result.finding.words or LAWS[result.law].claim
                style = "" if verdict == "ok" else STYLES[verdict]
                shown = Text(verdict, style=STYLES[verdict])
                table.add_row(result.law, shown, Text(f"{result.seconds:.1f} s", style="dim"), Text(words, style=style))
        console.print(table)
        count = len(self.laws or LAWS)
        console.print(
            Text(f"{count} laws, {len(broken)} violated, {seconds:.0f} s", style="bold red" if broken else "")
        )
        if not self.laws and not (broken and "start" in broken and _has_error(subject)):
            console.print(_scales_table(subject))
        return broken

    def _runs(self) -> list[tuple[str, Run]]:
        """The runs of the file: every arm of a study, or the one run."""
        if declares(self.file, "study"):
            return [(arm.name, arm.run) for arm in load_study(self.file, self.overrides).arms()]
        if self.file.is_file() and _parses(self.file) and not declares(self.file, "run"):
            raise UserError(
                f"'{self.file}' defines neither `study` nor `run`; expected `study = Study(...)` or `run = Run(...)`"
            )
        return [(self.file.stem, override(load(self.file, "run", Run), self.overrides))]


def _parses(file: Path) -> bool:
    try:
        ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return True


def _has_error(subject: Subject) -> bool:
    """True if the model cannot be evaluated."""
    try:
        with jax.enable_x64(True):
            subject.output()
    except Exception:
        return True
    return False


def _how_to_exempt(broken: Sequence[str]) -> str:
    """Return the line that declares that a component violates laws on purpose."""
    reasons = ", ".join(f'"{name}": "the reason"' for name in broken)
    return (
        "\nIf a component violates a law on purpose, say so in its class, with the reason:\n"
        f"    exempt_from = {{{reasons}}}\n"
        "The law is then not checked on models with this component, and the table shows the reason."
    )


def _scales_table(subject: Subject) -> Table:
    """Scales at initialisation, per layer: first, middle and last."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    headers = ("at initialisation", "first layer", "middle", "last layer")
    for header in headers:
        table.add_column(header, justify="left" if header == headers[0] else "right", no_wrap=True)
    for place, value in scales(subject).items():
        values = np.atleast_1d(value)
        numbers = [values[0], *([values[len(values) // 2]] if len(values) > 2 else [""]), values[-1]]
        shown = numbers if np.ndim(value) and len(values) > 1 else [values[0], "", ""]
        shown = [shown[0], "", shown[-1]] if len(shown) == 2 else shown
        table.add_row(place, *("" if isinstance(x, str) else f"{x:.3g}" for x in shown))
    return table
