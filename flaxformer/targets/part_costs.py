"""Cost of a measured training step by part of the model: time, FLOPs, memory traffic, and the roofline of each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flaxformer.targets.devices import Device
from flaxformer.targets.roofline import Roofline
from flaxformer.targets.traffic import KernelTraffic, direction_of, part_of


class PartCost(NamedTuple):
    """Cost of a part of the model in one direction of one step, on each device.

    Args:
      part: one of `targets.traffic.PARTS`, or "other".
      direction: "forward", "backward", or "" outside of the loss and its gradient.
      seconds: time of its kernels in the trace.
      flops: FLOPs of its products, as `training.flops` counts them.
      bytes: bytes that its kernels read and write.
      bound: bounds of its time; None for a device without published figures, as for a CPU.
    """

    part: str
    direction: str
    seconds: float
    flops: float
    bytes: float
    bound: Roofline | None


def part_costs(
    kernels: Sequence[KernelTraffic],
    seconds: Mapping[str, float],
    flops: Mapping[str, int],
    steps: tuple[int, int],
    devices: int,
    device: Device | None,
    precision: str,
) -> list[PartCost]:
    """Return the costs of a step by part and direction, those of most time first.

    An instruction that is in the trace and no kernel, such as a loop, is the time of those within it, and not counted.

    Args:
      kernels: of the compiled program (`targets.traffic.kernels_of`).
      seconds: time of each instruction in the trace, over all devices.
      flops: FLOPs of a step by scope, over all devices.
      steps: number of steps in the trace, and in one run of the program.
      devices: number of devices.
      device: facts about them.
      precision: of the run's products.
    """
    traced, in_program = steps
    costs: dict[tuple[str, str], PartCost] = {}

    def add(scope: str, seconds: float = 0.0, flops: float = 0.0, size: float = 0.0) -> None:
        part = part_of(scope)
        key = part, "" if part in ("other", "optimizer") else direction_of(scope)
        before = costs.get(key, PartCost(*key, 0.0, 0.0, 0.0, None))
        costs[key] = PartCost(*key, before.seconds + seconds, before.flops + flops, before.bytes + size, None)

    for kernel in kernels:
        time = seconds.get(kernel.name, 0.0) / devices / traced
        add(kernel.scope, seconds=time, size=kernel.bytes / in_program)
    for scope, count in flops.items():
        add(scope, flops=count / devices)
    return sorted((_with_bound(cost, device, precision) for cost in costs.values()), key=lambda cost: -cost.seconds)


def total_cost(costs: Sequence[PartCost], device: Device | None, precision: str) -> PartCost:
    """Return the sum of costs, with its roofline."""
    seconds, flops, size = (sum(getattr(cost, name) for cost in costs) for name in ("seconds", "flops", "bytes"))
    return _with_bound(PartCost("total", "", seconds, flops, size, None), device, precision)


def _with_bound(cost: PartCost, device: Device | None, precision: str) -> PartCost:
    """The cost with the bounds of its time, if the device has published figures of both."""
    peak = None if device is None else device.peak(precision)
    if device is None or not peak or not device.bandwidth:
        return cost
    return cost._replace(bound=Roofline(compute=cost.flops / peak, memory=cost.bytes / device.bandwidth, network=0.0))
