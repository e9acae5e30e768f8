"""Settings of executing a study, apart from its definition."""

import dataclasses
from pathlib import Path
from typing import Literal

import jax

from flaxformer.devices.sharding import Devices
from flaxformer.model.layout import Layout
from flaxformer.nn.formulations import FormulationSetting, platform, using
from flaxformer.store.places import WeightsToKeep, check_weights_to_keep
from flaxformer.system.errors import UserError
from flaxformer.system.settings import ProfiledSteps, check_numbers
from flaxformer.system.user_code.changes import OnCodeChange
from flaxformer.system.wording import count_of
from flaxformer.training.device_group import DeviceGroup

OnError = Literal["continue", "stop"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of executing a study. No setting changes a result, except the last bits with `group_size`, `mesh` or
    `formulations`.

    Args:
      output: the folder of results; runs/NAME by default.
      devices: number of devices; all by default. A CPU has one device per core.
      group_size: runs trained together on one device group. By default 1 on a CPU, where more are not faster; elsewhere
        the device group's share, or as many as its memory holds. When out of memory, half as many from then on.
      exact: train runs one at a time on one device, which gives bit for bit what each gives alone.
      mesh: the devices that each run is trained on, for runs too large for one; by default, one device.
      chunk_steps: steps per call of the compiled program, between which progress is reported and a signal is obeyed;
        rounded down to a divisor of the evaluation interval.
      formulations: "auto", or "reference" for the equations alone (`nn.formulations`).
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      save_minutes: minutes between two saves of the runs in progress, which an interrupted study resumes; 0 for never.
      diagnostics: at every evaluation, also record `diagnostics.summary` of the next step's batch.
      profile: steps of the first program that are profiled: a number of them, or FIRST:COUNT (`training.profile`).
      keep: weights of each trial to keep: "final", "best", or "all" evaluated steps; by default, as the study says.
      retry_failed: train again, once, what failed before.
      on_error: "stop" to end after the first run that fails.
      on_code_change: what to do with results whose user code, or what it read, has changed since: "refuse" to run,
        "keep" them, or "retrain", which sets them aside.

    Raises:
      UserError: a number below 1, an unknown choice, or `exact` together with a setting that is not exact.
    """

    output: Path | None = None
    devices: int | None = None
    group_size: int | None = None
    exact: bool = False
    mesh: Devices | None = None
    chunk_steps: int = 50
    formulations: FormulationSetting = "auto"
    layout: Layout = "auto"
    save_minutes: float = 5.0
    diagnostics: bool = False
    keep: WeightsToKeep | None = None
    profile: str | None = None
    retry_failed: bool = False
    on_error: OnError = "continue"
    on_code_change: OnCodeChange = "refuse"

    def __post_init__(self) -> None:
        check_numbers(self, ("devices", "group_size", "chunk_steps", "save_minutes"))
        check_weights_to_keep(self.keep)
        if self.on_error not in ("continue", "stop"):
            raise UserError(f"on_error is '{self.on_error}'; expected continue or stop")
        using(self.formulations)
        if self.profile is not None:
            ProfiledSteps.parse(self.profile)
        if self.exact and (self.group_size or 1) > 1:
            raise UserError(f"group_size is {self.group_size} and exact is given; expected 1, or not exact")
        if self.exact and self.mesh is not None and self.mesh.count > 1:
            raise UserError(f"mesh is {self.mesh} and exact is given; expected one device for a run, or not exact")

    def folder(self, study: str) -> Path:
        """Return the results folder of a study of this name."""
        return self.output or Path("runs") / study

    def runs_together(self, size: int, sharing: int) -> int:
        """Number of runs of a group of `size` to train together when `sharing` device groups share it, memory aside."""
        if self.exact or (self.group_size is None and platform().name == "cpu"):
            return 1
        return min(size, self.group_size or -(-size // sharing))

    def use_devices(self) -> list[jax.Device]:
        """The devices to train on: the devices of this process, or with several processes, all devices of all of them.

        Raises:
          UserError: `devices` is more than there are.
        """
        several = jax.process_count() > 1
        devices = jax.devices() if several else jax.local_devices()
        if self.devices is not None and (self.devices > len(devices) or (several and self.devices < len(devices))):
            where = f"{jax.process_count()} processes have" if several else "this machine has"
            expected = f"{'' if several else 'at most '}{len(devices)}, which {where}"
            raise UserError(f"devices is {self.devices}; expected {expected}")
        return devices[: self.devices]

    def use_mesh(self) -> Devices | None:
        """The mesh for each run: as given, or with several processes, all devices along data; None for one device.

        Raises:
          UserError: `exact` in several processes.
        """
        several = jax.process_count()
        if self.exact and several > 1:
            raise UserError(f"exact is given in {several} processes that share each run; expected one process")
        return self.mesh or (Devices(data=jax.device_count()) if several > 1 else None)

    def device_groups(self) -> list[DeviceGroup]:
        """The device groups: one per device, or one per mesh.

        Raises:
          UserError: the devices are too few for one device group, or belong to several processes and do not make one.
        """
        devices, mesh = self.use_devices(), self.use_mesh()
        if mesh is None:
            return [DeviceGroup((device,), None, self.formulations) for device in devices]
        if mesh.count > len(devices) or (jax.process_count() > 1 and mesh.count < len(devices)):
            mesh.mesh()  # raises, unless the fault is in `devices`
            raise UserError(f"mesh is {mesh}, {mesh.count} devices, and devices is {len(devices)}; expected as many")
        starts = range(0, len(devices) - mesh.count + 1, mesh.count)
        groups = [tuple(devices[i : i + mesh.count]) for i in starts]
        return [DeviceGroup(members, mesh.mesh_of(members), self.formulations) for members in groups]

    @property
    def where(self) -> str:
        """The device groups in words."""
        device_groups = self.device_groups()
        size = len(device_groups[0].devices)
        return count_of(len(device_groups), "device") if size == 1 else f"{len(device_groups)} × {size} devices"
