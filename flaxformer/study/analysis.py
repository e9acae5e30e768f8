"""Analysis of the rows of a study: a table of arms, judged claims, and exploratory contrasts."""

import dataclasses
import functools
import itertools
import math
from typing import Any

from flaxformer.store.store import Row, Store
from flaxformer.study.claim import QUANTITY, Labels
from flaxformer.study.statistics import (
    FEWEST_SEEDS,
    LEVEL,
    Estimate,
    Judgement,
    estimate,
    judge_difference,
    judge_equivalence,
    proportion,
    with_verdicts,
)

MOST_DRAWN = 200
"""Arms that a figure of arms, the learning curves and a table in the terminal have room for."""
Terms = list[tuple[float, Labels]]


@dataclasses.dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds: scores in the order of `seeds`, None where a run is missing, failed or stopped early."""

    labels: Labels
    scores: list[float | None]
    rows: list[Row | None]
    diverged: int

    @functools.cached_property
    def estimate(self) -> Estimate:
        """Mean and interval over the seeds that there are."""
        return estimate([score for score in self.scores if score is not None])

    @property
    def stopped_at(self) -> int | None:
        """The step after which a halving stopped it."""
        return next((row["stopped_at"] for row in self.rows if row and row["status"] == "stopped"), None)


@dataclasses.dataclass(frozen=True)
class JudgedClaim:
    """A declared claim, with the fields of its declaration, and what the runs say of it."""

    text: str
    kind: str
    by: float
    within: float | None
    unit: str
    terms: Terms
    constant: float
    differences: list[float]
    judgement: Judgement


@dataclasses.dataclass(frozen=True)
class Exploration:
    """One step along one axis from the baseline's level, elsewhere as `context` says, that no claim is about."""

    axis: str
    label: str
    reference: str
    context: Labels
    judgement: Judgement
    opposite: bool
    """True if its sign is against that of the same step around the baseline."""

    @property
    def clear(self) -> bool:
        """True if it holds among all explorations (Holm)."""
        return self.judgement.p_holm < LEVEL

    @property
    def hint(self) -> bool:
        """True if it would hold alone, and points against the baseline's direction: worth a study of its own."""
        return self.opposite and not self.clear and self.judgement.p < LEVEL


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Everything that a report shows, computed from the store alone."""

    study: Row
    rows: list[Row]
    arms: list[ArmSummary]
    quantities: list[ArmSummary]
    """Quantities that a probe measured or that were derived from runs: labelled {"quantity": NAME}."""
    claims: list[JudgedClaim]
    explorations: list[Exploration]

    @property
    def exact(self) -> bool:
        """True if its numbers are facts of the program, without a spread."""
        return self.study.get("exact", False)

    @property
    def missing(self) -> int:
        """Declared trials without a finished run; one that was stopped early is not missing."""
        return sum(score is None for arm in self.arms for score in arm.scores) - len(self.stopped)

    @functools.cached_property
    def stopped(self) -> list[Row]:
        """Runs that a halving stopped early."""
        return [row for row in self.rows if row["status"] == "stopped"]

    @property
    def failed(self) -> list[Row]:
        """Runs that ended in an exception."""
        return [row for row in self.rows if row["status"] == "failed"]

    @property
    def exploratory_findings(self) -> list[Exploration]:
        """Effects that no claim is about: those against the baseline's direction first, then by size."""
        found = [one for one in self.explorations if one.clear or one.hint]
        return sorted(found, key=lambda one: (not one.opposite, -abs(one.judgement.effect.mean)))

    @property
    def divergence(self) -> tuple[int, int, float, float]:
        """Diverged runs, runs, and the 95 % interval of the rate."""
        finished = [row for row in self.rows if row["status"] != "failed"]
        diverged = sum(map(_has_diverged, finished))
        low, high = proportion(diverged, len(finished)) if finished else (math.nan, math.nan)
        return diverged, len(finished), low, high

    @property
    def limits(self) -> list[str]:
        """Limits of the study: the author's caveats, and what follows from its size."""
        n = len(self.study["seeds"])
        short = n < FEWEST_SEEDS and not self.exact
        few = [f"It has {n} seeds; below {FEWEST_SEEDS} an interval says little."] if short else []
        many = [f"Figures show at most {MOST_DRAWN} arms, and it has {len(self.arms)}: the tables have them."]
        many = many if len(self.arms) > MOST_DRAWN else []
        gone = [f"{self.missing} of {len(self.study['trials'])} runs are missing."] if self.missing else []
        return [*gone, *self._stops, *self._kept_results, *few, *many, *self.study["caveats"]]

    @property
    def _kept_results(self) -> list[str]:
        """Results that were kept although their code has changed since."""
        return [
            f"On {one['time'][:10]} code had changed ({', '.join(one['changed'])}), and {one['results']} results of "
            "the code before were kept."
            for one in self.study.get("code_changes", ())
            if one["decision"] == "keep"
        ]

    @property
    def _stops(self) -> list[str]:
        if not self.stopped:
            return []
        steps = " or ".join(map(str, sorted({row["stopped_at"] for row in self.stopped})))
        return [
            f"{len(self.stopped)} of {len(self.study['trials'])} runs were stopped after {steps} steps, their arms "
            "being behind others of the same program; they have no result of the whole training. The best of many is "
            "better on the seeds that chose it than on others."
        ]


