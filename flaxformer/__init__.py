"""Transformer ablations in JAX: a question is one short typed file, and its answer comes with its uncertainty.

A study, a training job or a component imports all that it names from here: `from flaxformer import ModelConfig, Study`.
The functions of a model are in `flaxformer.model`, the equations in `flaxformer.nn`.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from flaxformer.analysis import *
    from flaxformer.components import *
    from flaxformer.config import *
    from flaxformer.core import *
    from flaxformer.ledger import *
    from flaxformer.report.reading import StudyResults
    from flaxformer.statistics import *
    from flaxformer.study import *
    from flaxformer.tasks import *
    from flaxformer.training import *

SEMANTICS = 6
"""Bumped when the same config gives other numbers on purpose; results of different semantics are never mixed."""

__version__ = "0.1.0"

_EXPORTS = ("core", "components", "config", "study", "tasks", "training", "analysis", "statistics", "ledger")
"""Packages whose public names are also names of `flaxformer`, imported when a name is first asked for."""


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"flaxformer.{name}")
    for package in _EXPORTS:
        module = importlib.import_module(f"flaxformer.{package}")
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module 'flaxformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    exports = (importlib.import_module(f"flaxformer.{package}").__all__ for package in _EXPORTS)
    return sorted({*globals(), *(name for names in exports for name in names)})


def results(folder: str | Path) -> "StudyResults":
    """Return the results of a study's folder: rows, arms, claims, and the weights that were kept."""
    from flaxformer.report.reading import StudyResults  # here, since importing the package is to be fast

    return StudyResults(folder)


def join(a: str | Path, b: str | Path) -> "pl.DataFrame":
    """Return the rows of two studies side by side, paired by seed and by the axes that both have."""
    from flaxformer.report import reading

    return reading.join(a, b)
