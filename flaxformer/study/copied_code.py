"""Code that a results folder holds: executed only if its user says so, and only as it was written.

Whoever made a folder also wrote the code in it. This module alone executes it.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from flaxformer.checkpoint import read_config
from flaxformer.checkpoint.config import names_user_classes, source_of
from flaxformer.store.places import WEIGHTS
from flaxformer.study.load import load_module
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import is_unchanged_copy
from flaxformer.training.run import Run

T = TypeVar("T")
CODE = "code"
"""Name of the folder of the copies, which has a folder per version; its name is the digest of the copies."""


def execute_copy(root: Path, copy: Path, why: str, trust_code: bool, execute: Callable[[Path], T]) -> T:
    """Call a function that executes a copy of a file in a results folder, if the copies are as they were written.

    Args:
      root: the results folder, which has the folder code/.
      copy: the copy, root/code/DIGEST/….
      why: the reason for which the code is needed, a sentence without its full stop.
      trust_code: True if the user trusts the code; False refuses.
      execute: called with the copy.

    Raises:
      UserError: the copies differ from their digest, or the user did not say that the code may be executed.
    """
    copies = root / CODE / copy.relative_to(root / CODE).parts[0]
    if not is_unchanged_copy(copies):
        raise UserError(f"{copies} was changed after it was written, and is not executed ({why})")
    if not trust_code:
        raise UserError(
            f"{root} needs the code in {copies}: {why}. Whoever made the folder wrote this code, which is not executed "
            "unless you trust it: read it, then give --trust-code, or trust_code=True in Python"
        )
    with _without_bytecode():
        return execute(copy)


@contextlib.contextmanager
def _without_bytecode() -> Iterator[None]:
    """Let imports compile sources, and read none of the compiled files beside them, which no digest covers."""
    before = sys.pycache_prefix
    with tempfile.TemporaryDirectory() as empty:
        sys.pycache_prefix = empty
        try:
            yield
        finally:
            sys.pycache_prefix = before


def load_run(folder: Path, trust_code: bool = False) -> Run:
    """Return the run of a training job's folder, or of a folder of kept weights.

    If it has user classes that are not imported, the copy of their file that ran is needed: in the folder's code/, or
    in that of the study. A run whose classes are all of this package never executes code, whatever is wrong with it.

    Args:
      folder: the folder.
      trust_code: True to execute that copy, after a comparison with its digest; by default it is refused.

    Raises:
      UserError: the folder holds no run, or one with a class that neither the package nor that file defines; or the
        copy is needed, and was changed or is not trusted.
    """
    try:
        return read_config(folder)
    except UserError as error:
        root = folder.parent.parent if folder.parent.name == WEIGHTS else folder
        file = source_of(folder, root) if names_user_classes(folder) else None
        if file is None or not file.is_file():
            raise
        execute_copy(root, file, str(error), trust_code, lambda copy: load_module(copy, "defines the run's classes"))
        return read_config(folder)
