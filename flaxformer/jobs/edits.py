"""Edits of activations that a Python file declares, for `flaxformer generate --edit FILE`."""

import inspect
from collections.abc import Mapping
from pathlib import Path

from flaxformer.core.points import Edit, Edits
from flaxformer.model import Transformer
from flaxformer.study.load import load_module
from flaxformer.system.errors import UserError
from flaxformer.system.wording import printable
from flaxformer.training import Run

EXPECTED = "defines edit, a dict of functions by path, or edit(params, run) that returns one"


def load_edits(file: Path, params: Transformer, run: Run) -> Mapping[str, Edit]:
    """Return the edits that a file declares as `edit`, for `model.generate`; run only files that you trust.

    Args:
      file: Python file.
      params, run: weights and run, which the function of a file gets.

    Raises:
      UserError: the file declares none, or something else.
    """
    declared = getattr(load_module(file, EXPECTED), "edit", None)
    if inspect.isfunction(declared):
        try:
            inspect.signature(declared).bind(params, run)
        except TypeError:
            signature = f"edit{inspect.signature(declared)}"
            raise UserError(f"'{file}' has {signature}; expected a file that {EXPECTED}") from None
        declared = declared(params, run)
    if not isinstance(declared, Mapping) or not declared:
        raise UserError(f"'{file}' has edit = {printable(repr(declared)):.60}; expected a file that {EXPECTED}")
    Edits.of(declared)
    return declared
