"""Collective operations of a compiled program, read from its text, with their bytes and how often they run.

Source of the bytes that a ring moves: Chan et al. 2007, "Collective communication: theory, practice, and experience".
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from flaxformer.targets.program_text import arrays, callees, computations, number_bytes, run_counts

NAMES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_OPERATION = re.compile(rf"= (?P<result>.*?) (?P<name>{'|'.join(NAMES)})(?P<phase>-start|-done)?\(")


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
        return number_bytes(self.dtype) * math.prod(self.shape)

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
    bodies = computations(text)
    counts = run_counts(bodies)
    fused = {name for lines in bodies.values() for line in lines if " fusion(" in line for name in callees(line)}
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
    shapes = [(own.dtype, own.shape) for own in arrays(match["result"])]
    if match["phase"] == "-start" and match["name"] != "all-reduce":  # operands, results, and contexts
        given = [own for own in shapes if own[1]]
        shapes = given[len(given) // 2 :] if len(given) > 1 else given
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
