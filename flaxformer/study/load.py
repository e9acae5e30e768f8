"""Reading what a Python file declares."""

import ast
import dataclasses
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from flaxformer.files import digest_of
from flaxformer.overrides import override
from flaxformer.struct import UserError
from flaxformer.study.declare import Study
from flaxformer.user_code import remember_sources
from flaxformer.user_code.source import is_edited, is_user_module

T = TypeVar("T")


def load_study(file: Path, overrides: Sequence[str] = (), seeds: int | None = None) -> Study:
    """The `study` of a file (see `load`), with fields of its baseline changed, and with so many seeds."""
    study = dataclasses.replace(load(file, "study", Study), file=file)
    if overrides:
        study = dataclasses.replace(study, baseline=override(study.baseline, overrides))
    return study if seeds is None else dataclasses.replace(study, seeds=range(seeds))


def declares(file: Path, name: str) -> bool:
    """True if a file assigns a name at its top level; nothing is executed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def load(file: Path, name: str, kind: type[T]) -> T:
    """Execute a file (it is Python: run only files that you trust) and return what it calls by this name.

    Raises:
      UserError: no such file, an error in it (with its line), or nothing of this name and kind in it.
    """
    module = load_module(file, f"defines `{name}`")
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise UserError(f"'{file}' defines no `{name}`; expected `{name} = {kind.__name__}(...)`, found {found!r}")
    return found


def load_module(file: Path, purpose: str) -> ModuleType:
    """Execute a file (it is Python: run only files that you trust) and return its module.

    Args:
      purpose: what is expected of it, for messages.

    Raises:
      UserError: no such file, or an error in it (with its line).
    """
    if not file.is_file():
        raise UserError(f"no file '{file}'; expected a Python file that {purpose}")
    path = file.resolve()
    spec = importlib.util.spec_from_file_location(f"{file.stem}@{digest_of(str(path).encode())}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"'{file}' is not a Python file; expected one that {purpose}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    _import_from(path.parent)
    try:
        spec.loader.exec_module(module)
        remember_sources(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename) == file.resolve()
        ]
        sort = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{file}, line {lines[-1] if lines else '?'}: {sort}{error}") from error
    return module


def _import_from(folder: Path) -> None:
    """Let a file import modules beside it, as `python FILE` does.

    A module of the same name that an earlier file imported from elsewhere, or that was edited since, is imported anew.
    """
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    own = {name: module for name, module in sys.modules.copy().items() if "@" not in name and is_user_module(module)}
    inside = {name for name, module in own.items() if Path(str(module.__file__)).is_relative_to(folder)}
    stale = inside if any(is_edited(own[name]) for name in inside) else set()
    stale |= {name for name in set(own) - inside if (folder / f"{name}.py").is_file()}
    for name in stale - {"__main__"}:
        del sys.modules[name]
    importlib.invalidate_caches()
