"""Claims of the founding texts, each with the evidence for or against it."""

from flaxformer.claims.case import Case

__all__ = ["Case"]
