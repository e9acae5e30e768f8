"""Time of declaration of each claim, and the results that were known then, from the log of declarations.

A result is known by its configuration and its seed (`store.log_entries`), whatever its arm, its study's claims or its
code were called then. A claim is identified by its text, its rule, and what it measures: the metric and the recipes of
its arms, with all user code, or the code and the recipes of a derived number.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredClaim
from flaxformer.store.declaration_log import ANY_ARM, DeclarationLog
from flaxformer.store.log_entries import DeclarationEntry, configuration_digest, question, recipe_digest
from flaxformer.study.claim import arm_name
from flaxformer.system.wording import count_of, join_words

RULE: tuple[str, ...] = ("kind", "by", "within", "terms", "constant")
"""Fields of a claim that its test depends on."""
TEXTS = ("question", "caveats", "unit", "goal", "axes")
"""Fields of a declaration of which a change is told without its content."""
KnownSeeds = Mapping[str, set[int]]
"""Seeds that have, or had, a result, by the configuration of the run."""


@dataclasses.dataclass(frozen=True)
class ClaimDeclaration:
    """Declaration of a claim in its present form.

    A claim is confirmatory if it was declared before its data: before any seed had the results of all of its arms. A
    derived number may depend on every run of a seed, so any of them counts.
    """

    time: str
    """Time of the entry (UTC, ISO 8601)."""
    existing_seeds: int
    """Number of the study's seeds at which its data were known."""
    seeds: int
    """Number of the study's seeds."""
    existing: int
    """Number of results of its arms that were known, at the study's seeds."""
    declared: int
    """Number of results of its arms at the study's seeds, once all are there."""
    pilots: int
    """Number of results of its arms at other seeds."""
    is_intact: bool
    """False if the log was changed or is missing, or does not hold the claim."""
    remarks: tuple[str, ...] = ()
    """Later changes of the seeds by which results were chosen or added after others were known."""

    @property
    def is_confirmatory(self) -> bool:
        """True if the claim was declared before its data."""
        return self.is_intact and self.existing_seeds == 0


@dataclasses.dataclass(frozen=True)
class WithdrawnClaim:
    """A claim that was declared before its data and withdrawn after them."""

    claim: DeclaredClaim
    entry: DeclarationEntry
    """The last declaration that held it, of those at seeds without earlier results."""


@dataclasses.dataclass(frozen=True)
class FurtherSeeds:
    """Sets of seeds that the study declared, had results of, and left behind."""

    sets: Sequence[Sequence[int]] = ()
    results: int = 0
    """Number of results of the study's arms at seeds that it does not declare."""

    def __str__(self) -> str:
        """A clause, such as "2 further sets of seeds were tried"."""
        return f"{count_of(len(self.sets), 'further set')} of seeds {'was' if len(self.sets) == 1 else 'were'} tried"


