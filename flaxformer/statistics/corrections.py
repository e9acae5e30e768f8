"""Corrections of p-values for several tests: the family-wise error rate and the false discovery rate."""

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's (1979) step-down method, which controls the family-wise error rate."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by the method of Benjamini and Hochberg (1995), which controls the false discovery rate.

    If no effect is true, at least one adjusted value is below q with a probability of at most q.
    """
    adjusted, running, m = [1.0] * len(p_values), 1.0, len(p_values)
    for rank, index in reversed(list(enumerate(np.argsort(p_values, kind="stable"), start=1))):
        running = min(running, m / rank * p_values[index])
        adjusted[index] = running
    return adjusted
