"""`flaxformer plan FILE --target …`: a job or a study, compiled for accelerators that need not be there."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax
from rich.console import Console
from rich.text import Text

from flaxformer.cli.arguments import Plan
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.child_process import ChildDiedError, call_in_process
from flaxformer.cli.study import load as load_study
from flaxformer.cli.terminal import safe_console
from flaxformer.core.overrides import override
from flaxformer.core.struct import replace_at
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.jobs.peak import model_flops
from flaxformer.nn.kernels import KernelChoice
from flaxformer.report.table import Table
from flaxformer.report.terminal import fitted
from flaxformer.runner.stages import resolve_study
from flaxformer.study.declare import Study
from flaxformer.study.load import load_module
from flaxformer.study.plan import ProgramGroup, groups
from flaxformer.system.errors import UserError
from flaxformer.system.wording import counted
from flaxformer.targets.devices import Device
from flaxformer.targets.limits import largest
from flaxformer.targets.program import CompiledStep, Placement, TargetMemory, compile_step
from flaxformer.targets.roofline import Roofline, roofline
from flaxformer.targets.suggestions import kernel_suggestions, suggestions
from flaxformer.targets.topology import Target, parse_target
from flaxformer.targets.traffic import traffic_by_part
from flaxformer.tasks.batch import Source
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.run import Run

GIB = 2**30
SHOWN = 8
"""Collectives that are listed; the others are added up."""


def main(arguments: Plan, console: Console) -> int:
    """Compile the file's study or run for the target in a process of its own, and print what it needs."""
    target, _ = _target_and_mesh(arguments)
    try:
        return call_in_process(compile_and_print, arguments)
    except ChildDiedError as error:
        text = f"the compiler for {target} ended its process ({error}); a smaller model or another mesh may compile"
        safe_console(is_error=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
        return FAILED


def _target_and_mesh(arguments: Plan) -> tuple[Target, Devices | None]:
    """Return the target and the mesh of a command.

    Raises:
      UserError: there is no such target, or the mesh has more devices.
    """
    assert arguments.target is not None
    target = parse_target(arguments.target)
    mesh = None if arguments.mesh is None else parse_devices(arguments.mesh)
    if mesh is not None and mesh.count > target.count:
        raise UserError(f"mesh is {mesh}, {mesh.count} devices; expected at most {target.count}, which {target} has")
    return target, mesh


def compile_and_print(arguments: Plan, console: Console | None = None) -> int:
    """Compile the file's study or run for the target in this process, and print what it needs."""
    target, mesh = _target_and_mesh(arguments)
    console = safe_console() if console is None else console
    jax.config.update("jax_platforms", "cpu")  # the data are read on the host, and attached devices are left alone
    target.devices()  # raises without the compiler
    module = load_module(arguments.file, "defines `study` or `run`")
    if isinstance(getattr(module, "study", None), Study):
        _plan_study(arguments, target, mesh, console)
    elif isinstance(run := getattr(module, "run", None), Run):
        _plan_run(override(run, arguments.overrides), arguments, target, mesh, console)
    else:
        raise UserError(f"'{arguments.file}' defines neither `study` nor `run`; expected Study(...) or Run(...)")
    return 0


def _plan_run(run: Run, arguments: Plan, target: Target, mesh: Devices | None, console: Console) -> None:
    """Print the plan of a job: one program over all devices of its mesh."""
    if mesh is None and target.count > 1:
        mesh = Devices(data=target.count)
    check_batch(run, mesh or Devices())
    source = run.task.load()

    def compiled(changed: Run, devices: Devices | None) -> CompiledStep:
        own = source if changed.task == run.task else changed.task.load()
        return compile_step(changed, Placement.of(target, devices), arguments.layout, source=own)

    with console.status("compiling"):
        program = compiled(run, mesh)
    flops = model_flops(run) / (1 if mesh is None else mesh.count)
    where = str(target) if mesh is None else f"{target}, mesh {mesh}"
    lines = [f"{where}: {_verdict(program)}", f"compiled in {program.seconds:.0f} s on this machine"]
    _print(console, lines)
    console.print(fitted(memory_table([("step", program)]), console.width))
    _print(console, kernel_lines(program.choices))
    if program.collectives:
        console.print(fitted(collectives_table(program), console.width))
    if not program.error:
        _print(console, [step_line(flops, roofline(program, target.device, flops, run.training.precision))])
        console.print(fitted(traffic_table(program, target.device), console.width))
        _print(console, [transfers_line(program)])
    if not arguments.quick:
        _print(console, [_largest_batch(run, mesh, program, compiled, console)])
    if not program.fits:
        _suggest(run, target, mesh, None if arguments.quick else compiled, program, console)


def _largest_batch(
    run: Run, mesh: Devices | None, program: CompiledStep, compiled: Callable[..., CompiledStep], console: Console
) -> str:
    """Return the largest batch that fits, in words."""
    parts = (run.training.micro_batches or 1) * run.buckets
    unit = parts * (1 if mesh is None else mesh.batch)

    def at(size: int) -> CompiledStep:
        with console.status(f"compiling for a batch of {size:,}"):
            return compiled(replace_at(run, {"task.batch_size": size}), mesh)

    found = largest(at, run.task.batch_size, unit, program)
    return f"largest batch_size: {found.describe()}; now {run.task.batch_size:,}"


def _suggest(
    run: Run,
    target: Target,
    mesh: Devices | None,
    compiled: Callable[..., CompiledStep] | None,
    program: CompiledStep,
    console: Console,
) -> None:
    """Print changes that need less memory, with what each needs."""
    _print(console, kernel_suggestions(program.choices, target.device.platform))
    for one in suggestions(run, target, mesh):
        if compiled is None:
            _print(console, [f"try {one.text}"])
            continue
        with console.status(f"compiling with {one.text}"):
            changed = compiled(one.run, one.mesh)
        _print(console, [f"with {one.text}: {_verdict(changed)}"])


def _plan_study(arguments: Plan, target: Target, mesh: Devices | None, console: Console) -> None:
    """Print the plan of a study: each program, for the group of runs that a device or a mesh trains together."""
    declared, execution = load_study(arguments)
    study = resolve_study(declared, dataclasses.replace(execution, mesh=None, devices=None))
    placement = Placement.of(target, mesh)
    sharing = max(1, target.count // (1 if mesh is None else mesh.count))
    console.print(Text(study.question, style="bold"))
    sources: dict[object, Source] = {}
    rows, results = [], []
    choices: dict[KernelChoice, None] = {}
    for group in groups(study.trials()):
        run = group.example
        check_batch(run, mesh or Devices())
        source = sources.setdefault(run.task, run.task.load())
        size = 1 if arguments.exact else min(group.size, arguments.group_size or -(-group.size // sharing))

        def at(number: int, run: Run = run, source: Source = source, name: str = group.name) -> CompiledStep:
            with console.status(f"{name}: compiling for {counted(number, 'run')} together"):
                return compile_step(run, placement, arguments.layout, number, source)

        program = at(size)
        flops = size * model_flops(run) / len(placement.devices)
        bound = None if program.error else roofline(program, target.device, flops, run.training.precision)
        limit = "" if arguments.quick else largest(at, size, 1, program, group.size).describe(group.size)
        rows.append(study_row(group, size, program, bound, limit))
        results.append((group.name, program))
        choices |= dict.fromkeys(program.choices)
    where = str(target) if mesh is None else f"{target}, mesh {mesh} per group"
    fits = sum(program.fits for _, program in results)
    verdict = "fits" if fits == len(results) else "does not fit"
    _print(console, [f"{where}: {verdict}, {fits} of {counted(len(results), 'program')}"])
    header = ["program", "runs", "together", "fits", "GiB", "step ≥ ms", "limited by", "largest group"]
    console.print(fitted(Table("", header, rows, 1), console.width))
    console.print(fitted(memory_table(results), console.width))
    _print(console, kernel_lines(tuple(choices)))
    if fits < len(results):
        _print(console, ["fewer runs together: --group-size; one run over several devices: --mesh fsdp=N"])


def study_row(group: ProgramGroup, size: int, program: CompiledStep, bound: Roofline | None, limit: str) -> list[str]:
    """Return the row of a program of a study."""
    return [
        group.name,
        str(len(group.trials)),
        str(size),
        "yes" if program.fits else "no",
        gib(program.needed),
        "" if bound is None else f"{bound.seconds * 1e3:.2g}",
        "" if bound is None else bound.limit,
        limit,
    ]


def _verdict(program: CompiledStep) -> str:
    """Return in words if a program fits, and the bytes."""
    needed = f"{gib(program.needed)} of " if program.needed else "more than "
    return f"{'fits' if program.fits else 'does not fit'}, {needed}{gib(program.available)} GiB per device"


def gib(count: float) -> str:
    """A number of GiB with three digits."""
    return three_digits(count / GIB)


def three_digits(value: float) -> str:
    """A number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def memory_table(programs: Sequence[tuple[str, CompiledStep]]) -> Table:
    """Bytes on each device, by kind."""
    header = ["GiB per device", *TargetMemory._fields, "total"]
    rows = [[name, *map(gib, program.memory), gib(program.needed)] for name, program in programs]
    return Table("", header, rows, 1)


def kernel_lines(choices: tuple[KernelChoice, ...]) -> list[str]:
    """The kernels of attention, and why no earlier one of the table."""
    lines = []
    for choice in choices:
        reasons = [reason for reason in choice.reasons if "needs a" not in reason and "is used on" not in reason]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        lines.append(f"attention by {choice.kernel}: {choice.call}{why}")
    return lines


def collectives_table(program: CompiledStep) -> Table:
    """Collectives of a step, those that send most first."""
    rows = [
        [
            f"{own}",
            str(own.group),
            str(own.count) if own.is_known else f"≥ {own.count}",
            three_digits(own.bytes / 1e6),
            three_digits(own.moved / 1e6),
        ]
        for own in program.collectives[:SHOWN]
    ]
    if rest := program.collectives[SHOWN:]:
        sent = sum(own.moved for own in rest)
        rows.append([f"{len(rest)} more", "", str(sum(own.count for own in rest)), "", three_digits(sent / 1e6)])
    return Table("", ["collective", "devices", "per step", "MB", "MB sent"], rows, 1)


def traffic_table(program: CompiledStep, device: Device) -> Table:
    """Bytes that a step's kernels read and write, by part of the model, and their time at the memory's bandwidth."""
    kernels = program.kernels
    parts = {**traffic_by_part(kernels), "total": sum(kernel.bytes for kernel in kernels)}
    rows = [
        [name, three_digits(count / 1e6), three_digits(count / device.bandwidth * 1e3)] for name, count in parts.items()
    ]
    return Table("", ["memory traffic of a step", "MB", f"ms at {device.bandwidth / 1e12:.3g} TB/s"], rows, 1)


def step_line(flops: float, bound: Roofline) -> str:
    """The roofline in words."""
    parts = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in bound._asdict().items())
    return f"a step takes at least {bound.seconds * 1e3:.3g} ms, limited by {bound.limit} ({parts}); " + (
        f"{flops / 1e12:.3g} TFLOP of the model per device and step"
    )


def transfers_line(program: CompiledStep) -> str:
    """The transfers between device and host within a step, in words."""
    found = ", ".join(f"{count} × {name}" for name, count in program.transfers.items())
    return f"within a step, the device and the host exchange: {found or 'nothing'}"


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, highlight=False)
