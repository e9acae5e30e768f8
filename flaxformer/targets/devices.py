"""Facts about accelerators: one table, from which peaks, memory and compile-only targets are taken.

A product of float32 arrays is at XLA's default precision: TF32 on NVIDIA's tensor cores since Ampere, one pass in
bfloat16 on a TPU. V100 has tensor cores for float16 alone. A device of TPU v2, v3 and v4 as JAX shows it is a core of
v2 and v3, and a core or a chip of v4.

Sources: NVIDIA's data sheets of V100, A100, L4, L40S, H100, H200 and B200, dense (half of the numbers with sparsity),
where NVLink's bandwidth is that of both directions together; cores, clocks, caches and memory of the GPUs that can be
targets: openxla/xla, xla/backends/gpu/target_config/specs; docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e, where
the bandwidth between chips is bidirectional since 2025; Jouppi et al. 2020, "A domain-specific supercomputer for
training deep neural networks", for v2 and v3; memory of TPUs for programs: libtpu 0.0.52.
"""

from typing import NamedTuple

GIB = 2**30


class Gpu(NamedTuple):
    """Facts about an NVIDIA GPU that XLA's compiler needs.

    Args:
      capability: compute capability, major and minor.
      cores: streaming multiprocessors; lanes: float32 units of each.
      clock: in GHz.
      l2: bytes of the second-level cache.
      shared: bytes of shared memory per core, and per block at most.
      is_accelerated: True for instructions of this architecture alone (sm_90a).
    """

    capability: tuple[int, int]
    cores: int
    lanes: int
    clock: float
    l2: int
    shared: tuple[int, int]
    is_accelerated: bool = True


class Device(NamedTuple):
    """One kind of accelerator.

    Args:
      kind: part of `jax.Device.device_kind`; the first row of the table with it counts.
      bfloat16, float32: peak FLOP/s of products of such arrays; None where there is none.
      memory: bytes that a program may use.
      bandwidth: bytes per second of the memory.
      link: bytes per second to other devices of its node or slice, in one direction, all links together.
      target: its name as a target; "" for none.
      gpu: facts that XLA needs of a GPU, for a target.
    """

    kind: str
    bfloat16: float | None
    float32: float
    memory: int = 0
    bandwidth: float = 0.0
    link: float = 0.0
    target: str = ""
    gpu: Gpu | None = None

    @property
    def platform(self) -> str:
        """The platform as JAX names it."""
        return "tpu" if self.kind.startswith("TPU") else "gpu"

    def peak(self, precision: str) -> float | None:
        """FLOP/s at a run's precision, or None."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


HOPPER = ((9, 0), 132, 128, 1.98, 52_428_800, (233_472, 232_448))
DEVICES: tuple[Device, ...] = (
    Device("B200", 2250e12, 1125e12, 191_514_411_008, 7.67232e12, 900e9, "b200",
           Gpu((10, 0), 148, 128, 1.965, 132_644_864, (233_472, 232_448))),
    Device("H100 PCIe", 756.5e12, 378e12),
    Device("H100 NVL", 835.5e12, 417.5e12),
    Device("H100", 989.5e12, 494.5e12, 84_942_979_072, 3.35232e12, 450e9, "h100", Gpu(*HOPPER)),
    Device("H200 NVL", 835.5e12, 417.5e12),
    Device("H200", 989.5e12, 494.5e12, 151_397_597_184, 4.8e12, 450e9, "h200", Gpu(*HOPPER)),
    Device("A100-SXM4-80GB", 312e12, 156e12, 85_100_068_864, 2.03904e12, 300e9, "a100-80",
           Gpu((8, 0), 108, 64, 1.41, 41_943_040, (167_936, 166_912), is_accelerated=False)),
    Device("A100", 312e12, 156e12),
    Device("L40S", 362e12, 183e12),
    Device("L4", 121e12, 60e12),
    Device("V100-PCIE", None, 14e12),
    Device("V100", None, 15.7e12),
    Device("TPU v2", 23e12, 23e12),
    Device("TPU v3", 61.5e12, 61.5e12),
    Device("TPU v4", 275e12, 275e12),
    Device("TPU v5 lite", 197e12, 197e12, int(15.75 * GIB), 819e9, 200e9, "v5e"),
    Device("TPU v5", 459e12, 459e12, int(95.73 * GIB), 2.765e12, 600e9, "v5p"),
    Device("TPU v6 lite", 918e12, 918e12, int(31.24 * GIB), 1.6e12, 400e9, "v6e"),
)  # fmt: skip
"""The devices; of two whose `kind` is in a name, the first counts."""

TARGETS = {device.target: device for device in DEVICES if device.target}
"""The devices that programs can be compiled for without one, by their names."""


def device_of(kind: str) -> Device | None:
    """Return the device whose `kind` is in the name that JAX gives, or None."""
    return next((device for device in DEVICES if device.kind in kind), None)
