"""Catalog of published mechanisms: one file per mechanism, written with the public interface of a user's file.

>>> from flaxformer.catalog import DifferentialAttention, variants
>>> axes = [Points("attention", {"softmax": {}} | variants("differential_attention"))]

`flaxformer catalog` lists the mechanisms, and `flaxformer catalog NAME` shows one. Classes are imported when they are
asked for; a file that uses several names them in one line.
"""

import importlib
from typing import Any

from flaxformer.catalog.index import Mechanism, import_named, mechanisms, module_of, variants

__all__ = ["Mechanism", "import_named", "mechanisms", "variants"]


def __getattr__(name: str) -> Any:
    if (module := module_of(name)) is None:
        raise AttributeError(f"module 'flaxformer.catalog' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for mechanism in mechanisms().values() for name in mechanism.classes)})
