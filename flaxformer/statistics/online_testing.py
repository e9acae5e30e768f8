"""Online control of the false discovery rate over a sequence of attempts, by e-values.

e-LOND (Xu and Ramdas 2024, "Online multiple testing with e-values"): attempt t with the e-value E is a discovery if

    E ≥ 1 / α_t,    α_t = α γ_t (D + 1),

where D is the number of discoveries before it and the weights γ are at least 0 and add up to at most 1. The expected
share of false discoveries is then at most α after any number of attempts, under any dependence between them.
"""

import math

EXPECTED = 0.9
"""Part of the weight that the expected attempts share equally; the rest is for those beyond."""


def weight(attempt: int, expected: int) -> float:
    """Return γ of an attempt, numbered from 1.

    The first `expected` attempts share nine tenths equally; the k-th beyond them has 0.1 · 6 / (π² k²).
    """
    if attempt <= expected:
        return EXPECTED / expected
    return (1 - EXPECTED) * 6 / (math.pi * (attempt - expected)) ** 2


def level(attempt: int, discoveries: int, expected: int, alpha: float) -> float:
    """Return α_t: the level at which an attempt is tested, from the number of discoveries before it."""
    return alpha * weight(attempt, expected) * (discoveries + 1)
