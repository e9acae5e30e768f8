"""Cache of compiled programs between launches."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax

MAX_BYTES = 2**31
MIN_COMPILE_SECONDS = 0.3
"""A program that compiles faster is not cached."""


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
