"""Collective operations of a compiled program, read from its text, with their bytes and how often they run.

Source of the text's form: openxla.org/xla/operation_semantics; of the bytes that a ring moves: Chan et al. 2007,
"Collective communication: theory, practice, and experience".
"""

import dataclasses
import math
import re
from collections.abc import Iterator

WIDTHS = {"pred": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}
"""Bytes per number of the types whose name does not end in a number of bits."""
NAMES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_OPERATION = re.compile(rf"= (?P<result>.*?) (?P<name>{'|'.join(NAMES)})(?P<phase>-start|-done)?\(")
_SHAPE = re.compile(r"\b(pred|bf16|f8\w+|[a-z]\d+)\[([\d,]*)\]")
_CALL = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=(?:\{([^}]*)\}|%?([\w.\-]+))")
_HEADER = re.compile(r"^(?:ENTRY )?(%?[\w.\-]+) .*\{$")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of collective of one array.

    Args:
      name: such as "all-gather".
      dtype: such as "bf16".
      shape: of the result on a device; of the operand for a reduce-scatter.
      group: number of devices that take part.
      count: how often it runs per step.
      is_known: False if it is in a loop whose number of iterations is unknown, which counts once.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    group: int
    count: int
    is_known: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of the array."""
        return _width(self.dtype) * math.prod(self.shape)

    @property
    def moved(self) -> float:
        """Bytes that each device sends per step, in a ring."""
        share = (self.group - 1) / self.group if self.group > 1 else 0.0
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0, "collective-broadcast": 1.0}
        return self.count * self.bytes * factor.get(self.name, share)

    def __str__(self) -> str:
        size = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return f"{self.name} {size}"


def collectives_of(text: str, devices: int) -> list[Collective]:
    """Return the collectives of a compiled program, equal ones added, those that move most bytes first.

    Args:
      text: the program, as `jax.stages.Compiled.as_text` gives it.
      devices: number of devices, for collectives of all of them.
    """
    bodies = _computations(text)
    counts, fused = _counts(bodies), _fused(bodies)
    channels: dict[str, tuple[int, list[Collective]]] = {}
    for name, lines in bodies.items():
        count, is_known = counts.get(name, (0, True))
        for number, line in enumerate(lines if count else ()):
            if own := [
                dataclasses.replace(found, count=count, is_known=is_known)
                for found in _collectives(line, devices, name)
            ]:
                # The parts of an asynchronous collective that a TPU computes beside other work are in fusions, and have
                # its channel. On GPUs, all collectives may have one channel.
                channel = re.search(r"channel_id=(\d+)", line) if name in fused else None
                key = channel[1] if channel else f"{name} {number}"
                channels[key] = max(channels.get(key, (0, [])), (count, own), key=lambda found: found[0])
    total: dict[Collective, int] = {}
    for one in (found for _, own in channels.values() for found in own):
        kind = dataclasses.replace(one, count=0)
        total[kind] = total.get(kind, 0) + one.count
    return sorted((dataclasses.replace(kind, count=count) for kind, count in total.items()), key=lambda own: -own.moved)


def _collectives(line: str, devices: int, computation: str) -> Iterator[Collective]:
    """Yield each array of a collective, as if it ran once; nothing for other lines."""
    match = _OPERATION.search(line)
    if match is None or match["phase"] == "-done":
        return
    name = "reduce-scatter" if computation.startswith("all-reduce-scatter") else match["name"]  # a fusion on TPUs
    shapes = [
        (dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _SHAPE.findall(match["result"])
    ]
    if match["phase"] == "-start" and match["name"] != "all-reduce":  # operands, results, and contexts
        arrays = [own for own in shapes if own[1]]
        shapes = arrays[len(arrays) // 2 :] if len(arrays) > 1 else arrays
    group = _group(line, devices)
    for dtype, shape in shapes:
        if match["name"] == "reduce-scatter" and shape:
            shape = (shape[0] * group, *shape[1:])
        yield Collective(name, dtype, shape, group, 1)


def _group(line: str, devices: int) -> int:
    """Return the number of devices of each group of a collective."""
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return match[1].count(",") + 1
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line):
        return int(match[2])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", match[2])) or devices
    return devices


def _computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation of a program by its name; that of the entry is ""."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if lines is None and (match := _HEADER.match(line)):
            lines = found.setdefault("" if line.startswith("ENTRY") else match[1].lstrip("%"), [])
        elif line == "}":
            lines = None
        elif lines is not None:
            lines.append(line)
    return found


def _counts(bodies: dict[str, list[str]]) -> dict[str, tuple[int, bool]]:
    """Return how often each computation runs, and whether that is known."""
    found: dict[str, tuple[int, bool]] = {}

    def visit(name: str, count: int, is_known: bool) -> None:
        earlier, was_known = found.get(name, (0, True))
        found[name] = (earlier + count, was_known and is_known)
        for line in bodies.get(name, ()):
            trips: int | None = 1
            if re.search(r"\bwhile\(", line):
                trips = _trips(line, bodies)
            for several, single in _CALL.findall(line):
                for one in re.split(r"[,\s]+", several or single):
                    if (inner := one.lstrip("%")) in bodies:
                        visit(inner, count * (trips or 1), is_known and trips is not None)

    visit("", 1, True)
    return found


def _fused(bodies: dict[str, list[str]]) -> set[str]:
    """Return the computations that fusions call."""
    lines = (line for own in bodies.values() for line in own if " fusion(" in line)
    return {single.lstrip("%") for line in lines for _, single in _CALL.findall(line)}


def _trips(line: str, bodies: dict[str, list[str]]) -> int | None:
    """Return the number of iterations of a loop that counts up from 0, or None."""
    if match := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
        return int(match[1])
    match = re.search(r"condition=%?([\w.\-]+)", line)
    lines = bodies.get(match[1], []) if match else []
    bounds = [int(n) for own in lines for n in re.findall(r"s32\[\][^=]*? constant\((\d+)\)", own)]
    is_less = any("direction=LT" in own for own in lines)
    return bounds[0] if len(bounds) == 1 and is_less else None


def _width(dtype: str) -> int:
    """Bytes per number of a type."""
    return WIDTHS.get(dtype) or max(1, int(re.sub(r"\D", "", dtype) or 8) // 8)
