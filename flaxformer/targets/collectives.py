"""Collective operations of a compiled program, read from its text, with their bytes and how often they run.

Source of the bytes that a ring moves: Chan et al. 2007, "Collective communication: theory, practice, and experience".
"""

import dataclasses
import math

from flaxformer.targets.texts import (
    channel_of,
    collectives_in,
    computations,
    fused_computations,
    number_bytes,
    run_counts,
)


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
    def sent_bytes(self) -> float:
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
    fused = fused_computations(bodies)
    channels: dict[str, tuple[int, list[Collective]]] = {}
    for name, lines in bodies.items():
        count, is_known = counts.get(name, (0, True))
        for number, line in enumerate(lines if count else ()):
            if line_collectives := [
                Collective(kind, array.dtype, array.shape, group, count, is_known)
                for kind, array, group in collectives_in(line, devices, name)
            ]:
                # The parts of an asynchronous collective that a TPU computes beside other work are in fusions, and have
                # its channel. On GPUs, all collectives may have one channel.
                channel = channel_of(line) if name in fused else None
                key = channel or f"{name} {number}"
                channels[key] = max(channels.get(key, (0, [])), (count, line_collectives), key=lambda entry: entry[0])
    total: dict[Collective, int] = {}
    for collective in (member for _, members in channels.values() for member in members):
        kind = dataclasses.replace(collective, count=0)
        total[kind] = total.get(kind, 0) + collective.count
    return sorted(
        (dataclasses.replace(kind, count=count) for kind, count in total.items()),
        key=lambda collective: -collective.sent_bytes,
    )
