"""Limits of the accelerator of this process by its data sheet, and the memory that a way has used on it."""

from typing import Any

from flaxformer.targets.devices import Device, device_of


def device_name() -> str:
    """Return the name of the device of JAX, or of PyTorch in a process that has not loaded JAX."""
    import sys

    if "jax" in sys.modules:
        import jax

        return str(jax.devices()[0].device_kind)
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"


def sheet() -> Device | None:
    """Return the row of the table of accelerators for this device; None for a CPU and for unknown ones."""
    return device_of(device_name())


def of_peak(flops_per_second: float, precision: str) -> dict[str, float]:
    """Return the model FLOPs utilisation: the share of the peak of the data sheet; nothing without one."""
    device = sheet()
    peak = device.peak(precision) if device else None
    return {"of_peak": flops_per_second / peak} if peak else {}


def of_bandwidth(bytes_per_second: float) -> dict[str, float]:
    """Return the share of the memory bandwidth of the data sheet; nothing without one."""
    device = sheet()
    return {"of_bandwidth": bytes_per_second / device.bandwidth} if device and device.bandwidth else {}


def device_memory() -> dict[str, float]:
    """Return the largest memory that was in use on the device; nothing where it is not counted."""
    import sys

    if "jax" in sys.modules:
        import jax

        found: Any = jax.local_devices()[0].memory_stats() or {}
        return {"device_memory_bytes": found["peak_bytes_in_use"]} if "peak_bytes_in_use" in found else {}
    import torch

    return {"device_memory_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
