"""Set-up of a process before JAX starts: the compilation cache, NVIDIA's libraries, and the devices of a CPU."""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import re
from pathlib import Path

import jax

MAX_BYTES = 2**31
MIN_COMPILE_SECONDS = 0.3
"""A program that compiles faster is not cached."""
THREADS = "PJRT_NPROC"
"""Environment variable with the number of threads of XLA's CPU client, which is read when JAX starts."""
_FORCED = re.compile(r"xla_force_host_platform_device_count=(\d+)")


def set_up(keep_programs: bool) -> None:
    """Prepare a process for the command line: NVIDIA's libraries, one device per CPU core, and the compilation cache.

    Args:
      keep_programs: keep compiled programs between processes.
    """
    if keep_programs:
        keep_compiled_programs()
    preload_nvrtc()
    one_cpu_device_per_core()


def keep_compiled_programs() -> None:
    """Cache XLA's programs in $XDG_CACHE_HOME/flaxformer (~/.cache/flaxformer); the oldest beyond 2 GiB are removed.

    JAX's own settings take precedence: JAX_COMPILATION_CACHE_DIR names another folder, and
    JAX_ENABLE_COMPILATION_CACHE=false turns caching off. Only the owner may write to the folder, since cached programs
    are executed.
    """
    settings = jax.config.values
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flaxformer"
    folder = root / f"programs-{_processor()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return
        _remove_oldest(folder)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)


def _processor() -> str:
    """A digest of the processor and its instructions: machines that share a home directory may differ in them."""
    words = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.blake2b("\n".join(words).encode(), digest_size=6).hexdigest()


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files of the folder, so that the others have at most MAX_BYTES together."""
    kept = 0
    for path, about in sorted(((path, path.stat()) for path in folder.iterdir()), key=lambda entry: -entry[1].st_mtime):
        kept += about.st_size
        if kept > MAX_BYTES:
            path.unlink(missing_ok=True)


def preload_nvrtc() -> list[Path]:
    """Load NVRTC's built-in functions from the package nvidia.cu13, if it is installed; returns the loaded files.

    cuDNN compiles its attention with NVRTC, which in some releases for CUDA 13 does not find these functions; cuDNN
    then reports that there is no valid execution plan. Sources: github.com/jax-ml/jax, issue 32430;
    github.com/pytorch/pytorch, issue 167602.
    """
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return []
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or [])] if spec else []
    loaded = []
    for file in sorted(path for folder in folders for path in folder.glob("libnvrtc-builtins.so.*")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            loaded.append(file)
    return loaded


def cpu_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_cpu_device_per_core() -> None:
    """Let JAX use each core of the CPU as a device: a small model keeps only one core busy.

    A number that JAX_NUM_CPU_DEVICES, XLA_FLAGS or `jax.config` has set stays, as do the devices once JAX has started.
    """
    is_configured = jax.config.values["jax_num_cpu_devices"] > 0
    if not is_configured and not _FORCED.search(os.environ.get("XLA_FLAGS", "")):
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices stay as they are
            jax.config.update("jax_num_cpu_devices", cpu_cores())
    two_threads_per_cpu_device()


def two_threads_per_cpu_device() -> None:
    """Give XLA's CPU client two threads per device where there are several; it has no effect after JAX has started.

    By default it has one thread per core, or per device if there are more. Each device then holds up to 32 calls, and
    with as many threads as devices, all threads can wait in all-reduces of different calls, for each other: the
    process hangs, and XLA ends it after 40 s. A number that the environment sets already stays.
    """
    forced = _FORCED.search(os.environ.get("XLA_FLAGS", ""))
    devices = max(jax.config.values["jax_num_cpu_devices"], int(forced.group(1)) if forced else 1)
    if devices > 1:
        os.environ.setdefault(THREADS, str(2 * devices))
