"""Settings of executing a study, apart from its definition; and the device groups that train its runs."""

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from flaxformer.model.layout import Layout
from flaxformer.sharding import Devices, device_put_global, replicated
from flaxformer.struct import UserError
from flaxformer.tasks.base import Source
from flaxformer.tasks.sharded import ShardedSource

FILLED = 0.8
"""Fraction of a device's memory that a program may take by the compiler's analysis, which does not see all."""


@dataclasses.dataclass(frozen=True)
class DeviceGroup:
    """Where members are trained: one device, or a mesh over which the weights and batches of each are cut."""

    devices: tuple[jax.Device, ...]
    mesh: Mesh | None = None

    def __str__(self) -> str:
        others = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
        return f"{self.devices[0]}{others}"

    def mesh_context(self) -> contextlib.AbstractContextManager[Any]:
        """Within, the mesh is known to what is compiled."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def device_put(self, tree: Any) -> Any:
        """Arrays, whole on every device of it."""
        return (
            jax.device_put(tree, self.devices[0])
            if self.mesh is None
            else device_put_global(tree, replicated(self.mesh))
        )

    def shard_source(self, source: Source) -> Source:
        """The data, whole on every device of it, whose batches are cut over them."""
        placed = self.device_put(source)
        return placed if self.mesh is None else ShardedSource(placed, self.mesh)

    @property
    def memory(self) -> float:
        """Bytes that a program may take on each device; infinite where the device does not tell, as a CPU."""
        told = [device.memory_stats() for device in self.devices if device.process_index == jax.process_index()]
        return min((FILLED * stats["bytes_limit"] for stats in told if stats and "bytes_limit" in stats), default=1e30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of computing results; none changes a result, but for the last bits with `group_size` or `mesh`.

    Args:
      output: the folder of results; runs/NAME by default.
      devices: how many devices to use; all by default. On a CPU there is one device per core.
      group_size: members trained at a time on one device group. By default 1 on a CPU, where more do not pay; elsewhere
        the device group's share, or as many as its memory holds. When out of memory, half as many from there on.
      exact: train members one at a time on one device, which is bitwise what a lone run gives.
      mesh: the devices that each member is trained on, for those too large for one; without it, one device.
      chunk_steps: steps between two looks at progress; rounded down to a divisor of the evaluation interval.
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      save_minutes: between two times that runs under way are saved, to go on from there after a kill; 0 for never.
      diagnostics: at every evaluation, also record what `diagnostics.summary` tells of the next step's batch.

    Raises:
      UserError: a number that is not at least 1, or what is not exact together with `exact`.
    """

    output: Path | None = None
    devices: int | None = None
    group_size: int | None = None
    exact: bool = False
    mesh: Devices | None = None
    chunk_steps: int = 50
    layout: Layout = "auto"
    save_minutes: float = 5.0
    diagnostics: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "group_size", "chunk_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; expected at least 1")
        if not 0 <= self.save_minutes < math.inf:
            raise UserError(f"save_minutes is {self.save_minutes}; expected minutes, or 0 for never")
        if self.exact and (self.group_size or 1) > 1:
            raise UserError(f"group_size is {self.group_size} and exact is given; expected 1, or not exact")
        if self.exact and self.mesh is not None and self.mesh.count > 1:
            raise UserError(f"mesh is {self.mesh} and exact is given; expected one device for a run, or not exact")

    def folder(self, study: str) -> Path:
        """Return the results folder of a study of this name."""
        return self.output or Path("runs") / study

    def members(self, size: int, device_groups: int) -> int:
        """Members at a time of a group of `size`, before it is known how many fit: at most a device group's share."""
        if self.exact or (self.group_size is None and jax.default_backend() == "cpu"):
            return 1
        return min(size, self.group_size or -(-size // device_groups))

    def use_devices(self) -> list[jax.Device]:
        """The devices to work on: this process's, or of several processes all.

        Raises:
          UserError: more are asked for than there are.
        """
        several = jax.process_count() > 1
        found = jax.devices() if several else jax.local_devices()
        if self.devices is not None and (self.devices > len(found) or (several and self.devices < len(found))):
            where = f"{jax.process_count()} processes have" if several else "this machine has"
            expected = f"{'' if several else 'at most '}{len(found)}, which {where}"
            raise UserError(f"devices is {self.devices}; expected {expected}")
        return found[: self.devices]

    def use_mesh(self) -> Devices | None:
        """The devices for each member: as told, or of several processes all, along data; None for one device.

        Raises:
          UserError: `exact` in several processes.
        """
        several = jax.process_count()
        if self.exact and several > 1:
            raise UserError(f"exact is given in {several} processes that share each run; expected one process")
        return self.mesh or (Devices(data=jax.device_count()) if several > 1 else None)

    def device_groups(self) -> list[DeviceGroup]:
        """The devices, each alone, or as many to a device group as the mesh has.

        Raises:
          UserError: the devices are too few for one device group, or belong to several processes and do not make one.
        """
        devices, mesh = self.use_devices(), self.use_mesh()
        if mesh is None:
            return [DeviceGroup((device,)) for device in devices]
        if mesh.count > len(devices) or (jax.process_count() > 1 and mesh.count < len(devices)):
            mesh.mesh()  # says what is wrong, unless `devices` is
            raise UserError(f"mesh is {mesh}, {mesh.count} devices, and devices is {len(devices)}; expected as many")
        starts = range(0, len(devices) - mesh.count + 1, mesh.count)
        cut = [tuple(devices[i : i + mesh.count]) for i in starts]
        return [DeviceGroup(own, mesh.mesh_of(own)) for own in cut]

    @property
    def where(self) -> str:
        """The device groups in words."""
        device_groups = self.device_groups()
        each = len(device_groups[0].devices)
        return f"{len(device_groups)} devices" if each == 1 else f"{len(device_groups)} × {each} devices"
