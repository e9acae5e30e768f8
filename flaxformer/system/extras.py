"""Optional libraries: those that only some tasks and commands need."""

import importlib
from types import ModuleType

from flaxformer.system.errors import UserError

TRACKERS = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
"""Library of each tracker, which has an extra of the tracker's name."""


def library(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional library and return it.

    Args:
      module: its name.
      extra: the extra of this package that installs it.
      purpose: what needs it, for the message.

    Raises:
      UserError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UserError(
            f"{purpose} needs {name} ({error}); install it with: pip install 'flaxformer[{extra}]'"
        ) from None
