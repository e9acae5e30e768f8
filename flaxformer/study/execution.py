"""How a study is executed, apart from what it is."""

import contextlib
import dataclasses
import os
from pathlib import Path

import jax

from flaxformer.model.transformer import Layout
from flaxformer.struct import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How results are computed; nothing here changes a result, save in the last bits where group_size is above 1.

    Args:
      output: the folder of results; runs/NAME by default.
      devices: how many devices to use; all by default. On a CPU there is one device a core.
      group_size: members trained at a time on one device; 1 is exact, more fill an accelerator.
      chunk_steps: steps between two looks at progress; rounded down to a divisor of the evaluation interval.
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      diagnostics: at every evaluation, also record what `diagnostics.summary` tells of the next step's batch.
    """

    output: Path | None = None
    devices: int | None = None
    group_size: int | None = None
    chunk_steps: int = 50
    layout: Layout = "auto"
    diagnostics: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "group_size", "chunk_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}; expected at least 1")

    @property
    def members(self) -> int:
        """Members at a time on one device: 1 on a CPU, where vmap does not pay, 8 elsewhere."""
        return self.group_size or (1 if jax.default_backend() == "cpu" else 8)

    def use_devices(self) -> list[jax.Device]:
        """The devices to work on.

        Raises:
          UserError: more are asked for than there are.
        """
        found = jax.local_devices()
        if self.devices is not None and self.devices > len(found):
            raise UserError(f"devices is {self.devices}; expected at most {len(found)}, which this machine has")
        return found[: self.devices]


def one_cpu_device_per_core() -> None:
    """Split the CPU into a device a core, where JAX has not started yet: a small model keeps one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", cores)
