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

import jax

import flaxformer
from flaxformer.system.digests import JsonObject


def provenance(file: Path | None = None) -> JsonObject:
    """One launch by a process, as plain data; `file` is the study's."""
    devices = jax.local_devices()
    return {
        "launched": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "flaxformer": flaxformer.__version__,
        **code(file),
        "file": file and file.name,
        "file_in_commit": file is not None and is_in_commit(file),
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


def code(file: Path | None = None) -> JsonObject:
    """Return the version of the code: the package's commit, and digests of its source and of a study file."""
    here = Path(flaxformer.__file__).parent
    package = hashlib.blake2b(digest_size=8)
    for path in sorted(set(here.rglob("*.py")) - set((here / "experiments").rglob("*.py"))):
        package.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    study = None if file is None else hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    return {"commit": commit(), "source": package.hexdigest(), "study_file": study}


def precision() -> str:
    """The precision of weights and of matrix products."""
    products = jax.config.jax_default_matmul_precision or "the backend's default"  # type: ignore[attr-defined]
    wide = ", with float64 enabled" if jax.config.jax_enable_x64 else ""  # type: ignore[attr-defined]
    return f"float32{wide}; matrix products in {products} precision"


def command(arguments: Sequence[str]) -> str | None:
    """The command line of a launch, for use on another machine; None outside the command.

    Absolute paths become relative to the working folder; of paths that are not below it, the last name remains.
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
    try:
        tracked = _git(here, "ls-files", "--error-unmatch", "__init__.py")
        return tracked and _git(here, "rev-parse", "--short=12", "HEAD") + (
            "+changes" if _git(here, "status", "--porcelain", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def is_in_commit(file: Path) -> bool:
    """True if a file is, as it is now, in the commit of the package's checkout."""
    here, folder = Path(flaxformer.__file__).parent, file.resolve().parent
    try:
        _git(folder, "ls-files", "--error-unmatch", file.name)
        is_same = _git(folder, "rev-parse", "--show-toplevel") == _git(here, "rev-parse", "--show-toplevel")
        return is_same and not _git(folder, "status", "--porcelain", "--", file.name)
    except (OSError, subprocess.CalledProcessError):
        return False


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
