"""The commands of a study: `flaxformer plan FILE`, `flaxformer run FILE`, `flaxformer report DIR`."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer import distributed, model, params
from flaxformer.claims.record import holds_claims
from flaxformer.claims.table import rewrite
from flaxformer.cli.launcher import LauncherArguments, launched
from flaxformer.cli.options import FAILED, option
from flaxformer.config import ModelConfig
from flaxformer.model.layout import Layout
from flaxformer.params import Spec
from flaxformer.report import index, terminal
from flaxformer.report.write import report_path, write
from flaxformer.runner.execute import Execution, Finished
from flaxformer.runner.launch import OnError, declare, missing, store_of
from flaxformer.runner.progress import follow
from flaxformer.runner.stages import describe_stages, is_staged, remaining_work, resolve_study, run
from flaxformer.sharding import parse_devices
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.plan import cost, groups, slow_decoding
from flaxformer.user_code.changes import OnCodeChange

File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="a Python file that defines `study`")]


@dataclasses.dataclass(frozen=True)
class StudyArguments:
    """Options that plan and run share."""

    file: File
    overrides: Annotated[
        tuple[str, ...],
        option("PATH=VALUE …", "none; --set itself may be left out", "change fields, as in model.layers=2", name="set"),
    ] = ()
    seeds: Annotated[int | None, option("N", "the study's", "use N seeds: 0, 1, …")] = None
    output: Annotated[Path | None, option("DIR", "runs/NAME", "folder of results")] = None
    devices: Annotated[int | None, option("N", "all; a CPU is one a core", "devices to use")] = None
    group_size: Annotated[int | None, option("N", "1 on a CPU, else what fits", "runs at a time")] = None
    exact: Annotated[bool, tyro.conf.arg(help="one run at a time on one device: bitwise what a lone run gives")] = False
    mesh: Annotated[
        str | None, option("AXIS=N,…", "one device", "devices for each run, as in data=2 or fsdp=2,tensor=2")
    ] = None
    chunk_steps: Annotated[int, option("N", "50", "steps between two looks at progress")] = 50
    save_minutes: Annotated[float, option("N", "5; 0 is never", "minutes between two saves of runs under way")] = 5.0
    layout: Annotated[Layout, option("KIND", "auto, by depth", "layers auto, unrolled or scanned")] = "auto"
    diagnostics: Annotated[bool, tyro.conf.arg(help="also record norms, attention entropy and logits")] = False

    def load(self) -> tuple[Study, Execution]:
        """The study as the command line changes it, and how to execute it."""
        study = load_study(self.file, self.overrides, self.seeds)
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(Execution)}
        return study, Execution(**settings | {"mesh": self.mesh and parse_devices(self.mesh)})


@dataclasses.dataclass(frozen=True)
class Plan(StudyArguments):
    """Show a study's trials, programs, parameters, FLOPs, memory and time, before anything is trained."""

    def __call__(self, console: Console) -> int:
        declared, execution = self.load()
        study = resolve_study(declared, execution)
        devices, found = len(execution.device_groups()), groups(study.trials())
        rows = store_of(study, execution).rows()
        console.print(Text(study.question, style="bold"))
        console.print(weights_table(study.baseline.model))
        table = Table(box=None, pad_edge=False, header_style="dim")
        for header in ("program", "runs", "to do", "parameters", "MFLOP/step", "MB/run", "ms/step", "min"):
            table.add_column(header, justify="left" if header == "program" else "right", no_wrap=True)
        left, total = 0, 0.0
        for group in found:
            price = cost(group)
            todo = dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name not in rows))
            left += len(todo.trials)
            seconds = price.seconds(todo, devices) if todo.trials else 0.0
            total += seconds
            table.add_row(
                group.name, str(len(group.trials)), str(len(todo.trials)),
                f"{price.parameters:,}",
                f"{price.flops_per_step / 1e6:,.0f}", f"{price.bytes_per_member / 1e6:,.0f}",
                f"{price.seconds_per_step * 1e3:.1f}", f"{seconds / 60:.1f}",
            )  # fmt: skip
        console.print(table)
        runs = sum(len(group.trials) for group in found)
        console.print(
            f"{len(study.arms())} arms × {len(study.seeds)} seeds = {runs} runs in {len(found)} compiled programs "
            f"on {execution.where}; about {total / 60:.1f} min for the {left} to do."
        )
        for line in (*slow_decoding(arm.run.model for arm in study.arms()), *describe_stages(declared, execution)):
            console.print(line)
        console.print(f"{len(study.claims)} declared claims, judged on {study.metric}, Holm-corrected.")
        return 0


