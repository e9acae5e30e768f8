"""Origin of a result: command, versions, commit, machine.

Recorded with every launch, never part of a trial's identity.
"""

import datetime
import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import flaxformer


def provenance(file: Path | None = None) -> dict[str, Any]:
    """One launch by a process, as plain data; `file` is the study's."""
    devices = jax.local_devices()
    return {
        "launched": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "flaxformer": flaxformer.__version__,
        **code(file),
        "file": file and file.name,
        "command": command(sys.argv),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "flax": version("flax"),
        "optax": version("optax"),
        "platform": platform.platform(),
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "precision": precision(),
    }


def code(file: Path | None = None) -> dict[str, Any]:
    """Return the version of the code: the package's commit, and digests of its source and of a study file."""
    here = Path(flaxformer.__file__).parent
    source = hashlib.blake2b(digest_size=8)
    for path in sorted(here.rglob("*.py")):
        source.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    study = None if file is None else hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    return {"commit": commit(), "source": source.hexdigest(), "study_file": study}


def precision() -> str:
    """The numbers that weights are, and how exactly they are multiplied."""
    products = jax.config.jax_default_matmul_precision or "the backend's default"  # type: ignore[attr-defined]
    wide = ", with float64 enabled" if jax.config.jax_enable_x64 else ""  # type: ignore[attr-defined]
    return f"float32{wide}; matrix products in {products} precision"


def command(arguments: Sequence[str]) -> str | None:
    """The command line of a launch, as a reader of another machine can type it; None outside the command.

    Absolute paths become relative to the working folder, or where they are not below it, their last name alone.
    """
    program, *words = arguments
    if Path(program).name != "flaxformer" and not Path(program).match("flaxformer/cli/__main__.py"):
        return None
    return shlex.join(["flaxformer", *map(_portable, words)])


def _portable(word: str) -> str:
    name, equals, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    return f"{name}{equals}{here}"


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
