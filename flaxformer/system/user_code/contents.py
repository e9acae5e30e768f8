"""Contents that a result can depend on beside code: files, listings of folders, and environment variables, digested."""

import glob
import hashlib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from flaxformer.system.files import digest_of
from flaxformer.system.user_code.source import INSTALLED, INSTALLED_IN, PACKAGE

KINDS = ("file", "folder", "pattern", "variable")
MISSING = "missing"
"""Digest of what does not exist."""
SYSTEM = ("/proc", "/sys", "/dev", "/usr/share/zoneinfo", "/usr/share/locale", "/usr/lib/locale")
"""Folders of the operating system whose files do not count."""
COMPILED = {".pyc", ".so", ".pyd", ".dll", ".dylib"}
RESULTS = ("study.json", "config.json")
"""Files by which a folder of results is recognised: it does not count in a listing."""
BLOCK = 1 << 20


def digest(kind: str, name: str) -> str:
    """Return the digest of what is there now, in 16 hexadecimal digits, or `MISSING`.

    Args:
      kind: one of `KINDS`.
      name: absolute path, absolute pattern, or name of a variable; "" stands for the names of all variables.
    """
    if kind == "variable":
        value = "\n".join(sorted(os.environ)) if not name else os.environ.get(name)
        return MISSING if value is None else digest_of(value.encode(errors="surrogateescape"))
    if kind == "pattern":
        return _digest_names(os.path.relpath(path, _root(name)) for path in glob.glob(name, recursive=True))
    try:
        return _digest_file(name) if kind == "file" else _digest_names(os.listdir(name), name)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except OSError as error:
        return f"unreadable ({error.strerror})"


def _digest_file(name: str) -> str:
    if not stat.S_ISREG(os.stat(name).st_mode):  # reading a pipe or a device would take what it holds
        return "no regular file"
    hasher = hashlib.blake2b(digest_size=8)
    with open(name, "rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


def _digest_names(names: Iterable[str], folder: str = "") -> str:
    """Digest names of entries, without hidden ones, caches of Python, and folders of results."""
    kept = [name for name in names if not (name.startswith(".") or name == "__pycache__" or _is_results(folder, name))]
    return digest_of("\n".join(sorted(kept)).encode(errors="surrogateescape"))


def _is_results(folder: str, name: str) -> bool:
    return bool(folder) and (name == "runs" or any(Path(folder, name, result_name).exists() for result_name in RESULTS))


def _root(pattern: str) -> str:
    """Return the folder in which a pattern begins."""
    path = Path(pattern)
    while glob.has_magic(str(path)):
        path = path.parent
    return str(path)


def is_irrelevant(kind: str, name: str) -> bool:
    """True if a path is of the operating system, of installed code, or of JAX's compiled programs."""
    if kind == "variable":
        return False
    path = Path(name)
    if name.startswith(tuple(f"{folder}/" for folder in SYSTEM)) or path.suffix in COMPILED:
        return True
    if _holds_programs(path):
        return True
    is_installed = any(path.is_relative_to(folder) for folder in (PACKAGE, *INSTALLED)) or INSTALLED_IN & {*path.parts}
    return bool(is_installed) and (path.suffix == ".py" or ".dist-info" in name or kind != "file")


def _holds_programs(path: Path) -> bool:
    """True in the folder in which JAX keeps compiled programs."""
    jax = sys.modules.get("jax")
    folder = None if jax is None else jax.config.values.get("jax_compilation_cache_dir")
    return isinstance(folder, str) and path.is_relative_to(Path(folder).absolute())


def relative(kind: str, name: str, base: Path | None) -> str:
    """Return a path relative to the folder of the study file if it lies in it; other names are unchanged."""
    if kind == "variable" or base is None:
        return name
    return os.path.relpath(name, base) if Path(name).is_relative_to(base) else name


def absolute(kind: str, name: str, base: Path | None) -> str:
    """Return the absolute path of a relative one: the inverse of `relative`."""
    return name if kind == "variable" or base is None else os.path.normpath(base / name)
