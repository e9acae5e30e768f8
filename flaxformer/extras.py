"""Libraries that only some tasks need."""

import importlib
from typing import Any

from flaxformer.struct import UserError


def library(module: str, extra: str, purpose: str) -> Any:
    """The module, imported where it is used.

    Raises:
      UserError: it is not installed; the message names the extra that has it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UserError(
            f"{purpose} needs {name} ({error}); install it with: pip install 'flaxformer[{extra}]'"
        ) from None