class History:
    """Declarations of a study in the order of time, with the results that were known at each.

    Args:
      study: content of study.json.
      log: log of its folder.
    """

    def __init__(self, study: Declaration, log: DeclarationLog) -> None:
        self.study, self.entries = study, log.declarations
        self.known = _known_results(self.entries)
        """The results that were known at each declaration, that of all earlier ones among them."""
        self.keys = [[identity(claim, entry) for claim in entry.claims] for entry in self.entries]
        last = self.entries[-1] if self.entries else None
        self.is_current = last is not None and question(study) == question(last)
        """True if study.json holds the last declaration of the log."""

    def declaration_of(self, claim: DeclaredClaim, is_intact: bool) -> ClaimDeclaration:
        """Return the declaration of a claim of the study; `is_intact` is False for a log with faults."""
        arms, seeds, n = self._arms_of(claim), self.study.seeds, len(self.entries) - 1
        is_held = self.is_current and _has_recipes(claim, self.study, self.entries[-1])
        if not is_held or (key := identity(claim, self.entries[-1])) not in self.keys[-1]:
            return ClaimDeclaration("", 0, len(seeds), 0, len(arms) * len(seeds), 0, is_intact=False)
        first = self._first(key, n)
        before, now = ([known.get(arm, set()) for arm in arms] for known in (self.known[first], self.known[n]))
        return ClaimDeclaration(
            time=self.entries[first].time,
            existing_seeds=len(self.known_seeds(claim, first, seeds)),
            seeds=len(seeds),
            existing=sum(len(arm_seeds & {*seeds}) for arm_seeds in before),
            declared=len(arms) * len(seeds),
            pilots=sum(len(arm_seeds - {*seeds}) for arm_seeds in now),
            is_intact=is_intact,
            remarks=tuple(self._seed_changes(claim, first)),
        )

    def withdrawn_claims(self) -> list[WithdrawnClaim]:
        """Return the claims that were declared before their data and are no longer declared in that form.

        A claim that was withdrawn before its data is not among them, nor one that was declared after them. Its data are
        those of its last declaration at seeds that had no results when it was first declared.
        """
        current = {*self.keys[-1]} if self.is_current else set()
        withdrawn: dict[str, WithdrawnClaim] = {}
        for n, before in enumerate(self.entries[:-1]):
            for claim, key in zip(before.claims, self.keys[n], strict=True):
                if key in current or self.known_seeds(claim, self._first(key, n), before.seeds, before):
                    continue
                if self.known_seeds(claim, n + 1, before.seeds, before):
                    withdrawn[key] = WithdrawnClaim(claim, before)
        return list(withdrawn.values())

    def further_seeds(self) -> FurtherSeeds:
        """Return the sets of seeds that were declared before, had results of the study's arms, and were left behind."""
        if not self.entries:
            return FurtherSeeds()
        declared, known = {*self.study.seeds}, self.known[-1]
        arms = [ANY_ARM] if self.study.kind == "probe" else {*self.entries[-1].arms.values()}
        further = {arm: known.get(arm, set()) - declared for arm in arms}
        tried = set().union(*further.values())
        sets = {tuple(sorted(entry.seeds)): entry.seeds for entry in self.entries}
        left = [seeds for seeds in sets.values() if ({*seeds} - declared) & tried]
        return FurtherSeeds(left, sum(map(len, further.values())))

    def known_seeds(
        self, claim: DeclaredClaim, at: int, seeds: Sequence[int], entry: DeclarationEntry | None = None
    ) -> list[int]:
        """Return the seeds at which the data of a claim were known at the time of a declaration.

        Args:
          claim: the claim.
          at: number of the declaration.
          seeds: the seeds to consider.
          entry: a declaration with the claim's arms; by default the last one.
        """
        known = self.known[at]
        if any(QUANTITY in labels for _, labels in claim.terms):
            return [seed for seed in seeds if any(seed in arm_seeds for arm_seeds in known.values())]
        arms = self._arms_of(claim, entry)
        return [seed for seed in seeds if all(seed in known.get(arm, ()) for arm in arms)]

    def _arms_of(self, claim: DeclaredClaim, entry: DeclarationEntry | None = None) -> list[str]:
        """Configurations of the arms whose results decide a claim; all arms for a number that is derived from them."""
        if self.study.kind == "probe":
            return [ANY_ARM]
        arms = (entry or self.entries[-1]).arms if self.entries else {}
        if any(QUANTITY in labels for _, labels in claim.terms):
            return list(dict.fromkeys(arms.values()))
        names = [arm_name(labels) for _, labels in claim.terms]
        return list(dict.fromkeys(arms.get(name, name) for name in names))

    def _first(self, key: str, until: int) -> int:
        """Number of the first of the consecutive declarations that hold a claim, up to one that does."""
        while until and key in self.keys[until - 1]:
            until -= 1
        return until

    def _seed_changes(self, claim: DeclaredClaim, first: int) -> list[str]:
        """Sentences on changes of the seeds after results at the new seeds were known."""
        sentences = []
        for n in range(first + 1, len(self.entries)):
            before, after = self.entries[n - 1].seeds, self.entries[n].seeds
            known = len(self.known_seeds(claim, n, after))
            if before != after and known:
                sentences.append(
                    f"seeds changed from {seeds_in_words(before)} to {seeds_in_words(after)} when {known} of "
                    f"{count_of(len(after), 'seed')} had results"
                )
        return sentences


def _known_results(entries: Sequence[DeclarationEntry]) -> list[KnownSeeds]:
    """Return the results that were known at each declaration: those that existed then or at an earlier one."""
    known_at: list[KnownSeeds] = []
    known: dict[str, set[int]] = {}
    configurations: dict[str, str] = {}
    for entry in entries:
        configurations = entry.arms | configurations  # results are those of earlier declarations
        known = {arm: {*seeds} for arm, seeds in known.items()}
        for arm, seeds in entry.results.items():
            known.setdefault(configurations.get(arm, arm), set()).update(seeds)
        configurations |= entry.arms
        known_at.append(known)
    return known_at


