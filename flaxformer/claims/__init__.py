"""Claims of the founding texts, each with the evidence for or against it."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.claims.case import Case

__all__ = ["Case"]

__getattr__ = lazy_names(__name__, {"case": ("Case",)})
