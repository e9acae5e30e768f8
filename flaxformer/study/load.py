"""Reading a study file."""

import importlib.util
import sys
import traceback
from pathlib import Path

from flaxformer.struct import UserError
from flaxformer.study.declare import Study


def load_study(file: Path) -> Study:
    """Execute a study file (it is Python: run only files that you trust) and return its `study`.

    Raises:
      UserError: no such file, an error in it (with its line), or no `study` in it.
    """
    if not file.is_file():
        raise UserError(f"no file '{file}'; expected a Python file that defines `study`")
    spec = importlib.util.spec_from_file_location(f"study_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise UserError(f"'{file}' is not a Python file; expected one that defines `study`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename) == file.resolve()
        ]
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{file}, line {lines[-1] if lines else '?'}: {kind}{error}") from error
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise UserError(f"'{file}' defines no `study`; expected `study = Study(...)`, found {study!r}")
    return study
