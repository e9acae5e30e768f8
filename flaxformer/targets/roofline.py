"""Roofline of a training step: the time below which it cannot be, and the resource that sets it.

Each device computes its share of the model's products at its peak; it reads and writes its state and its batch once,
and each temporary array once; and it sends its part of each collective. The largest of the three times is the bound,
as if all three ran at the same time.

Source: Williams et al. 2009, "Roofline: an insightful visual performance model for multicore architectures".
"""

from typing import NamedTuple

from flaxformer.targets.devices import Device
from flaxformer.targets.program import CompiledStep


class Roofline(NamedTuple):
    """Lower bounds of the seconds of a step, by resource."""

    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """The bound."""
        return max(self)

    @property
    def limit(self) -> str:
        """The resource that sets the bound."""
        return max(zip(self, ("compute", "memory bandwidth", "network"), strict=True))[1]


def roofline(program: CompiledStep, device: Device, flops: float, precision: str) -> Roofline:
    """Return the bounds of a program.

    Args:
      flops: FLOPs of a step on each device.
      precision: of the run's products.
    """
    peak = device.peak(precision)
    temporary = program.memory.logits + program.memory.activations
    sent = sum(collective.sent_bytes for collective in program.collectives)
    return Roofline(
        compute=flops / peak if peak else 0.0,
        memory=(program.traffic + 2 * temporary) / device.bandwidth,
        network=sent / device.link,
    )
