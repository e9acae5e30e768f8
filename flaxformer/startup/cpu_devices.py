"""JAX devices on a CPU."""

import contextlib
import os

import jax


def one_cpu_device_per_core() -> None:
    """Let JAX use each core of the CPU as a device, unless it has started: a small model keeps only one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", cores)
