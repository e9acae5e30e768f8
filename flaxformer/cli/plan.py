"""The command `flaxformer plan FILE`."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from flaxformer import model, params
from flaxformer.cli.arguments import Plan
from flaxformer.cli.study import load
from flaxformer.config import ModelConfig
from flaxformer.params import Spec
from flaxformer.report.tables import Table
from flaxformer.report.terminal import fitted
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import store_of
from flaxformer.runner.stages import describe_stages, resolve_study
from flaxformer.sharding import replicated_axes
from flaxformer.store.rows import Row
from flaxformer.study.evaluation_data import data_limits_of
from flaxformer.study.plan import Cost, ProgramGroup, cost, groups, slow_decoding
from flaxformer.wording import counted, duration


@dataclasses.dataclass(frozen=True)
class Planned:
    """One compiled program: its cost, and the runs that are left to train."""

    group: ProgramGroup
    cost: Cost
    left: int
    seconds: float


def main(arguments: Plan, console: Console) -> int:
    """Print the runs, programs and time; then a row per program; then the weights, where they are asked for."""
    declared, execution = load(arguments)
    study = resolve_study(declared, execution)
    devices = len(execution.device_groups())
    rows = store_of(study, execution).rows()
    console.print(Text(study.question, style="bold"))
    with console.status("compiling and timing one step of each program"):
        planned = [_planned(group, rows, devices) for group in groups(study.trials())]
    runs, left = (
        sum(numbers) for numbers in ([len(one.group.trials) for one in planned], [one.left for one in planned])
    )
    size = f"{counted(len(study.arms()), 'arm')} × {counted(len(study.seeds), 'seed')} = {counted(runs, 'run')}"
    lines = [
        f"{size} in {counted(len(planned), 'compiled program')} on {execution.where}.",
        f"{left} to train, in about {duration(sum(one.seconds for one in planned))}." if left else "All are trained.",
        *describe_stages(declared, execution),
        *_replicated(planned, execution),
        *slow_decoding(arm.run.model for arm in study.arms()),
        *data_limits_of(study),
        f"{counted(len(study.claims), 'claim')}, judged on {study.metric}, with Holm's correction."
        if study.claims
        else f"No claim is declared; the report shows {study.metric} for every arm.",
    ]
    for line in lines:
        console.print(line, highlight=False)
    console.print()
    console.print(fitted(programs_table(planned), console.width))
    if arguments.weights:
        console.print()
        console.print(fitted(weights_table(study.baseline.model), console.width))
    return 0


def _planned(group: ProgramGroup, rows: Mapping[str, Row], devices: int) -> Planned:
    price = cost(group)
    left = dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name not in rows))
    return Planned(group, price, len(left.trials), price.seconds(left, devices) if left.trials else 0.0)


def _replicated(planned: list[Planned], execution: Execution) -> Iterator[str]:
    """Axes of weights that are replicated over the mesh, where the runs have one."""
    mesh = execution.device_groups()[0].mesh
    if mesh is not None:
        trees = [model.specs(one.group.example.model) for one in planned]
        found = dict.fromkeys(line for tree in trees for line in replicated_axes(tree, mesh))
        yield from (f"Replicated on the mesh: {line}." for line in found)


def programs_table(planned: list[Planned]) -> Table:
    """A row per program: runs to train, parameters, and the cost of a step."""
    rows = [
        [
            one.group.name,
            f"{one.left} of {len(one.group.trials)}",
            f"{one.cost.parameters:,}",
            f"{one.cost.flops_per_step / 1e6:,.0f}",
            f"{one.cost.bytes_per_member / 1e6:,.0f}",
            f"{one.cost.seconds_per_step * 1e3:.1f}",
            duration(one.seconds),
        ]
        for one in planned
    ]
    return Table("", ["program", "to train", "parameters", "MFLOP /step", "MB /run", "ms /step", "time"], rows, 1)


def weights_table(config: ModelConfig) -> Table:
    """A model's weights as they are declared; equal weights of several layers share a row."""
    copies: dict[tuple[str, Spec], int] = {}
    for path, spec in params.table(model.specs(config)):
        name = re.sub(r"^blocks/\d+/", "blocks/*/", path)
        copies[name, spec] = copies.get((name, spec), 0) + 1
    rows = [
        [
            name,
            " × ".join(map(str, spec.shape)),
            str(n),
            f"{n * math.prod(spec.shape):,}",
            "yes" if spec.decay else "no",
        ]
        for (name, spec), n in copies.items()
    ]
    return Table("", ["weight", "shape", "copies", "parameters", "weight decay"], rows, 2)
