"""Judgement of an attempt from the scores of its pairs: kept, dropped, open or unchanged, or not decided yet.

Looks are taken after every `together` pairs in the order of the seeds; the first look that decides counts, whatever was
trained after it, so that the verdict does not depend on how many processes trained.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from flaxformer.ledger.log import AttemptVerdict, Begun
from flaxformer.statistics import sequential

IDENTICAL = 3
"""Number of pairs without any difference, in any metric, from which on a candidate counts as unchanged."""

LIMIT = 0.05
"""Probability that a limit of the confidence sequence is on the wrong side of the mean at some look."""
UNDECIDED, UNCHANGED, KEPT, DROPPED = range(4)
ENDS: tuple[AttemptVerdict, ...] = ("open", "unchanged", "kept", "dropped")
"""Verdicts by these numbers; an attempt that is undecided after its last pair is open."""


@dataclasses.dataclass(frozen=True)
class AttemptEvidence:
    """State of an attempt after some pairs; effects are improvements of the metric, positive for better ones."""

    verdict: AttemptVerdict | None
    """None while neither limit is reached and there are seeds left."""
    improvements: tuple[float, ...]
    """Improvement at each seed."""
    level: float
    """Level at which the attempt is kept."""

    @property
    def pairs(self) -> int:
        """Number of pairs with a result."""
        return len(self.improvements)

    @property
    def mean(self) -> float:
        """Mean improvement; NaN without a pair."""
        return float(np.mean(self.improvements)) if self.improvements else math.nan

    @functools.cached_property
    def limits(self) -> tuple[float, float]:
        """Limits of the mean improvement, each of which holds at all looks with a probability of 95 %."""
        return sequential.confidence_sequence(np.array(self.improvements), 2 * LIMIT)

    @property
    def log_e(self) -> float:
        """Logarithm of the evidence against "the candidate is not better"."""
        return float(sequential.evidence(np.array(self.improvements))[-1]) if self.improvements else 0.0

    @property
    def log_needed(self) -> float:
        """Logarithm of the evidence at which the attempt is kept."""
        return -math.log(self.level)


def judge(
    begun: Begun,
    level: float,
    best: Sequence[float | None],
    candidate: Sequence[float | None],
    identical: Sequence[bool] | None = None,
) -> AttemptEvidence:
    """Return the state of an attempt.

    Args:
      begun: the ledger's declaration.
      level: level at which the attempt is kept.
      best: score of the best recipe at each seed in order, of the first pairs; None for a run that failed or whose
        metric is not finite.
      candidate: those of the candidate.
      identical: for each pair, True if both runs have the same value of every metric; by default, of this one. Equal
        accuracies alone do not show that the programs are the same.
    """
    sign = -1.0 if begun.goal == "lower" else 1.0
    improvements: list[float] = []
    for b, c in zip(best, candidate, strict=True):
        if b is None or c is None:
            return AttemptEvidence("failed", tuple(improvements), level)
        improvements.append(sign * (c - b))
    same = None if identical is None else np.array(identical[: len(improvements)], bool)[None]
    [pairs], [end] = decide(np.array(improvements, float)[None], begun, level, same)
    verdict = None if end == UNDECIDED and pairs < begun.seeds else ENDS[end]
    return AttemptEvidence(verdict, tuple(improvements[:pairs]), level)


def decide(
    improvements: np.ndarray, begun: Begun, level: float | np.ndarray, identical: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each attempt the number of pairs at the first look that decides it, and its end as a place of `ENDS`.

    Args:
      improvements: [attempts, pairs], of attempts with as many pairs each.
      begun: the ledger's declaration.
      level: level at which each attempt is kept.
      identical: [attempts, pairs], see `judge`.
    """
    x = np.asarray(improvements, float)
    attempts, n = x.shape
    if not n:
        return np.zeros(attempts, int), np.full(attempts, UNDECIDED)
    pairs = np.arange(1, n + 1)
    kept = sequential.evidence(x) >= -np.log(np.asarray(level, float))[..., None]
    dropped = sequential.evidence(-x, -begun.effect) >= -math.log(begun.false_drops)
    differs = x != 0 if identical is None else ~identical
    unchanged = (differs.cumsum(-1) == 0) & (pairs >= IDENTICAL)
    is_look = (pairs % begun.together == 0) | (pairs == begun.seeds)
    ends = np.where(is_look, np.select([unchanged, kept, dropped], [UNCHANGED, KEPT, DROPPED], UNDECIDED), UNDECIDED)
    is_decided = (ends != UNDECIDED).any(-1)
    first = np.where(is_decided, (ends != UNDECIDED).argmax(-1), n - 1)
    return first + 1, ends[np.arange(attempts), first]
