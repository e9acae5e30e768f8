"""The command `flaxformer plan FILE`."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from flaxformer import model
from flaxformer.analysis import noise
from flaxformer.cli import target
from flaxformer.cli.arguments import Plan
from flaxformer.cli.remat import remat_table
from flaxformer.cli.show import show_data
from flaxformer.cli.study import load
from flaxformer.cli.terminal import print_json
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.params import Spec
from flaxformer.devices.sharding import replicated_axes
from flaxformer.report import power
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import plan_of, store_of
from flaxformer.runner.stages import describe_stages
from flaxformer.statistics.finite import finite
from flaxformer.store.columns import statuses
from flaxformer.study.claim import Claim
from flaxformer.study.declare import Study
from flaxformer.study.equal_cost import describe_matches
from flaxformer.study.evaluation_data import data_limits_of
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_cost import Cost, cost, slow_decoding
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.study.tracing import check_traces
from flaxformer.system.digests import JsonObject
from flaxformer.system.wording import count_of, duration, with_prefix
from flaxformer.training.flops import uncounted_primitives
from flaxformer.training.memory import excess


@dataclasses.dataclass(frozen=True)
class Planned:
    """One compiled program: its cost, and the runs that are left to train."""

    group: ProgramGroup
    cost: Cost
    left: int
    seconds: float


def main(arguments: Plan, console: Console) -> int:
    """Print the runs, programs and time; then a row per program; then the weights, where they are asked for."""
    if arguments.target is not None:
        return target.main(arguments, console)
    declared, execution = load(arguments)
    plan = plan_of(declared, execution)
    study, programs = plan.study, plan.groups
    devices = len(execution.device_groups())
    ended = statuses(store_of(study, execution))
    if not arguments.json:
        console.print(Text(study.question, style="bold"))
    if not any(excess(group.example) for group in programs):
        check_traces(study)
    with console.status("compiling and timing one step of each program"):
        planned = [_plan_program(group, ended, devices) for group in programs]
    lines = _describe(plan, planned, execution)
    if arguments.json:
        print_json(_as_json(study, planned, lines, floor_of(study, execution)))
        return 0
    for line in lines:
        console.print(line)
    show_data(study.baseline.task, console)
    console.print()
    console.print(fit_width(programs_table(planned), console.width))
    if arguments.weights:
        console.print()
        console.print(fit_width(weights_table(study.baseline.model), console.width))
    if arguments.remat and not any(program.cost.excess for program in planned):
        console.print()
        console.print(fit_width(remat_table(study.baseline), console.width))
    return 0


def _describe(plan: StudyPlan, planned: Sequence[Planned], execution: Execution) -> list[str]:
    """Return the sentences of a plan: its size, time, costs, claims and power."""
    study = plan.study
    runs, left = sum(len(program.group.trials) for program in planned), sum(program.left for program in planned)
    too_large = [program for program in planned if program.cost.excess]
    size = f"{count_of(len(study.arms()), 'arm')} × {count_of(len(study.seeds), 'seed')} = {count_of(runs, 'run')}"
    return [
        f"{size} in {count_of(len(planned), 'compiled program')} on {execution.where}.",
        *(f"{program.group.name} {program.cost.excess}." for program in too_large),
        _time_left(left, sum(program.seconds for program in planned)),
        *describe_matches(study.compare, study.matches, study.baseline),
        *_flops(planned),
        *dict.fromkeys(f"Formulations: {program.cost.formulations}." for program in planned if not program.cost.excess),
        *describe_stages(plan, execution),
        *_describe_replicated(planned, execution),
        *slow_decoding(arm.run.model for arm in study.arms()),
        *([] if too_large else data_limits_of(study)),
        f"{count_of(len(study.claims), 'claim')}, judged on {study.metric}, with Holm's correction."
        if study.claims
        else f"No claim is declared; the report shows {study.metric} for every arm.",
        *power.describe(study, floor_of(study, execution)),
    ]


def _as_json(study: Study, planned: Sequence[Planned], lines: Sequence[str], floor: noise.Noise | None) -> JsonObject:
    """Return a plan as plain data; seconds that are unknown are None."""
    programs = [
        {
            "program": program.group.name,
            "runs": len(program.group.trials),
            "left": program.left,
            "seconds": finite(program.seconds),
            "flops_per_step": program.cost.flops_per_step if not program.cost.excess else None,
            "too_large": program.cost.excess or None,
        }
        for program in planned
    ]
    return {
        "format": 1,
        "study": study.name,
        "question": study.question,
        "metric": study.metric,
        "arms": [arm.name for arm in study.arms()],
        "seeds": list(study.seeds),
        "claims": [claim.text for claim in study.claims],
        "programs": programs,
        "left": sum(program.left for program in planned),
        "seconds": finite(sum(program.seconds for program in planned)),
        **_power_json(study, floor),
        "lines": list(lines),
    }


def floor_of(study: Study, execution: Execution) -> noise.Noise | None:
    """Return the noise floor in the folder beside that of a study, if it is that of its metric."""
    floor = noise.read(noise.folder_of(store_of(study, execution).root))
    return floor if floor is not None and floor.metric == study.metric else None


def _power_json(study: Study, floor: noise.Noise | None) -> JsonObject:
    """Return the effect that the study's seeds find, and the seeds that each claim needs; None where unknown."""
    family = max(len(study.claims), 1)
    finds = None if floor is None else finite(floor.finds(len(study.seeds), family))
    seeds = [
        None if floor is None or not isinstance(claim, Claim) else power.seeds_needed(claim, floor, family)
        for claim in study.claims
    ]
    return {"finds": finds, "seeds_needed": seeds}


