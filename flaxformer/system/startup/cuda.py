"""Environment that NVIDIA's libraries need before JAX starts."""

import contextlib
import ctypes
import importlib.util
from pathlib import Path


def preload() -> list[Path]:
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