def identity(claim: DeclaredClaim, entry: DeclarationEntry) -> str:
    """Identity of a claim in a declaration: its text, its answers, its rule, and what it measures."""
    fields = [getattr(claim, name) for name in ("text", "answers", *RULE)]
    labels = [arm_labels for _, arm_labels in claim.terms]
    arms = [entry.recipes.get(arm_name(arm_labels)) for arm_labels in labels if QUANTITY not in arm_labels]
    measured = [entry.metric, *arms] if arms else []
    derived = [entry.measured_by] if len(arms) < len(labels) else []
    return json.dumps([fields, measured, derived], sort_keys=True)


def _has_recipes(claim: DeclaredClaim, study: Declaration, entry: DeclarationEntry) -> bool:
    """True if the arms of a claim have the same recipes in a declaration and in an entry."""
    for name in {arm_name(labels) for _, labels in claim.terms if QUANTITY not in labels}:
        recipe = study.recipes.get(name)
        digests = (None, None) if recipe is None else (configuration_digest(recipe), recipe_digest(recipe))
        if digests != (entry.arms.get(name), entry.recipes.get(name)):
            return False
    return True


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Seeds as a range where they are one, such as "0 to 7", else as a list."""
    if not seeds:
        return "none"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return join_words(map(str, seeds))


def changes(before: DeclarationEntry | None, after: DeclarationEntry) -> list[str]:
    """Return what an entry changes in the declaration before it, in a sentence each."""
    if before is None:
        return [f"{count_of(len(after.claims), 'claim')}, seeds {seeds_in_words(after.seeds)}"]
    sentences = [f"{name} changed" for name in TEXTS if getattr(before, name) != getattr(after, name)]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in ("name", "metric")]
    sentences += [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new]
    if before.seeds != after.seeds:
        sentences.append(f"seeds: {seeds_in_words(before.seeds)} -> {seeds_in_words(after.seeds)}")
    if before.scaling != after.scaling:
        sentences.append(f"scaling: {_scaling(before)} -> {_scaling(after)}")
    old, new = ({claim.text: claim for claim in entry.claims} for entry in (before, after))
    for text in dict.fromkeys([*old, *new]):
        if text not in new:
            sentences.append(f"claim withdrawn: {text}")
        elif text not in old:
            sentences.append(f"claim added: {text}")
        elif any(getattr(old[text], name) != getattr(new[text], name) for name in RULE):
            sentences.append(f"rule changed: {text} ({_rule(old[text])} -> {_rule(new[text])})")
        elif old[text].answers != new[text].answers:
            sentences.append(f"answers changed: {text}")
    for noun, former, present in (("arm", before.arms, after.arms), ("definition", before.code, after.code)):
        added, removed = [key for key in present if key not in former], [key for key in former if key not in present]
        changed = [key for key in present if key in former and present[key] != former[key]]
        for word, keys in (("added", added), ("removed", removed), ("changed", changed)):
            if keys:
                shown = join_words(keys) if len(keys) <= 3 else count_of(len(keys), noun)
                sentences.append(f"{noun if len(keys) == 1 else f'{noun}s'} {word}: {shown}")
    return sentences or ["no change"]


def _scaling(entry: DeclarationEntry) -> str:
    """The scaling law of an entry, such as "along size against flops, held out XL"."""
    if not (scaling := entry.scaling):
        return "none"
    return f"along {scaling.axis} against {scaling.against}, held out {join_words(scaling.held_out or ['nothing'])}"


def _rule(claim: DeclaredClaim) -> str:
    """The rule of a claim as a formula, such as "−1·(norm=pre) +1·(norm=post) > 0"."""
    terms = " ".join(
        f"{weight:+g}·({', '.join(f'{name}={label}' for name, label in labels.items())})"
        for weight, labels in claim.terms
    ).replace("-", "−")
    constant = f" {claim.constant:+g}" if claim.constant else ""
    if claim.kind == "equal":
        return f"|{terms}{constant}| < {claim.within:g}"
    return f"{terms}{constant} > {claim.by:g}"