def score(row: Row, metric: str) -> float:
    """A run's result; one that diverged, or ended in no finite number, counts as it was before training."""
    value, initial = row[metric], row[f"initial_{metric}"]
    return value if row["status"] == "done" and math.isfinite(value) else initial


def _has_diverged(row: Row) -> bool:
    return row.get("diverged_at") is not None


def analyse(store: Store) -> Analysis:
    """Read a study's folder, complete or not."""
    study, found = store.declaration, store.rows()
    declared = [found[trial["trial"]] for trial in study["trials"] if trial["trial"] in found]
    finished = {row["trial"]: row for row in declared if row["status"] != "failed"}
    trials: dict[str, list[Row]] = {}
    for trial in study["trials"]:
        trials.setdefault(_key(trial["labels"]), []).append(trial)
    arms = []
    for own in trials.values():
        rows = [finished.get(trial["trial"]) for trial in own]
        scores = [None if row is None or row["status"] == "stopped" else score(row, study["metric"]) for row in rows]
        diverged = sum(row is not None and _has_diverged(row) for row in rows)
        arms.append(ArmSummary(own[0]["labels"], scores, rows, diverged))
    by_labels = {_key(arm.labels): arm for arm in arms}
    quantities = _quantities(study, store)
    measured = by_labels | {_key(one.labels): one for one in quantities}
    return Analysis(study, declared, arms, quantities, _judge(study, measured), _explore(study, by_labels))


def _quantities(study: Row, store: Store) -> list[ArmSummary]:
    """One summary for each number that was measured or derived, over the declared seeds."""
    rows = {row["seed"]: row for row in store.measurements(study)}
    own = [rows.get(seed) for seed in study["seeds"]]
    names = dict.fromkeys(name for row in own if row for name in row["values"])
    return [
        ArmSummary({QUANTITY: name}, [row["values"].get(name) if row else None for row in own], list(own), 0)
        for name in names
    ]


def _key(labels: Labels) -> str:
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


def paired_differences(terms: Terms, arms: dict[str, ArmSummary], constant: float = 0.0) -> list[float]:
    """The contrast's value at each seed at which all that it is about was run or measured."""
    if not all(_key(labels) in arms for _, labels in terms):
        return []
    weights = [weight for weight, _ in terms]
    columns = zip(*(arms[_key(labels)].scores for _, labels in terms), strict=True)
    return [
        sum(w * s for w, s in zip(weights, column, strict=True)) + constant for column in columns if None not in column
    ]


def _judge(study: Row, arms: dict[str, ArmSummary]) -> list[JudgedClaim]:
    drawn, judgements, exact = [], [], study.get("exact", False)
    for claim in study["claims"]:
        differences = paired_differences(claim["terms"], arms, claim["constant"])
        drawn.append(differences)
        if claim["kind"] == "equal":
            judgements.append(judge_equivalence(differences, claim["within"], exact))
        else:
            judgements.append(judge_difference(differences, claim["by"], exact))
    return [
        JudgedClaim(**claim, differences=differences, judgement=judgement)
        for claim, differences, judgement in zip(study["claims"], drawn, with_verdicts(judgements), strict=True)
    ]


def _explore(study: Row, arms: dict[str, ArmSummary]) -> list[Exploration]:
    """Every level against its axis' reference level, in every context that was run and no claim is about."""
    declared = {_pair(claim["terms"][i : i + 2]) for claim in study["claims"] for i in range(0, len(claim["terms"]), 2)}
    baseline = {axis["name"]: axis["baseline"] for axis in study["axes"]}
    steps, directions = [], {}
    for axis in study["axes"]:
        name, reference = axis["name"], axis["baseline"] or axis["labels"][0]
        others = [[(other["name"], label) for label in other["labels"]] for other in study["axes"] if other is not axis]
        for label, context in itertools.product(axis["labels"], map(dict, itertools.product(*others))):
            terms = [(1.0, {**context, name: label}), (-1.0, {**context, name: reference})]
            differences = [] if label == reference else paired_differences(terms, arms)
            if context.items() <= baseline.items():
                directions[name, label] = sum(differences)
            if len(differences) > 1 and _pair(terms) not in declared:
                steps.append((name, label, reference, context, judge_difference(differences)))
    judged = with_verdicts([step[-1] for step in steps])
    return [
        Exploration(*step[:-1], judgement, judgement.effect.mean * directions.get(step[:2], 0.0) < 0)
        for step, judgement in zip(steps, judged, strict=True)
    ]


def _pair(terms: Any) -> frozenset[str]:
    return frozenset(_key(labels) for _, labels in terms)
