"""Where a result comes from: versions, commit, machine. Recorded with every launch, never part of a cell's identity."""

import datetime
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import flaxformer


def provenance() -> dict[str, Any]:
    """One launch, as plain data."""
    devices = jax.local_devices()
    return {
        "launched": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "flaxformer": flaxformer.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "flax": version("flax"),
        "optax": version("optax"),
        "platform": platform.platform(),
        "devices": f"{len(devices)} × {devices[0].device_kind}",
    }


def commit() -> str | None:
    """The package's git commit, "+changes" when the working tree differs from it; None outside a checkout."""
    here = Path(flaxformer.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", "__init__.py")
        return tracked and git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
