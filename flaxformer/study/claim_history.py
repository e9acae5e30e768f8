"""Time of declaration of each claim, and the results that existed then, from the log of declarations."""

import dataclasses
import itertools
import json
from collections.abc import Sequence

from flaxformer.digests import JsonObject
from flaxformer.store.declaration_log import ANY_ARM, DeclarationLog
from flaxformer.study.claim import QUANTITY, arm_name
from flaxformer.wording import counted, listed

RULE = ("kind", "by", "within", "terms", "constant")
"""Fields of a claim that its test depends on."""


@dataclasses.dataclass(frozen=True)
class ClaimDeclaration:
    """Declaration of a claim in its present form.

    A claim is confirmatory if it was declared before its data: before any seed had the results of all of its arms.
    """

    time: str
    """Time of the entry (UTC, ISO 8601)."""
    existing_seeds: int
    """Number of the study's seeds that had the results of all of its arms."""
    existing: int
    """Number of results of its arms that existed, at the study's seeds."""
    declared: int
    """Number of results of its arms at the study's seeds, once all are there."""
    pilots: int
    """Number of results of its arms that existed at other seeds."""
    is_logged: bool
    """False if it was declared before the folder had a log."""
    is_intact: bool
    """False if the log was changed, or does not hold the claim."""
    remarks: tuple[str, ...] = ()
    """Later changes of the seeds by which results were chosen or added after others were known."""

    @property
    def is_confirmatory(self) -> bool:
        """True if the claim was declared before its data, or before the folder had a log."""
        return self.is_intact and (self.existing_seeds == 0 or not self.is_logged)


def claim_declarations(study: JsonObject, log: DeclarationLog, faults: Sequence[str]) -> list[ClaimDeclaration]:
    """Return the declaration of each claim of a study.

    Args:
      study: content of study.json.
      log: log of its folder.
      faults: faults of the log; with any, no claim counts as declared before its data.
    """
    if not log.digests and not faults:
        n = len(study["claims"])
        return [ClaimDeclaration("", 0, 0, 0, 0, is_logged=False, is_intact=True)] * n
    return [_declaration(claim, study, log, not faults) for claim in study["claims"]]


def withdrawn_claims(study: JsonObject, log: DeclarationLog) -> list[tuple[JsonObject, str]]:
    """Return the claims that were declared before their data and are no longer in that form, each with its metric.

    A claim that was withdrawn before its data is not among them, nor one that was declared after them.
    """
    current = [_key(claim, study["metric"]) for claim in study["claims"]]
    found: dict[str, tuple[JsonObject, str]] = {}
    for before, after in itertools.pairwise(log.declarations):
        left = [_key(claim, after["metric"]) for claim in after["claims"]]
        for claim in before["claims"]:
            key, arms = _key(claim, before["metric"]), _arms_of(claim, study)
            seeds = before["seeds"]
            first = _first(log, claim, before)
            is_confirmatory = first["kind"] == "earlier" or not _complete_seeds(first, arms, seeds)
            if key not in [*left, *current] and is_confirmatory and _complete_seeds(after, arms, seeds):
                found[key] = claim, before["metric"]
    return list(found.values())


def _declaration(claim: JsonObject, study: JsonObject, log: DeclarationLog, is_intact: bool) -> ClaimDeclaration:
    arms, seeds = _arms_of(claim, study), study["seeds"]
    last = log.declarations[-1] if log.declarations else None
    is_held = last is not None and _holds(last, claim, study["metric"]) and last["seeds"] == seeds
    if last is None or not is_held:
        return ClaimDeclaration("", 0, 0, len(arms) * len(seeds), 0, is_logged=True, is_intact=False)
    entry = _first(log, claim, last)
    results = {arm: set(entry["results"].get(arm, ())) for arm in arms}
    return ClaimDeclaration(
        time=entry["time"],
        existing_seeds=_complete_seeds(entry, arms, seeds),
        existing=sum(len(own & {*seeds}) for own in results.values()),
        declared=len(arms) * len(seeds),
        pilots=sum(len(own - {*seeds}) for own in results.values()),
        is_logged=entry["kind"] == "declaration",
        is_intact=is_intact,
        remarks=tuple(_seed_changes(log, entry, arms)),
    )


def _first(log: DeclarationLog, claim: JsonObject, until: JsonObject) -> JsonObject:
    """The first of the consecutive entries that hold a claim, up to an entry that does."""
    first, metric = until, until["metric"]
    for entry in reversed(log.declarations[: log.declarations.index(until)]):
        if not _holds(entry, claim, metric):
            break
        first = entry
    return first


def _holds(entry: JsonObject, claim: JsonObject, metric: str) -> bool:
    return _key(claim, metric) in [_key(one, entry["metric"]) for one in entry["claims"]]