def _time_left(left: int, seconds: float) -> str:
    if not left:
        return "All are trained."
    return f"{left} to train, in about {duration(seconds)}." if math.isfinite(seconds) else f"{left} to train."


def _plan_program(group: ProgramGroup, ended: Mapping[str, str], devices: int) -> Planned:
    price = cost(group)
    left = dataclasses.replace(group, trials=tuple(trial for trial in group.trials if trial.name not in ended))
    return Planned(group, price, len(left.trials), price.seconds(left, devices) if left.trials else 0.0)


def _describe_replicated(planned: Sequence[Planned], execution: Execution) -> Iterator[str]:
    """Axes of weights that are replicated over the mesh, where the runs have one."""
    mesh = execution.device_groups()[0].mesh
    if mesh is not None:
        trees = [model.specs(program.group.example.model) for program in planned]
        lines = dict.fromkeys(line for tree in trees for line in replicated_axes(tree, mesh))
        yield from (f"Replicated on the mesh: {line}." for line in lines)


def _flops(planned: Sequence[Planned]) -> Iterator[str]:
    """FLOPs of the runs, their comparison with XLA's count, and the programs of which they are a lower bound."""
    each = [program.cost.flops_per_step * program.group.steps for program in planned]
    low, high = (with_prefix(flops, "FLOP") for flops in (min(each), max(each)))
    total = sum(flops * len(program.group.trials) for flops, program in zip(each, planned, strict=True))
    text = f"{low if low == high else f'{low} to {high}'} per run in matrix products, "
    text += f"{with_prefix(total, 'FLOP')} together"
    costs = [program.cost for program in planned]
    ratios = [cost.compiled_flops / cost.flops_per_step for cost in costs if cost.flops_per_step]
    if ratios and min(ratios) > 0:
        low, high = (f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
        text += f"; XLA counts {low if low == high else f'{low} to {high}'} times as many, with elementwise operations"
    yield f"{text}."
    for program in planned:
        if not program.cost.excess and (names := uncounted_primitives(program.group.example)):
            yield f"The FLOPs of {program.group.name} are a lower bound: it has {', '.join(names)}."


def programs_table(planned: list[Planned]) -> Table:
    """A row per program: runs to train, parameters, and the cost of a step."""
    rows = [
        [
            program.group.name,
            f"{program.left} of {len(program.group.trials)}",
            f"{program.cost.parameters:,}",
            with_prefix(program.cost.flops_per_step, "") if program.cost.flops_per_step else "–",
            f"{program.cost.bytes_per_member / 1e6:,.0f}",
            f"{program.cost.seconds_per_step * 1e3:.1f}" if math.isfinite(program.seconds) else "–",
            duration(program.seconds) if math.isfinite(program.seconds) else "–",
        ]
        for program in planned
    ]
    return Table("", ["program", "to train", "parameters", "FLOP /step", "MB /run", "ms /step", "time"], rows, 1)


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
