"""Comparison of two studies from their folders: what differs in their recipes, and their arms and claims in pairs."""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import TypeVar

from flaxformer.analysis.analysis import Analysis, ArmSummary
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.statistics.estimates import Estimate, estimate
from flaxformer.store.declaration import Declaration, Labels, key_of
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import first_of

Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class ArmPair:
    """Arms, or quantities, with the same labels; None where one study has no such arm.

    `difference` estimates B − A over the seeds that both have, paired by seed; its `n` is 0 where there are none, or
    where the metrics differ.
    """

    labels: Labels
    a: ArmSummary | None
    b: ArmSummary | None
    difference: Estimate


@dataclasses.dataclass(frozen=True)
class ClaimPair:
    """Claims with the same text; None where one study does not declare it."""

    text: str
    a: JudgedClaim | None
    b: JudgedClaim | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two studies side by side."""

    a: Analysis
    b: Analysis
    settings: list[str]
    """Differences of the studies themselves, as `name: A -> B`."""
    recipes: dict[str, list[str]]
    """Differences of recipes, as `path: A -> B`, by arm; "" for the differences that all shared arms have."""
    arms: list[ArmPair]
    claims: list[ClaimPair]

    @property
    def has_same_metric(self) -> bool:
        """True if the arms of both are measured by the same number."""
        return _metric(self.a) == _metric(self.b)


def compare(a: Analysis, b: Analysis) -> Comparison:
    """Compare two studies.

    Raises:
      UserError: they have no arm, no quantity and no claim in common.
    """
    arms, claims = _pair_arms(a, b), _pair_claims(a, b)
    if not any(pair.a and pair.b for pair in arms) and not any(pair.a and pair.b for pair in claims):
        names = [f"'{analysis.study.name}' has {_arm_names(analysis)}" for analysis in (a, b)]
        raise UserError(
            f"the studies have no arm and no claim in common ({'; '.join(names)}); expected two studies that share "
            "labels of their axes, or claims"
        )
    return Comparison(a, b, _settings(a.study, b.study), _recipes(a.study, b.study), arms, claims)


def _arm_names(analysis: Analysis) -> str:
    names = [
        ", ".join(f"{axis}={label}" for axis, label in arm.labels.items()) or "baseline" for arm in _summaries(analysis)
    ]
    return first_of(names, 4, " | ")


def _summaries(analysis: Analysis) -> list[ArmSummary]:
    return [*analysis.arms, *analysis.quantities]


def _metric(analysis: Analysis) -> tuple[str | None, str | None]:
    return analysis.study.metric, analysis.study.unit


def _pair_arms(a: Analysis, b: Analysis) -> list[ArmPair]:
    arms_a, arms_b = ({key_of(arm.labels): arm for arm in _summaries(analysis)} for analysis in (a, b))
    same_metric = _metric(a) == _metric(b)
    pairs = []
    for key in _union(arms_a, arms_b):
        arm_a, arm_b = arms_a.get(key), arms_b.get(key)
        shared = _differences(a, arm_a, b, arm_b) if arm_a and arm_b and same_metric else []
        labels = arm_a.labels if arm_a else arm_b.labels if arm_b else {}
        pairs.append(ArmPair(labels, arm_a, arm_b, estimate(shared)))
    return pairs


def _differences(a: Analysis, arm_a: ArmSummary, b: Analysis, arm_b: ArmSummary) -> list[float]:
    """B − A at each seed at which both have a result."""
    before = dict(zip(a.study.seeds, arm_a.scores, strict=True))
    after = dict(zip(b.study.seeds, arm_b.scores, strict=True))
    pairs = [(before[seed], after[seed]) for seed in before if seed in after]
    return [y - x for x, y in pairs if x is not None and y is not None]


def _pair_claims(a: Analysis, b: Analysis) -> list[ClaimPair]:
    claims_a, claims_b = ({claim.text: claim for claim in analysis.claims} for analysis in (a, b))
    return [ClaimPair(text, claims_a.get(text), claims_b.get(text)) for text in _union(claims_a, claims_b)]


def _union(keys_a: Iterable[Key], keys_b: Iterable[Key]) -> list[Key]:
    return list(dict.fromkeys([*keys_a, *keys_b]))


def _settings(a: Declaration, b: Declaration) -> list[str]:
    shown = ("kind", "metric", "unit", "seeds")
    return differences(*({name: getattr(study, name) for name in shown} for study in (a, b)))


def _recipes(a: Declaration, b: Declaration) -> dict[str, list[str]]:
    """Differences of the recipes of each shared arm; without a shared one, of the first arm of each."""
    before, after = ({name: plain(recipe) for name, recipe in declaration.recipes.items()} for declaration in (a, b))
    shared = [name for name in before if name in after]
    pairs = {name: (before[name], after[name]) for name in shared}
    if not shared and before and after:
        names = next(iter(before)), next(iter(after))
        pairs = {f"{names[0]} | {names[1]}": (before[names[0]], after[names[1]])}
    by_arm = {name: [line.removeprefix("run.") for line in differences(*pair)] for name, pair in pairs.items()}
    common = [line for line in next(iter(by_arm.values()), []) if all(line in lines for lines in by_arm.values())]
    remaining = {name: [line for line in lines if line not in common] for name, lines in by_arm.items()}
    return {name: lines for name, lines in ({"": common} | remaining).items() if lines}
