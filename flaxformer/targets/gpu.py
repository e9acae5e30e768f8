"""NVIDIA GPUs as targets without a GPU: the text that describes one to XLA, and the private function that JAX needs.

`jax.experimental.topologies` asks which platform "gpu" stands for, and JAX answers by the GPUs that are there
(github.com/jax-ml/jax, issue 23971). `cuda_is_known` gives the answer while a topology is made and used. It replaces
`jax._src.xla_bridge.canonicalize_platform`, which is private: `VERSIONS` are those of JAX that it was tried with.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import jax

from flaxformer.system.errors import UserError
from flaxformer.targets.devices import Device

VERSIONS = ("0.10", "0.11")
"""Beginnings of the versions of JAX with which this module was tried."""


@contextlib.contextmanager
def cuda_is_known() -> Iterator[None]:
    """Have JAX take "gpu" and "cuda" for CUDA, although no GPU is there.

    Raises:
      UserError: this version of JAX has no such function.
    """
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    original = getattr(bridge, "canonicalize_platform", None)
    if original is None:
        raise UserError(
            f"jax {jax.__version__} has no jax._src.xla_bridge.canonicalize_platform, which a GPU target needs; "
            f"expected jax {' or '.join(VERSIONS)}, or a TPU target"
        )

    def canonicalize(platform: str) -> str:
        return "cuda" if platform in ("gpu", "cuda") else original(platform)

    bridge.canonicalize_platform = canonicalize
    try:
        yield
    finally:
        bridge.canonicalize_platform = original


def target_config(device: Device) -> str:
    """Return a GpuTargetConfigProto of XLA in text form.

    Source of its fields: openxla/xla, xla/stream_executor/device_description.proto.
    """
    gpu = device.gpu
    assert gpu is not None
    major, minor = gpu.capability
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49_152,
        "shared_memory_per_core": gpu.shared[0],
        "shared_memory_per_block_optin": gpu.shared[1],
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 65_536,
        "registers_per_block_limit": 65_536,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.lanes,
        "clock_rate_ghz": gpu.clock,
        "l2_cache_size": gpu.l2,
        "memory_bandwidth": int(device.bandwidth),
        "device_memory_size": device.memory,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65_535,
        "block_dim_limit_z": 65_535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
    }
    features = "ACCELERATED_FEATURES" if gpu.is_accelerated else "NONE"
    lines = [f"  {name}: {value}" for name, value in numbers.items()]
    capability = f"  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}"
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            capability,
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 patch: 0 }",
            f'device_description_str: "NVIDIA {device.kind}"',
        ]
    )
