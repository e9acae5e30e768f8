"""Description of the machine. It starts no backend of JAX, which would reserve the accelerator."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flaxformer.store.provenance import commit

PACKAGES = ("flaxformer", "jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformers", "x-transformers")
VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")


def machine() -> dict[str, object]:
    """Return cores, processor, accelerators, versions, commit and date as plain data."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cores": cores,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "processor": processor(),
        "accelerators": accelerators(),
        "memory_bytes": memory_bytes(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def processor() -> str:
    """Return the model of the CPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Return the memory of the machine in bytes, or None where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def accelerators() -> list[str]:
    """Return the NVIDIA devices and drivers that nvidia-smi lists; empty without it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
