"""Memory traffic of a compiled program: the bytes that its kernels read and write, by part of the model.

Instructions that are not fused into others are kernels, which read their operands and write their results. Where a
kernel reads slices or rows of an operand, only these count; where it updates an operand in place, only the update.
Arrays in the memory of a core (on a TPU) do not count. Small arrays count even if they stay in a cache.
"""

import math
import operator
import re
from collections.abc import Iterator
from typing import NamedTuple

from flaxformer.targets.texts import Instruction, arrays, callees, computations, instructions, run_counts

PARTS = ("embedding", "attention", "cross_attention", "feed_forward", "head", "loss", "optimizer")
"""Parts that kernels are attributed to, by the scopes in the names of their instructions; all others are "other"."""
_FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "opt-barrier", "partition-id", "replica-id", "add-dependency",
)  # fmt: skip
"""Instructions that move no arrays themselves."""
_FUSIONS = ("fusion", "async-start")
"""Instructions that compute what a computation says."""
_SLICES = ("dynamic-slice", "slice", "gather")
"""Instructions that read a part of their first operand, as large as their result."""
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that change their first operand in place, by the place of the update among their operands."""


class KernelTraffic(NamedTuple):
    """Traffic of one kernel.

    Args:
      name: of its instruction in the program.
      scope: of its instruction, see `Instruction.scope`; if that has none, the scope of what reads its result.
      read, written: bytes each time that it runs.
      runs: how often it runs.
    """

    name: str
    scope: str
    read: int
    written: int
    runs: int

    @property
    def bytes(self) -> int:
        """Bytes that it reads and writes in all."""
        return self.runs * (self.read + self.written)

    @property
    def part(self) -> str:
        """The part of the model."""
        return part_of(self.scope)


def part_of(scope: str) -> str:
    """Return the last of `PARTS` among the scopes of an instruction, or "other"."""
    names = re.findall(r"\w+", scope)
    return next((name for name in reversed(names) if name in PARTS), "other")


def direction_of(scope: str) -> str:
    """Return "backward" or "forward" for an instruction of the loss and its gradient, and "" for all others.

    JAX's names of transformations in a scope say it: `jvp` of the forward pass, whose transpose is the backward pass,
    and `remat` for what is computed again in it.
    """
    if "transpose(" in scope or "rematted_computation" in scope:
        return "backward"
    return "forward" if "jvp(" in scope else ""


def kernels_of(text: str) -> list[KernelTraffic]:
    """Return the kernels of a compiled program, those with most traffic first.

    Args:
      text: the program, as `jax.stages.Compiled.as_text` gives it.
    """
    lines = computations(text)
    counts, bodies = run_counts(lines), {name: instructions(body_lines) for name, body_lines in lines.items()}
    within_kernels = {
        name
        for body in bodies.values()
        for instruction in body.values()
        if instruction.kind not in ("while", "conditional", "call")
        for name in callees(instruction.line)
    }
    running = [name for name in bodies if name in counts and name not in within_kernels]
    kernels = (kernel for name in running for kernel in _kernels(bodies[name], bodies, counts[name][0]))
    return sorted(kernels, key=lambda kernel: -kernel.bytes)


def traffic_by_part(kernels: list[KernelTraffic]) -> dict[str, int]:
    """Return the bytes that kernels read and write, by part, the part of most bytes first."""
    totals: dict[str, int] = {}
    for kernel in kernels:
        totals[kernel.part] = totals.get(kernel.part, 0) + kernel.bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


_Body = dict[str, Instruction]


def _kernels(body: _Body, bodies: dict[str, _Body], runs: int) -> Iterator[KernelTraffic]:
    """Yield the kernels of a computation that runs `runs` times."""
    scopes = _scopes(body)
    for instruction in body.values():
        if instruction.kind in _FREE or instruction.kind.endswith("-done"):
            continue
        sizes, written = [_bytes(operand) for operand in instruction.operand_types], _bytes(instruction.type)
        if instruction.kind.endswith("-start") and instruction.kind != "all-reduce-start":
            written -= sum(sizes)  # its results are its operands, what it computes, and contexts
        inside = (
            [bodies[name] for name in callees(instruction.line) if name in bodies]
            if instruction.kind in _FUSIONS
            else []
        )
        if inside:
            shares = _shares_read_within(inside[0], len(sizes))
            written -= sum(map(_kept_in_place, inside[0].values()))
        else:
            shares = [_share_read(instruction, place) for place in range(len(sizes))]
            written -= _kept_in_place(instruction)
        yield KernelTraffic(
            instruction.name,
            scopes[instruction.name],
            int(sum(map(operator.mul, sizes, shares))),
            max(written, 0),
            runs,
        )


def _scopes(body: _Body) -> dict[str, str]:
    """Return the scope of each instruction; of one that the compiler inserted, such as a copy, that of its reader."""
    scopes: dict[str, str] = {}
    for instruction in reversed(body.values()):  # readers come after what they read
        scope = instruction.scope or scopes.get(instruction.name, "")
        scopes[instruction.name] = scope
        if scope:
            scopes.update(dict.fromkeys(instruction.operands, scope))
    return scopes


def _bytes(of_type: str) -> int:
    """Bytes of the arrays of a type that are in the memory of the device."""
    return sum(array.bytes for array in arrays(of_type) if array.is_in_memory)


def _numbers(of_type: str) -> list[int]:
    """Numbers of each array of a type."""
    return [math.prod(array.shape) for array in arrays(of_type)]


def _shares_read_within(body: _Body, count: int) -> list[float]:
    """Return the share that a fused computation reads of each of its parameters.

    An instruction is read as far as its readers read it. A reader that computes each number from one number needs only
    as many as are read of itself: of a converted table, the rows that are gathered.
    """
    shares: dict[str, float] = {}
    for instruction in reversed(body.values()):  # readers come after what they read
        used = min(1.0, shares.get(instruction.name, 1.0))
        for place, (name, of_type) in enumerate(zip(instruction.operands, instruction.operand_types, strict=True)):
            is_elementwise = _numbers(instruction.type) == _numbers(of_type)
            share = _share_read(instruction, place) * (used if is_elementwise else 1.0)
            shares[name] = shares.get(name, 0.0) + share
    parameters = {
        instruction.number: instruction.name for instruction in body.values() if instruction.kind == "parameter"
    }
    return [min(1.0, shares.get(parameters.get(number, ""), 1.0)) for number in range(count)]


def _share_read(reader: Instruction, place: int) -> float:
    """Return the share of an operand that an instruction reads."""
    if place == 0 and reader.kind in _UPDATES:
        return 0.0
    if place == 0 and reader.kind in _SLICES:
        return min(1.0, sum(_numbers(reader.type)) / max(1, sum(_numbers(reader.operand_types[0]))))
    return 1.0


def _kept_in_place(instruction: Instruction) -> int:
    """Return the bytes of a result that an update in place leaves; a scatter also reads what it adds to."""
    if instruction.kind not in _UPDATES:
        return 0
    size = sum(array.bytes for array in arrays(instruction.type))
    update = sum(array.bytes for array in arrays(instruction.operand_types[_UPDATES[instruction.kind]]))
    return size - min(size, (2 if instruction.kind == "scatter" else 1) * update)
