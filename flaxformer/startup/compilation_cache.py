"""Compiled programs are kept between launches, so that the second one begins at once."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax

MOST_BYTES = 2**31
SHORTEST = 0.3
"""Seconds of compilation from which on a program is kept."""


def keep_compiled_programs() -> None:
    """Have XLA's programs in $XDG_CACHE_HOME/flaxformer (~/.cache/flaxformer), the oldest removed beyond 2 GiB.

    JAX's own settings win: JAX_COMPILATION_CACHE_DIR names another place, JAX_ENABLE_COMPILATION_CACHE=false keeps
    none. What is read there is executed: the folder is its owner's alone.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache:
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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def _processor() -> str:
    """Return a name of the processor: machines that share a home directory may have different instructions."""
    words = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.blake2b("\n".join(words).encode(), digest_size=6).hexdigest()


def _remove_oldest(folder: Path) -> None:
    """Leave the newest files of the folder, of no more than MOST_BYTES together."""
    kept = 0
    for path, about in sorted(((path, path.stat()) for path in folder.iterdir()), key=lambda one: -one[1].st_mtime):
        kept += about.st_size
        if kept > MOST_BYTES:
            path.unlink(missing_ok=True)
