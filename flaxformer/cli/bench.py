"""The command `flaxformer bench`."""

import dataclasses
import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer.bench import choose, show
from flaxformer.bench.declare import Benchmark, Way
from flaxformer.bench.draw import draw
from flaxformer.bench.machine import machine
from flaxformer.bench.results import Measurement, conclusions, place
from flaxformer.bench.run import Measuring, measure
from flaxformer.cli.options import FAILED, option
from flaxformer.struct import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed beside peers and limits, each in a process of its own; without a name, list what there is.

    Options of a benchmark are words such as size=S,M: one value or several, each of which is measured.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help="which benchmark")] = None
    overrides: Annotated[
        tuple[str, ...], tyro.conf.arg(name="set", metavar="OPTION=VALUE[,VALUE] …", help="the benchmark's own options")
    ] = ()
    rounds: Annotated[int | None, option("N", "the file's; 1 with --quick", "times each way is measured")] = None
    only: Annotated[tuple[str, ...], option("WAY …", "all", "measure these ways alone")] = ()
    reference: Annotated[str | None, option("WAY", "the file's", "the way that ratios are to")] = None
    compared: Annotated[str | None, option("NUMBER", "the file's", "the number that ratios are of")] = None
    quick: Annotated[bool, tyro.conf.arg(help="one round of little work, to see that it goes")] = False
    folder: Annotated[Path, option("DIR", "experiments/benchmarks", "where the files are")] = Path(
        "experiments/benchmarks"
    )
    output: Annotated[Path | None, option("DIR", "runs/bench/NAME", "folder of JSON and figures")] = None

    def __call__(self, console: Console) -> int:
        if self.name is None:
            return self._list(console)
        benchmark, file = choose.load(self.folder, self.name)
        benchmark = choose.changed(benchmark, self.overrides, self.quick)
        benchmark = dataclasses.replace(benchmark, **self._comparison(benchmark))
        rounds = self.rounds if self.rounds is not None else 1 if self.quick else benchmark.rounds
        if rounds < 1:
            raise UserError(f"rounds is {rounds}; expected at least 1")
        ways, left_out = choose.chosen(benchmark, self.only, benchmark.options)
        for line in left_out:
            console.print(line, style="yellow", highlight=False, soft_wrap=True)
        if not ways:
            raise UserError(f"{benchmark.name} has no way left to measure")
        return self._measure(console, benchmark, file, ways, rounds, left_out)

    def _list(self, console: Console) -> int:
        shown = Table.grid(padding=(0, 2, 0, 0))
        for name in choose.find(self.folder):
            benchmark, _ = choose.load(self.folder, name)
            options = " ".join(f"{key}={','.join(map(str, values))}" for key, values in benchmark.options.items())
            ways = ", ".join(way.name for way in benchmark.ways)
            shown.add_row(Text(name, "bold"), Text.assemble(benchmark.question, (f"\n{options}\n{ways}", "dim")))
        console.print(shown)
        return 0

    def _comparison(self, benchmark: Benchmark) -> dict[str, Any]:
        """Return what is compared, and with what: the user's choice, or the file's."""
        known = {"reference": [way.name for way in benchmark.ways], "compared": list(benchmark.columns)}
        chosen = {name: value for name in known if (value := getattr(self, name)) is not None}
        for name, value in chosen.items():
            if value not in known[name]:
                raise UserError(f"{name} is '{value}'{did_you_mean(value, known[name])}")
        return chosen

    def _measure(
        self, console: Console, benchmark: Benchmark, file: Path, ways: list[Way], rounds: int, left_out: list[str]
    ) -> int:
        about: dict[str, Any] = {"command": self._command(benchmark), "rounds": rounds, "machine": machine()}
        root = self.output or Path("runs/bench") / benchmark.name
        path = root / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"
        found: list[Measurement] = []
        with console.status("") as status:
            for event in measure(benchmark, file, ways, rounds):
                where = " ".join(filter(None, [event.way, place(benchmark, event.point)]))
                if isinstance(event, Measuring):
                    turn = f"round {event.round} of {rounds}" if event.round else "rehearsal"
                    status.update(f"{turn}: {where}")
                    continue
                found.append(event)
                show.keep(path, benchmark, found, about, left_out)
                if event.error:
                    console.print(Text(f"{where} failed: {event.error.splitlines()[-1]}", "red"), soft_wrap=True)
        console.print(show.table(benchmark, found))
        for line in conclusions(benchmark, found):
            console.print(line, highlight=False, soft_wrap=True)
        draw(path, benchmark, found)
        console.print(f"\nNumbers: {path}   Figure: {path.with_suffix('.svg')}", highlight=False, soft_wrap=True)
        return FAILED if any(one.error for one in found) else 0

    def _command(self, benchmark: Benchmark) -> str:
        """The command that measures this again; paths are left out."""
        paths = {way.path for way in benchmark.ways if way.path}
        words = [word for word in self.overrides if word.partition("=")[0] not in paths]
        words += [f"--rounds {self.rounds}"] if self.rounds else []
        words += ["--only", *self.only] if self.only else []
        words += ["--reference", self.reference] if self.reference else []
        words += ["--compared", self.compared] if self.compared else []
        return " ".join(["flaxformer bench", benchmark.name, *words, *(["--quick"] if self.quick else [])])