def _key(claim: JsonObject, metric: str) -> str:
    """Identity of a claim: its text, its answers, its rule, and the metric if arms are compared."""
    is_about_arms = any(QUANTITY not in labels for _, labels in claim["terms"])
    fields = {name: claim.get(name) for name in ("text", "answers", *RULE)}
    fields["metric"] = metric if is_about_arms else ""
    return json.dumps(fields, sort_keys=True)


def _arms_of(claim: JsonObject, study: JsonObject) -> list[str]:
    """Names of the arms whose results decide a claim; all arms for a quantity that is derived from them."""
    if study["kind"] == "probe":
        return [ANY_ARM]
    if any(QUANTITY in labels for _, labels in claim["terms"]):
        return list(dict.fromkeys(trial["trial"].rpartition(",seed=")[0] for trial in study["trials"]))
    return list(dict.fromkeys(arm_name(labels) for _, labels in claim["terms"]))


def _complete_seeds(entry: JsonObject, arms: Sequence[str], seeds: Sequence[int]) -> int:
    """Number of the seeds at which all arms had results at the time of an entry."""
    return sum(all(seed in entry["results"].get(arm, ()) for arm in arms) for seed in seeds)


def _seed_changes(log: DeclarationLog, first: JsonObject, arms: Sequence[str]) -> list[str]:
    """Sentences on changes of the seeds after results at the new seeds were known."""
    entries = log.declarations[log.declarations.index(first) :]
    found = []
    for before, after in itertools.pairwise(entries):
        known = _complete_seeds(after, arms, after["seeds"])
        if before["seeds"] != after["seeds"] and known:
            found.append(
                f"seeds changed from {seeds_in_words(before['seeds'])} to {seeds_in_words(after['seeds'])} when "
                f"{known} of {counted(len(after['seeds']), 'seed')} had results"
            )
    return found


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Seeds as a range where they are one, such as "0 to 7", else as a list."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed(map(str, seeds))


def changes(before: JsonObject | None, after: JsonObject) -> list[str]:
    """Return what an entry changes in the declaration before it, in a sentence each."""
    if before is None:
        return [f"{counted(len(after['claims']), 'claim')}, seeds {seeds_in_words(after['seeds'])}"]
    found = []
    if before["metric"] != after["metric"]:
        found.append(f"metric: {before['metric']} -> {after['metric']}")
    if before["seeds"] != after["seeds"]:
        found.append(f"seeds: {seeds_in_words(before['seeds'])} -> {seeds_in_words(after['seeds'])}")
    if before.get("scaling") != after.get("scaling"):
        found.append(f"scaling: {_scaling(before)} -> {_scaling(after)}")
    old, new = ({one["text"]: one for one in entry["claims"]} for entry in (before, after))
    for text in dict.fromkeys([*old, *new]):
        if text not in new:
            found.append(f"claim withdrawn: {text}")
        elif text not in old:
            found.append(f"claim added: {text}")
        elif any(old[text][name] != new[text][name] for name in RULE):
            found.append(f"rule changed: {text} ({_rule(old[text])} -> {_rule(new[text])})")
        elif old[text].get("answers") != new[text].get("answers"):
            found.append(f"answers changed: {text}")
    for name, noun in (("arms", "arm"), ("code", "definition")):
        added, removed = ([key for key in one[name] if key not in other[name]] for one, other in
                          ((after, before), (before, after)))  # fmt: skip
        changed = [key for key in after[name] if key in before[name] and after[name][key] != before[name][key]]
        for word, keys in (("added", added), ("removed", removed), ("changed", changed)):
            if keys:
                shown = listed(keys) if len(keys) <= 3 else counted(len(keys), noun)
                found.append(f"{noun if len(keys) == 1 else f'{noun}s'} {word}: {shown}")
    return found or ["no change"]


def _scaling(entry: JsonObject) -> str:
    """The scaling law of an entry, such as "along size against flops, held out XL"."""
    if not (own := entry.get("scaling")):
        return "none"
    return f"along {own['axis']} against {own['against']}, held out {listed(own['held_out'] or ['nothing'])}"


def _rule(claim: JsonObject) -> str:
    """The rule of a claim as a formula, such as "−1·(norm=pre) +1·(norm=post) > 0"."""
    terms = " ".join(
        f"{weight:+g}·({', '.join(f'{name}={label}' for name, label in labels.items())})"
        for weight, labels in claim["terms"]
    ).replace("-", "−")
    constant = f" {claim['constant']:+g}" if claim["constant"] else ""
    if claim["kind"] == "equal":
        return f"|{terms}{constant}| < {claim['within']:g}"
    return f"{terms}{constant} > {claim['by']:g}"
