"""`flaxformer plan FILE --target …`: a job or a study, compiled for accelerators that need not be there."""

import contextlib
from collections.abc import Iterable, Sequence

import jax
from rich.console import Console
from rich.text import Text

from flaxformer.cli.arguments import Plan
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.child_process import ChildFailedError
from flaxformer.cli.target_programs import Compiler, load, program_groups
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.jobs.peak import model_flops
from flaxformer.nn.formulations import FormulationChoice
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.study.declare import Study
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of
from flaxformer.targets.compiler import NotCompiled
from flaxformer.targets.devices import Device
from flaxformer.targets.limits import Largest, largest
from flaxformer.targets.program import CompiledStep, TargetMemory
from flaxformer.targets.roofline import Roofline, roofline
from flaxformer.targets.suggestions import kernel_suggestions, suggestions
from flaxformer.targets.topology import Target, parse_target
from flaxformer.targets.traffic import traffic_by_part
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.run import Run

GIB = 2**30
SHOWN = 8
"""Collectives that are listed; the others are added up."""


def main(arguments: Plan, console: Console) -> int:
    """Compile the file's study or run for the target, and print what it needs; 1 if a figure is not known."""
    target, mesh = _target_and_mesh(arguments)
    jax.config.update("jax_platforms", "cpu")  # attached devices are left alone
    planned = load(arguments)
    with Compiler(arguments) as compiler, contextlib.suppress(ChildFailedError):  # its traceback was printed
        if isinstance(planned, Study):
            plan_study(planned, compiler, target, mesh, console)
        else:
            plan_run(planned, compiler, target, mesh, console)
        return FAILED if compiler.has_failed else 0
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


def plan_run(run: Run, compiler: Compiler, target: Target, mesh: Devices | None, console: Console) -> None:
    """Print the plan of a job: one program over all devices of its mesh."""
    if mesh is None and target.count > 1:
        mesh = Devices(data=target.count)
    check_batch(run, mesh or Devices())
    with console.status("compiling"):
        program = compiler.compile(mesh)
    where, is_quick = str(target) if mesh is None else f"{target}, mesh {mesh}", compiler.arguments.quick
    if isinstance(program, NotCompiled):
        _print(console, [f"{where}: not known: {program.reason}"])
    else:
        _print_program(run, target, mesh, program, where, console)
    if not is_quick:
        _print(console, [_largest_batch(run, mesh, program, compiler, console)])
    if isinstance(program, CompiledStep) and not program.fits:
        _suggest(run, target, mesh, None if is_quick else compiler, program, console)


def _print_program(
    run: Run, target: Target, mesh: Devices | None, program: CompiledStep, where: str, console: Console
) -> None:
    """Print the memory, kernels, communication, time and traffic of a job's program."""
    flops = model_flops(run) / (1 if mesh is None else mesh.count)
    _print(console, [f"{where}: {_verdict(program)}", f"compiled in {program.seconds:.0f} s on this machine"])
    console.print(fit_width(memory_table([("step", program)]), console.width))
    _print(console, formulation_lines(program.choices))
    if program.collectives:
        console.print(fit_width(collectives_table(program), console.width))
    if not program.error:
        _print(console, [step_line(flops, roofline(program, target.device, flops, run.training.precision))])
        console.print(fit_width(traffic_table(program, target.device), console.width))
        _print(console, [transfers_line(program)])


def _largest_batch(
    run: Run, mesh: Devices | None, program: CompiledStep | NotCompiled, compiler: Compiler, console: Console
) -> str:
    """Return the largest batch that fits, in words."""
    divisor = (run.training.micro_batches or 1) * run.buckets
    unit = divisor * (1 if mesh is None else mesh.batch)

    def at(size: int) -> CompiledStep | NotCompiled:
        with console.status(f"compiling for a batch of {size:,}"):
            return compiler.compile(mesh, {"task.batch_size": size})

    limit = largest(at, run.task.batch_size, unit, program)
    return f"largest batch_size: {limit.describe()}; now {run.task.batch_size:,}"


def _suggest(
    run: Run, target: Target, mesh: Devices | None, compiler: Compiler | None, program: CompiledStep, console: Console
) -> None:
    """Print changes that need less memory, with what each needs."""
    _print(console, kernel_suggestions(program.choices, target.device.platform))
    for suggestion in suggestions(run, target, mesh):
        if compiler is None:
            _print(console, [f"try {suggestion.text}"])
            continue
        with console.status(f"compiling with {suggestion.text}"):
            changed = compiler.compile(suggestion.mesh, suggestion.changes)
        _print(console, [f"with {suggestion.text}: {_verdict(changed)}"])


