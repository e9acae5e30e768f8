"""Scripts of experiments/statistics/ as modules."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments/statistics"


def script(name):
    """The module of a script."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