@dataclasses.dataclass(frozen=True)
class RunStudy(LauncherArguments, StudyArguments):
    """Train every run of a study that is missing, then write and show its report.

    Several of these commands, on any machines that see the folder, share the work.
    """

    retry_failed: Annotated[bool, tyro.conf.arg(help="also train again what failed before")] = False
    on_error: Annotated[OnError, option("continue|stop", "continue", "what to do when a run fails")] = "continue"
    on_code_change: Annotated[
        OnCodeChange,
        option("refuse|keep|retrain", "refuse", "what to do with results whose user code has changed since"),
    ] = "refuse"

    coordinator: Annotated[
        str | None,
        option("HOST:PORT", "none; srun's own", "where processes meet that train each run together; auto asks"),
    ] = None
    processes: Annotated[int | None, option("N", "the cluster's", "how many processes there are")] = None
    process: Annotated[int | None, option("N", "the cluster's", "which of them this one is, from 0")] = None

    def __call__(self, console: Console) -> int:
        self.options().check(self.launcher)
        if self.launcher is not None:
            return launched(self, *self.load(), console)
        distributed.initialize(self.coordinator, self.processes, self.process)
        study, execution = self.load()
        if not distributed.is_coordinator():
            found = [event.row["status"] for event in run(study, execution) if isinstance(event, Finished)]
            return FAILED if "failed" in found else 0
        store, where, ordinary = store_of(study, execution), execution.where, resolve_study(study, execution)
        if not is_staged(study):
            declare(study, store, self.on_code_change)
        todo = missing(ordinary, store, retry_failed=self.retry_failed)
        runs = sum(len(group.trials) for group in todo)
        done = len(ordinary.trials()) - runs
        kept = f", {done} are done already" if done else ""
        programs = f"{len(todo)} compiled programs on {where}"
        console.print(f"{study.name}: {runs} runs to train in {programs}{kept}; results in {store.root}")
        for line in describe_stages(study, execution):
            console.print(line)
        runs, steps = remaining_work(study, execution, self.retry_failed)
        events = run(
            study, execution, retry_failed=self.retry_failed, on_error=self.on_error, on_code_change=self.on_code_change
        )
        follow(events, console, runs, steps)
        return exit_code(show_report(store, console), console)


@dataclasses.dataclass(frozen=True)
class Status:
    """Show how far a folder of results is, and who is at work on it.

    From the folder alone: the study's file is neither needed nor read.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="the output folder of 'run'")]
    json: Annotated[bool, tyro.conf.arg(help="print it as JSON, with the names of trials that have no result")] = False

    def __call__(self, console: Console) -> int:
        found = status(Store(self.directory))
        if self.json:
            print(json.dumps(found, indent=1))
            return 0
        terminal.show_status(console, found)
        return 0


@dataclasses.dataclass(frozen=True)
class Report:
    """Write and show the report of a folder of results again, from what is on disk; the study's file is not needed.

    For a folder of such folders, as runs or runs/claims, write every report in it and the page that leads to them.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="the output folder of 'run'")]

    def __call__(self, console: Console) -> int:
        if (self.directory / "study.json").exists() or not index.stores(self.directory):
            show_report(Store(self.directory), console)
            return 0
        index.write_reports(self.directory)
        page = rewrite(self.directory) if holds_claims(self.directory) else index.write_index(self.directory)
        terminal.show_answers(console, [(one.name, one.verdict) for one in index.entries(self.directory)])
        console.print(f"\nIndex: {page}", highlight=False, soft_wrap=True)
        return 0


def exit_code(failed: int, console: Console) -> int:
    """The exit code of a command after which so many runs are failed ones, which it says."""
    if failed:
        console.print(f"[red]{failed} runs failed; the report has their tracebacks; --retry-failed retries them.[/]")
    return FAILED if failed else 0


def weights_table(config: ModelConfig) -> Table:
    """A model's weights as they are declared, the layers' together."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("weight", "shape", "copies", "parameters", "decay"):
        table.add_column(header, justify="left" if header in ("weight", "shape") else "right", no_wrap=True)
    copies: dict[tuple[str, Spec], int] = {}
    for path, spec in params.table(model.specs(config)):
        name = re.sub(r"^blocks/\d+/", "blocks/*/", path)
        copies[name, spec] = copies.get((name, spec), 0) + 1
    for (name, spec), n in copies.items():
        shape = " × ".join(map(str, spec.shape))
        table.add_row(name, shape, str(n), f"{n * math.prod(spec.shape):,}", "yes" if spec.decay else "")
    return table


def show_report(store: Store, console: Console) -> int:
    """Write the report's files and print it; returns how many runs failed."""
    analysis = write(store)
    console.print()
    terminal.show(console, analysis)
    console.print(
        f"\nReport: {report_path(store)}   table: {store.root / 'results.parquet'}   figures: {store.root / 'figures'}",
        highlight=False,
        soft_wrap=True,
    )
    for name, what in store.corrupt_files.items():
        console.print(Text(f"{store.root / name} is damaged ({what}); 'run' trains what it held", style="yellow"))
    return len(analysis.failed)
