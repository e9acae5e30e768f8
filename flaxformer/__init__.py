"""Transformer ablations in JAX: a question is one short typed file, and its answer comes with its uncertainty."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from flaxformer.report.reading import StudyResults

SEMANTICS = 5
"""Bumped when the same config gives other numbers on purpose; results of different semantics are never mixed."""

__version__ = "0.1.0"


def results(folder: str | Path) -> "StudyResults":
    """Return the results of a study's folder: rows, arms, claims, and the weights that were kept."""
    from flaxformer.report.reading import StudyResults  # here, since importing the package is to be fast

    return StudyResults(folder)


def join(a: str | Path, b: str | Path) -> "pl.DataFrame":
    """Return the rows of two studies side by side, paired by seed and by the axes that both have."""
    from flaxformer.report import reading

    return reading.join(a, b)
