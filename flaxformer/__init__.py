"""Transformer ablations in JAX: a question is one short typed file, and its answer comes with its uncertainty.

A study, a training job or a component imports all that it names from here: `from flaxformer import ModelConfig, Study`.
The functions of a model are in `flaxformer.model`, the equations in `flaxformer.nn`.
"""

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flaxformer.analysis import *
    from flaxformer.components import *
    from flaxformer.config import *
    from flaxformer.core import *
    from flaxformer.jobs.run_study import run as run
    from flaxformer.jobs.trackers import TrackedRun as TrackedRun
    from flaxformer.jobs.trackers import Tracker as Tracker
    from flaxformer.ledger import *
    from flaxformer.report.loaded_model import load as load
    from flaxformer.report.reading import join as join
    from flaxformer.report.reading import results as results
    from flaxformer.statistics import *
    from flaxformer.study import *
    from flaxformer.tasks import *
    from flaxformer.training import *

SEMANTICS = 9
"""Bumped when the same config gives other numbers on purpose; results of different semantics are never mixed."""

__version__ = "0.1.0"

_EXPORTS = ("core", "components", "config", "study", "tasks", "training", "analysis", "statistics", "ledger")
"""Packages whose public names are also names of `flaxformer`, imported when a name is first asked for."""
_FUNCTIONS = {
    "run": "jobs.run_study",
    "results": "report.reading",
    "join": "report.reading",
    "load": "report.loaded_model",
    "Tracker": "jobs.trackers",
    "TrackedRun": "jobs.trackers",
}
"""Functions of `flaxformer` on studies and models, and the base class of trackers, by name, and their modules."""


def __getattr__(name: str) -> object:
    if name == "__all__":
        return _names()
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _FUNCTIONS:
        value = getattr(importlib.import_module(f"flaxformer.{_FUNCTIONS[name]}"), name)
    elif name in _packages():
        value = importlib.import_module(f"flaxformer.{name}")
    else:
        value = _exported(name)
    globals()[name] = value  # asked for once
    return value


@functools.cache
def _packages() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


def _exported(name: str) -> object:
    for package in _EXPORTS:
        module = importlib.import_module(f"flaxformer.{package}")
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module 'flaxformer' has no attribute {name!r}")


def _names() -> list[str]:
    exports = (importlib.import_module(f"flaxformer.{package}").__all__ for package in _EXPORTS)
    return sorted({*_FUNCTIONS, *(name for names in exports for name in names)})


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})
