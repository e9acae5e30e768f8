"""Ledger of attempts to improve a recipe: each is judged as it is trained, and all of them count."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.ledger.declare import Ledger

__all__ = ["Ledger"]

__getattr__ = lazy_names(__name__, {"declare": ("Ledger",)})
