"""Judgement of an attempt from the scores of its pairs: kept, dropped, open or unchanged, or not decided yet.

Looks are taken after every `together` pairs in the order of the seeds; the first look that decides counts, whatever was
trained after it, so that the verdict does not depend on how many processes trained.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from flaxformer.ledger.log import AttemptVerdict, Begun
from flaxformer.statistics import sequential

IDENTICAL = 3
"""Number of pairs without any difference from which on a candidate counts as unchanged."""

LIMIT = 0.05
"""Probability that a limit of the confidence sequence is on the wrong side of the mean at some look."""
UNDECIDED, UNCHANGED, KEPT, DROPPED = range(4)
ENDS: tuple[AttemptVerdict, ...] = ("open", "unchanged", "kept", "dropped")
"""Verdicts by these numbers; an attempt that is undecided after its last pair is open."""


@dataclasses.dataclass(frozen=True)
class AttemptEvidence:
    """State of an attempt after a number of pairs; effects are improvements of the metric, positive for better ones."""

    verdict: AttemptVerdict | None
    """None while neither limit is reached and there are seeds left."""
    pairs: int
    improvements: tuple[float, ...]
    """Improvement at each seed."""
    mean: float
    low: float
    high: float
    """90 % confidence sequence of the mean improvement: each limit holds at all looks with a probability of 95 %."""
    log_e: float
    """Logarithm of the evidence against "the candidate is not better"."""
    log_needed: float
    """Logarithm of the evidence at which it is kept."""


def judge(
    begun: Begun, level: float, best: Sequence[float | None], candidate: Sequence[float | None]
) -> AttemptEvidence:
    """Return the state of an attempt.

    Args:
      begun: the ledger's declaration.
      level: level at which the attempt is kept.
      best: score of the best recipe at each seed in order, of the first pairs; None for a run that failed or whose
        metric is not finite.
      candidate: those of the candidate.
    """
    sign = -1.0 if begun.goal == "lower" else 1.0
    improvements: list[float] = []
    for b, c in zip(best, candidate, strict=True):
        if b is None or c is None:
            return _state(begun, level, improvements, "failed")
        improvements.append(sign * (c - b))
    [pairs], [end] = decide(np.array(improvements, float)[None], begun, level)
    if end == UNDECIDED and pairs < begun.seeds:
        return _state(begun, level, improvements, None)
    return _state(begun, level, improvements[:pairs], ENDS[end])


def decide(improvements: np.ndarray, begun: Begun, level: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each attempt the number of pairs at the first look that decides it, and its end as a place of `ENDS`.

    Args:
      improvements: [attempts, pairs], of attempts with as many pairs each.
      begun: the ledger's declaration.
      level: level at which each attempt is kept.
    """
    x = np.asarray(improvements, float)
    pairs = np.arange(1, x.shape[-1] + 1)
    kept = sequential.evidence(x) >= -np.log(np.asarray(level, float))[..., None]
    dropped = sequential.evidence(-x, -begun.effect) >= -math.log(begun.false_drops)
    unchanged = (np.abs(x).cumsum(-1) == 0) & (pairs >= IDENTICAL)
    ends = np.select([unchanged, kept, dropped], [UNCHANGED, KEPT, DROPPED], UNDECIDED)
    is_look = (pairs % begun.together == 0) | (pairs == begun.seeds)
    decides = (ends != UNDECIDED) & is_look
    is_decided = decides.any(-1) if x.shape[-1] else np.zeros(len(x), bool)
    first = np.where(is_decided, decides.argmax(-1) if x.shape[-1] else 0, max(x.shape[-1] - 1, 0))
    end = np.take_along_axis(ends, first[:, None], -1)[:, 0] if x.shape[-1] else np.zeros(len(x), int)
    return np.where(is_decided, first + 1, x.shape[-1]), np.where(is_decided, end, UNDECIDED)


def _state(
    begun: Begun, level: float, improvements: Sequence[float], verdict: AttemptVerdict | None
) -> AttemptEvidence:
    x = np.array(improvements, float)
    low, high = sequential.confidence_sequence(x, 2 * LIMIT) if len(x) else (-math.inf, math.inf)
    return AttemptEvidence(
        verdict,
        len(x),
        tuple(improvements),
        float(x.mean()) if len(x) else math.nan,
        low,
        high,
        float(sequential.evidence(x)[-1]) if len(x) else 0.0,
        -math.log(level),
    )
