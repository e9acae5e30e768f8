"""Devices that are not there: compile-only devices of a target such as h200x8 or v5e-2x4.

>>> target = parse_target("v5e-2x4")
>>> devices = target.devices()
>>> with target.compiling():
...     compiled = jax.jit(step).lower(state_on_those_devices).compile()

A TPU needs the package libtpu (extra `tpu`), a GPU the CUDA packages of JAX (extra `cuda`); neither needs hardware.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator

import jax

from flaxformer.nn.formulations import compiling_for
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.targets.devices import TARGETS, Device
from flaxformer.targets.gpu import cuda_is_known, target_config

EXAMPLES = "h200x8, h100, a100-80, b200, v5e-2x4, v5p-4x4x4, v6e-16x16"
USABLE_GPU_MEMORY = 0.75
"""Fraction of a GPU's memory that JAX allocates by default (XLA_PYTHON_CLIENT_MEM_FRACTION)."""
PACKAGES = {"tpu": ("libtpu", "tpu", "TPU"), "gpu": ("jax_cuda13_plugin", "cuda", "GPU")}
"""Per platform: the package, the extra that installs it, and the name of the platform."""
LIBTPU_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment with which libtpu is loaded where there is no TPU, and by several processes."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Accelerators that a program is compiled for.

    Args:
      device: their kind.
      shape: their number along each dimension of the topology.
    """

    device: Device
    shape: tuple[int, ...]

    def __str__(self) -> str:
        name = self.device.target
        if self.count == 1:
            return name
        return f"{name}x{self.count}" if self.device.platform == "gpu" else f"{name}-{'x'.join(map(str, self.shape))}"

    @property
    def count(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> tuple[int, int, int]:
        """Chips of each host along the three dimensions of a slice of TPUs: 2 × 2 × 1, and 1 along one of size 1.

        It is the default of newer versions of libtpu; older ones expect 2 × 2 × 1 of every slice, also of one chip.
        """
        x, y = self.shape[:2]
        return min(2, x), min(2, y), 1

    @property
    def memory(self) -> int:
        """Bytes that programs may use on each device."""
        share = USABLE_GPU_MEMORY if self.device.platform == "gpu" else 1
        return int(share * self.device.memory)

    def devices(self) -> list[jax.Device]:
        """The devices, which programs can be compiled for and not run on.

        Raises:
          UserError: the compiler is not installed, or knows no such topology.
        """
        module, extra, name = PACKAGES[self.device.platform]
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"target {self} needs the compiler for {name}s, which is not installed; install it with: "
                f"pip install 'flaxformer[{extra}]'"
            )
        from jax.experimental import topologies

        try:
            if self.device.platform == "tpu":
                for variable, value in LIBTPU_WITHOUT_TPU.items():
                    os.environ.setdefault(variable, value)
                shape = "x".join(map(str, self.shape))
                name = f"{self.device.target}:{shape}"
                bounds = self.chips_per_host
                return list(topologies.get_topology_desc(name, "tpu", chips_per_host_bounds=list(bounds)).devices)
            with cuda_is_known():
                return list(
                    topologies.get_topology_desc(
                        platform="cuda", topology=f"1x1x{self.count}", target_config=target_config(self.device)
                    ).devices
                )
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            why = str(error).partition("\n")[0]
            if isinstance(error, NotImplementedError):  # the plugin was not registered, for it found no driver
                why += "; set JAX_PLATFORMS=cpu before JAX starts"
            raise UserError(f"target is '{self}', for which the compiler has no topology: {why}") from error

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context in which programs are traced and compiled for the target."""
        with contextlib.ExitStack() as held:
            held.enter_context(compiling_for(self.device.platform))
            if self.device.platform == "gpu":
                held.enter_context(cuda_is_known())
            yield


def parse_target(text: str) -> Target:
    """Return the target of this name: a device, and how many or in which topology.

    Raises:
      UserError: it is not such a name; the message lists what there is.
    """
    name = next((name for name in sorted(TARGETS, key=len, reverse=True) if text.startswith(name)), "")
    device, suffix = TARGETS.get(name), text[len(name) :]
    if device is None:
        word = re.split(r"[x]|-\d+x", text)[0]
        raise UserError(f"target is '{text}'{did_you_mean(word, list(TARGETS))}, such as {EXAMPLES}")
    if device.platform == "gpu" and (match := re.fullmatch(r"(?:x([1-9]\d*))?", suffix)):
        return Target(device, (int(match[1] or 1),))
    dimensions = 3 if name == "v5p" else 2
    if device.platform == "tpu" and (match := re.fullmatch(r"(?:-([1-9]\d*(?:x[1-9]\d*)*))?", suffix)):
        shape = tuple(map(int, match[1].split("x"))) if match[1] else (1,) * dimensions
        if len(shape) == dimensions:
            return Target(device, shape)
    form = f"{name}x8" if device.platform == "gpu" else f"{name}-{'x'.join('4' * dimensions)}"
    raise UserError(f"target is '{text}'; expected {name}, or with a number of devices, such as {form}")
