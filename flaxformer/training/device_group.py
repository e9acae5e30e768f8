"""Device group: where a run is trained, one device or a mesh of devices."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Self, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer.devices.sharding import BATCH, Devices, device_put_global, replicated
from flaxformer.nn.formulations import Formulation, FormulationSetting, using, with_formulations
from flaxformer.system.wording import first_of
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.evaluations import EvaluationData
from flaxformer.tasks.host import Chunk
from flaxformer.tasks.sharded import ShardedSource
from flaxformer.training.cpu import core_devices
from flaxformer.training.micro_batches import why_inseparable
from flaxformer.training.run import Run

T = TypeVar("T")

USABLE_MEMORY = 0.8
"""Fraction of a device's memory that a program may need by the compiler's analysis, which does not count everything."""


@dataclasses.dataclass(frozen=True)
class DeviceGroup:
    """One device, or a mesh of devices over which the weights and batches of each run are sharded."""

    devices: tuple[jax.Device, ...]
    mesh: Mesh | None = None
    formulations: FormulationSetting = "auto"
    """Formulations of the programs that are traced for it; see `nn.formulations`."""

    @classmethod
    def of(cls, devices: Devices | None, formulations: FormulationSetting = "auto") -> Self:
        """The first devices as a mesh; or for None, the first device of this process.

        Raises:
          UserError: there are fewer devices.
        """
        if devices is None:
            return cls((jax.local_devices()[0],), None, formulations)
        mesh = devices.mesh()
        return cls(tuple(mesh.devices.flat), mesh, formulations)

    def __str__(self) -> str:
        return first_of([str(device) for device in self.devices], 1)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """A context in which programs are traced and compiled for the mesh, with the formulations."""
        with using(self.formulations), contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            yield

    def device_put(self, tree: T) -> T:
        """Copy arrays to the device, or a full copy to every device of the mesh."""
        if self.mesh is None:
            return jax.device_put(tree, self.devices[0])
        return device_put_global(tree, replicated(self.mesh))

    def put_source(self, source: Source) -> Source:
        """Copy the data to every device; batches are then sharded over the mesh. Data of the host stay there."""
        if source.on_host:
            return source
        return self.shard_batches(self.device_put(source))

    def put_batches(self, batches: Batch, axes: int = 1) -> Batch:
        """Copy batches [steps, B, ...] to the devices, sharded along B over the mesh.

        Args:
          axes: number of axes before that of the examples.
        """
        if self.mesh is None:
            return jax.device_put(batches, self.devices[0])
        return device_put_global(batches, NamedSharding(self.mesh, PartitionSpec(*[None] * axes, *BATCH)))

    def put_chunk(self, chunk: Chunk) -> Chunk:
        """Copy a chunk of host batches to the devices."""
        axes = 2 if chunk.is_stacked else 1
        return self.device_put(chunk.replace(batches=None)).replace(batches=self.put_batches(chunk.batches, axes))

    def put_evaluation(self, data: EvaluationData) -> EvaluationData:
        """Copy the data of an evaluation to the devices, with its batches sharded over the mesh."""
        return self.device_put(data.replace(batches=None)).replace(batches=self.put_batches(data.batches))

    def shard_batches(self, source: Source) -> Source:
        """The source, with batches sharded over the mesh if there is one."""
        return source if self.mesh is None else ShardedSource(source, self.mesh)

    @property
    def memory(self) -> float:
        """Bytes that a program may use on each device; 1e30 where devices do not report their memory, such as CPUs."""
        stats_of_devices = [
            device.memory_stats() for device in self.devices if device.process_index == jax.process_index()
        ]
        return min(
            (USABLE_MEMORY * stats["bytes_limit"] for stats in stats_of_devices if stats and "bytes_limit" in stats),
            default=1e30,
        )


@with_formulations(
    "devices",
    {
        "one per core": Formulation(
            core_devices,
            gain="each core computes its own examples: 1.27 × at S (bench training)",
            platforms=("cpu",),
            unsupported_reason=why_inseparable,
            unsuitable_reason=lambda run, devices: (
                None if core_devices(run, devices) else "the run is too small for several devices"
            ),
        )
    },
)
def devices_of_process(run: Run, devices: int) -> Devices | None:
    """Return None: a run is trained on one device."""
    return None


def default_devices(run: Run, devices: int | None = None, processes: int | None = None) -> Devices | None:
    """Return the mesh that a single run is trained on by default; None for one device.

    With several processes, all their devices, along data.

    Args:
      run: the run.
      devices: number of devices of all processes; by default, those that JAX has.
      processes: number of processes; by default, those that JAX has.
    """
    devices = devices or jax.device_count()
    if (processes or jax.process_count()) > 1:
        return Devices(data=devices)
    return devices_of_process(run, devices)
