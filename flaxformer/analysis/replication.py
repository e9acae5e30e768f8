"""Replication: the claims of a study beside the same claims at seeds that it did not use."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from msgspec.structs import replace
from scipy import special

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.statistics.estimates import LEVEL, Estimate
from flaxformer.store import columns
from flaxformer.store.declaration import Declaration
from flaxformer.store.store import Store
from flaxformer.study.seeds import LAST
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import first_of

STEP = 1000
"""Distance between the seeds of a study and the first seeds that a replication may use."""
MOST_LISTED = 12
"""Number of differences that an error message lists."""


@dataclasses.dataclass(frozen=True)
class ReplicatedClaim:
    """A claim in the first study and in its replication.

    `low` and `high` are the 95 % prediction interval of the mean of the replication, given the first study (Spence and
    Stanley 2016): mean₁ ± t(n₁ − 1)·sd₁·√(1/n₁ + 1/n₂). It holds 95 of 100 replications of normal differences.
    """

    first: JudgedClaim
    fresh: JudgedClaim
    low: float
    high: float

    @property
    def is_predicted(self) -> bool:
        """True if the mean of the replication is in the prediction interval."""
        return self.low <= self.fresh.judgement.effect.mean <= self.high

    @property
    def has_same_verdict(self) -> bool:
        """True if both have the same verdict."""
        return self.first.judgement.verdict == self.fresh.judgement.verdict


def compare_claims(first: Analysis, fresh: Analysis) -> list[ReplicatedClaim]:
    """Return the claims that both analyses have, paired by text."""
    fresh_claims = {claim.text: claim for claim in fresh.claims}
    pairs = [(claim, fresh_claims[claim.text]) for claim in first.claims if claim.text in fresh_claims]
    return [
        ReplicatedClaim(a, b, *prediction_interval(a.judgement.effect, b.judgement.effect.n, first.exact))
        for a, b in pairs
    ]


def prediction_interval(effect: Estimate, n: int, exact: bool = False) -> tuple[float, float]:
    """Return the ends of the 95 % prediction interval of the mean of n further seeds; NaN without variance or seeds."""
    if exact and effect.n == 1:
        return effect.mean, effect.mean
    if effect.n < 2 or n < 1:
        return math.nan, math.nan
    half = float(special.stdtrit(effect.n - 1, 1 - LEVEL / 2)) * effect.sd * math.sqrt(1 / effect.n + 1 / n)
    return effect.mean - half, effect.mean + half


def used_seeds(store: Store, analysis: Analysis) -> set[int]:
    """Return every seed that a folder has results of, or that it ever declared."""
    used = {*columns.read(store, "seed")["seed"].to_list()} | {*analysis.study.seeds}
    return used | {seed for entry in analysis.log.declarations for seed in entry.seeds}


def fresh_seeds(seeds: Sequence[int], used: Collection[int]) -> tuple[int, ...]:
    """Return the seeds plus the first multiple of `STEP` that gives none of the used ones.

    Raises:
      UserError: there is none below 2³¹.
    """
    for offset in range(STEP, LAST - max(seeds) + 1, STEP):
        candidates = tuple(seed + offset for seed in seeds)
        if not {*candidates} & {*used}:
            return candidates
    raise UserError(f"seeds are {list(seeds)}; expected a multiple of {STEP} that gives unused seeds when added")


def check_fresh(seeds: Sequence[int], used: Collection[int], where: object) -> None:
    """Check that seeds are unused.

    Raises:
      UserError: some were used; the message lists them.
    """
    if repeated := sorted({*seeds} & {*used}):
        shown = ", ".join(map(str, repeated[:5])) + (", …" if len(repeated) > 5 else "")
        raise UserError(f"{where} already used the seeds {shown}; expected seeds that it did not use")


def check_same_recipes(first: Declaration, fresh: Declaration, source: str = "the copy of the study's file") -> None:
    """Check that two declarations have the same arms with the same recipes; the rule of a halving depends on seeds.

    Args:
      first: declaration of the folder.
      fresh: declaration of a file.
      source: the file, in words.

    Raises:
      UserError: they differ; the message lists the differences.
    """
    before, after = (
        {arm.arm: plain(replace(declaration.recipes[arm.arm], halving=None)) for arm in declaration.arms}
        for declaration in (first, fresh)
    )
    only = [f"arm {arm or 'of the baseline'}: in the folder alone" for arm in before if arm not in after]
    only += [f"arm {arm or 'of the baseline'}: in the file alone" for arm in after if arm not in before]
    changed = [line for arm in after if arm in before for line in differences(before[arm], after[arm])]
    if lines := [*only, *dict.fromkeys(changed)]:
        listed = first_of(lines, MOST_LISTED, "\n  ")
        raise UserError(
            f"{source} gives other recipes than those that ran:\n  {listed}\n"
            "Give the overrides of the first run after DIR, such as model.layers=4, and use the same package version; "
            "or give the file as it ran with --file."
        )
