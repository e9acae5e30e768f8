"""Studies and other objects that a Python file defines."""

import dataclasses
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from flaxformer.core.overrides import override
from flaxformer.study.caveats import mark_overridden
from flaxformer.study.declare import Study
from flaxformer.system.errors import UserError, quote
from flaxformer.system.files import digest_of
from flaxformer.system.python_files import (
    CLASSES,
    check_is_python,
    defines_none_of,
    find_experiment,
    near_names,
    siblings,
)
from flaxformer.system.user_code import reads, remember_sources
from flaxformer.system.user_code.source import is_edited, is_user_module

T = TypeVar("T")


def load_study(file: Path, overrides: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Study:
    """Return the `study` of a file (see `load`), with overrides of its baseline and with other seeds if given."""
    study = load(file, "study", Study).in_file(find_experiment(file))
    if overrides:
        caveats = mark_overridden(study.caveats, overrides)
        study = dataclasses.replace(study, baseline=override(study.baseline, overrides), caveats=caveats)
    return study if seeds is None else dataclasses.replace(study, seeds=seeds)


def load(file: Path, name: str, kind: type[T]) -> T:
    """Execute a Python file and return its object of this name; run only files that you trust.

    Raises:
      UserError: no such file, an error in it (with its line), or no object of this name and kind.
    """
    module = load_module(file, f"defines `{name}`")
    defined = getattr(module, name, None)
    if isinstance(defined, kind):
        return defined
    further = [key for key in CLASSES if type(getattr(module, key, None)).__name__ == CLASSES[key] != kind.__name__]
    is_named = not (further or defined is None or callable(defined) or isinstance(defined, ModuleType))
    value = f", found {quote(defined)}" if is_named else ""  # `from flaxformer import *` defines a function `run`
    raise UserError(defines_none_of(file, {name: kind.__name__}, further) + value)


def load_module(file: Path, purpose: str) -> ModuleType:
    """Execute a Python file and return its module; run only files that you trust.

    Args:
      file: path of the file.
      purpose: completes "a Python file that …" in error messages.

    Raises:
      UserError: no such file, or an error in it (with its line).
    """
    file = find_experiment(file)
    if not file.is_file():
        near = near_names(file, (path for path in siblings(file) if path.suffix == ".py"))
        raise UserError(f"no file '{file}'; {near or f'expected a Python file that {purpose}'}")
    check_is_python(file, purpose)
    path = file.resolve()
    spec = importlib.util.spec_from_file_location(f"{file.stem}@{digest_of(str(path).encode())}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"'{file}' is not a Python file; expected one that {purpose}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    _import_from(path.parent)
    reads.install()
    reads.forget(str(path))
    try:
        spec.loader.exec_module(module)
        remember_sources(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename or file}, line {error.lineno or 1}: {error.msg}") from error
    except SystemExit as error:
        raise UserError(f"{file} ends the program (exit code {error.code}); expected a file that {purpose}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
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

    A module of the same name that an earlier file imported from another folder, or that was edited since, is imported
    again.
    """
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    user_modules = {
        name: module for name, module in sys.modules.copy().items() if "@" not in name and is_user_module(module)
    }
    inside = {name for name, module in user_modules.items() if Path(str(module.__file__)).is_relative_to(folder)}
    stale = inside if any(is_edited(user_modules[name]) for name in inside) else set()
    stale |= {name for name in set(user_modules) - inside if (folder / f"{name}.py").is_file()}
    for name in stale - {"__main__"}:
        del sys.modules[name]
    importlib.invalidate_caches()