def plan_study(study: Study, compiler: Compiler, target: Target, mesh: Devices | None, console: Console) -> None:
    """Print the plan of a study: each program with the group of runs that a device or a mesh trains together."""
    arguments = compiler.arguments
    sharing = max(1, target.count // (1 if mesh is None else mesh.count))
    console.print(Text(study.question, style="bold"))
    rows, results = [], []
    for index, group in enumerate(program_groups(arguments)):
        run = group.example
        check_batch(run, mesh or Devices())
        size = 1 if arguments.exact else min(group.size, arguments.group_size or -(-group.size // sharing))

        def at(number: int, index: int = index, name: str = group.name) -> CompiledStep | NotCompiled:
            with console.status(f"{name}: compiling for {count_of(number, 'run')} together"):
                return compiler.compile(mesh, group=index, number=number)

        program = at(size)
        flops = size * model_flops(run) / (1 if mesh is None else mesh.count)
        bound = None
        if isinstance(program, CompiledStep) and not program.error:
            bound = roofline(program, target.device, flops, run.training.precision)
        limit = None if arguments.quick else largest(at, size, 1, program, group.size)
        rows.append(study_row(group, size, program, bound, limit))
        results.append((group.name, program, limit))
    where = str(target) if mesh is None else f"{target}, mesh {mesh} per group"
    _print_study(where, rows, results, console)


def _print_study(
    where: str,
    rows: list[list[str]],
    results: list[tuple[str, CompiledStep | NotCompiled, Largest | None]],
    console: Console,
) -> None:
    """Print the programs of a study, their memory and kernels, and why figures are not known."""
    known = [(name, program) for name, program, _ in results if isinstance(program, CompiledStep)]
    fits = sum(program.fits for _, program in known)
    verdict = "fits" if fits == len(results) else "does not fit" if fits < len(known) else "not known"
    _print(console, [f"{where}: {verdict}, {fits} of {count_of(len(results), 'program')}"])
    header = ["program", "runs", "together", "fits", "GiB", "step ≥ ms", "limited by", "largest group"]
    console.print(fit_width(Table("", header, rows, 1), console.width))
    if known:
        console.print(fit_width(memory_table(known), console.width))
    _print(
        console, formulation_lines(tuple(dict.fromkeys(choice for _, program in known for choice in program.choices)))
    )
    for name, program, limit in results:
        if limit is not None:
            _print(console, (f"{name}, {number:,} together: not known: {why}" for number, why in limit.not_compiled))
        elif isinstance(program, NotCompiled):
            _print(console, [f"{name}: not known: {program.reason}"])
    if fits < len(known):
        _print(console, ["fewer runs together: --group-size; one run over several devices: --mesh fsdp=N"])


def study_row(
    group: ProgramGroup, size: int, program: CompiledStep | NotCompiled, bound: Roofline | None, limit: Largest | None
) -> list[str]:
    """Return the row of a program of a study."""
    return [
        group.name,
        str(len(group.trials)),
        str(size),
        "not known" if isinstance(program, NotCompiled) else "yes" if program.fits else "no",
        "" if isinstance(program, NotCompiled) else gib(program.needed),
        "" if bound is None else f"{bound.seconds * 1e3:.2g}",
        "" if bound is None else bound.limit,
        "" if limit is None else limit.describe_range(group.size),
    ]


def _verdict(program: CompiledStep | NotCompiled) -> str:
    """Return in words if a program fits, and the bytes."""
    if isinstance(program, NotCompiled):
        return f"not known: {program.reason}"
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


def formulation_lines(choices: tuple[FormulationChoice, ...]) -> list[str]:
    """Return the formulations of the functions, and why no earlier one of a table: of attention, for every call."""
    lines = []
    for choice in choices:
        why = f" ({'; '.join(choice.reasons)})" if choice.reasons else ""
        is_attention = choice.function == "attention"
        call = f": {choice.call}{why}" if is_attention else ""
        if is_attention or choice.formulation != "reference":
            lines.append(f"{choice.function} by {choice.formulation}{call}")
    return list(dict.fromkeys(lines))


def collectives_table(program: CompiledStep) -> Table:
    """Collectives of a step, those that send most first."""
    rows = [
        [
            f"{collective}",
            str(collective.group),
            str(collective.count) if collective.is_known else f"≥ {collective.count}",
            three_digits(collective.bytes / 1e6),
            three_digits(collective.sent_bytes / 1e6),
        ]
        for collective in program.collectives[:SHOWN]
    ]
    if remaining := program.collectives[SHOWN:]:
        count, sent = (sum(getattr(collective, name) for collective in remaining) for name in ("count", "sent_bytes"))
        rows.append([f"{len(remaining)} more", "", str(count), "", three_digits(sent / 1e6)])
    return Table("", ["collective", "devices", "per step", "MB", "MB sent"], rows, 1)


def traffic_table(program: CompiledStep, device: Device) -> Table:
    """Bytes that a step's kernels read and write, by part of the model, and their time at the memory's bandwidth."""
    kernels = program.kernels
    traffic = {**traffic_by_part(kernels), "total": sum(kernel.bytes for kernel in kernels)}
    rows = [
        [name, three_digits(count / 1e6), three_digits(count / device.bandwidth * 1e3)]
        for name, count in traffic.items()
    ]
    return Table("", ["memory traffic of a step", "MB", f"ms at {device.bandwidth / 1e12:.3g} TB/s"], rows, 1)


def step_line(flops: float, bound: Roofline) -> str:
    """The roofline in words."""
    times = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in bound._asdict().items())
    return f"a step takes at least {bound.seconds * 1e3:.3g} ms, limited by {bound.limit} ({times}); " + (
        f"{flops / 1e12:.3g} TFLOP of the model per device and step"
    )


def transfers_line(program: CompiledStep) -> str:
    """The transfers between device and host within a step, in words."""
    transfers = ", ".join(f"{count} × {name}" for name, count in program.transfers.items())
    return f"within a step, the device and the host exchange: {transfers or 'nothing'}"


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line)
