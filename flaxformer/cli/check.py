"""The command `flaxformer check FILE`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer.cli.options import FAILED, option
from flaxformer.laws import LAWS, check, distinct_models, scales
from flaxformer.overrides import override
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
    laws: Annotated[tuple[str, ...], option("NAME …", "all", "check only these")] = ()

    def __call__(self, console: Console) -> int:
        models, is_violated = distinct_models(self._runs()), False
        for name, run in models:
            console.print(Text(f"{name}", style="bold"))
            table = Table(box=None, pad_edge=False, show_header=False)
            for column in ({"no_wrap": True}, {"no_wrap": True}, {"overflow": "fold"}):
                table.add_column(**column)
            for result in check(run, self.laws):
                verdict = result.finding.verdict
                is_violated |= verdict == "violated"
                words = result.finding.words or LAWS[result.law].claim
                style = "" if verdict == "ok" else STYLES[verdict]
                table.add_row(result.law, Text(verdict, style=STYLES[verdict]), Text(words, style=style))
            console.print(table)
            if not self.laws:
                console.print(_scales_table(run))
        if is_violated:
            console.print(
                "\nA law that a component breaks on purpose is declared in its class:\n"
                '    exempt_from: ClassVar[Mapping[str, str]] = {"batch": "statistics are of the whole batch"}',
                highlight=False,
            )
        return FAILED if is_violated else 0

    def _runs(self) -> list[tuple[str, Run]]:
        """The runs of the file: every arm of a study, or the one run."""
        if declares(self.file, "study"):
            return [(arm.name, arm.run) for arm in load_study(self.file, self.overrides).arms()]
        return [(self.file.stem, override(load(self.file, "run", Run), self.overrides))]


def _scales_table(run: Run) -> Table:
    """Scales at the start, first and last layer."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("at the start", "first layer", "last layer"):
        table.add_column(header, justify="left" if header == "at the start" else "right", no_wrap=True)
    for place, value in scales(run).items():
        values = np.atleast_1d(value)
        last = f"{values[-1]:.3g}" if np.ndim(value) and len(values) > 1 else ""
        table.add_row(place, f"{values[0]:.3g}", last)
    return table
