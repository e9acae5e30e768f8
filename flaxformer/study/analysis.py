"""Analysis of a folder of results: arms, claims with verdicts, exploratory contrasts, and sweeps."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection

from flaxformer.digests import JsonObject
from flaxformer.store import declaration_log
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study.arms import ArmSummary, divergence_rates
from flaxformer.study.claim import QUANTITY, Labels
from flaxformer.study.divergence import RULE, is_diverged, score
from flaxformer.study.evaluation_data import coverage, data_limits
from flaxformer.study.judging import JudgedClaim, Terms, judge_claims, key_of, paired_differences
from flaxformer.study.statistics import (
    FEWEST_SEEDS,
    Judgement,
    benjamini_hochberg,
    judge_difference,
    proportion,
    with_verdicts,
)
from flaxformer.study.sweep import NEIGHBOURS, Sweep, find_sweeps
from flaxformer.wording import counted

MOST_DRAWN = 200
"""Largest number of arms in a figure of arms, in the learning curves, and in a table of the terminal."""
WEAK = 0.10
"""False discovery rate of the exploratory findings: without any effect, at most so many reports have one."""


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Contrast of a level with the reference level of its axis, for the labels `context` of the other axes."""

    axis: str
    label: str
    reference: str
    context: Labels
    judgement: Judgement
    is_opposite: bool
    """True if its sign is opposite to that of the same step at the baseline, which is significant."""
    p_discovery: float = 1.0
    """p-value corrected for all explorations by the method of Benjamini and Hochberg (1995)."""

    @property
    def is_significant(self) -> bool:
        """True if its p-value, corrected for all explorations by Holm, is below the level."""
        return self.judgement.verdict != "inconclusive"

    @property
    def is_weak_signal(self) -> bool:
        """True if it is not significant, and its false discovery rate is below `WEAK`."""
        return not self.is_significant and self.judgement.can_decide and self.p_discovery < WEAK


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Content of a report, computed from the folder of results alone."""

    study: JsonObject
    rows: list[Row]
    arms: list[ArmSummary]
    quantities: list[ArmSummary]
    """Quantities that a probe measured or that were derived from runs: labelled {"quantity": NAME}."""
    claims: list[JudgedClaim]
    withdrawn: list[JudgedClaim]
    """Claims that were declared before their data and withdrawn or changed after; they still count in Holm's family."""
    explorations: list[Exploration]
    sweeps: list[Sweep]
    log: DeclarationLog
    log_faults: list[str]
    """Faults of the log of declarations; with any, no claim counts as declared before its data."""
    damaged: dict[str, str]
    """Damage of files, by the path in the folder; what is damaged is not used."""
    disagreements: dict[str, str]
    """Differing results of one trial, by its name."""

    @property
    def exact(self) -> bool:
        """True if the numbers do not depend on the seed."""
        return self.study.get("exact", False)

    @property
    def missing(self) -> int:
        """Number of declared trials without a finished run; a run that was stopped early is not missing."""
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
        """Significant contrasts and weak signals: those opposite to the effect at the baseline first, then by size."""
        found = [one for one in self.explorations if one.is_significant or one.is_weak_signal]
        return sorted(found, key=lambda one: (not one.is_opposite, -abs(one.judgement.effect.mean)))

    @property
    def coverage(self) -> str:
        """Sentence on what the intervals cover; empty where nothing was trained."""
        return coverage(self.study, [row for row in self.rows if row["status"] == "done"])

    @property
    def divergence(self) -> tuple[int, int, float, float]:
        """Number of diverged runs and of runs, and the 95 % interval of the rate."""
        finished = [row for row in self.rows if row["status"] != "failed"]
        diverged = sum(map(is_diverged, finished))
        low, high = proportion(diverged, len(finished)) if finished else (math.nan, math.nan)
        return diverged, len(finished), low, high

    @property
    def limits(self) -> list[str]:
        """Limits of the study: the author's caveats, and those that follow from its size and its results."""
        n, trials = len(self.study["seeds"]), len(self.study["trials"])
        found = [f"{self.missing} of {trials} runs are missing."] if self.missing else []
        found += [
            *self._divergence_limits,
            *self._stop_limits,
            *self._sweep_limits,
            *self._code_limits,
            *self._log_limits,
            *self._damage_limits,
            *data_limits(self.study),
        ]
        if n < FEWEST_SEEDS and not self.exact:
            found.append(f"It has {counted(n, 'seed')}; with fewer than {FEWEST_SEEDS}, no claim is decided.")
        if len(self.arms) > MOST_DRAWN:
            found.append(f"Figures show at most {MOST_DRAWN} arms; the tables have all {len(self.arms)}.")
        return [*found, *self.study["caveats"]]

    @property
    def _divergence_limits(self) -> list[str]:
        """The rule of divergence, in every report of training, and the rate of each arm with diverged runs."""
        if self.study["kind"] != "study" or not self.divergence[1]:
            return []
        return [RULE, *divergence_rates(self.arms)]

    @property
    def _damage_limits(self) -> list[str]:
        """Files of results that are damaged, whose content is not used, and seeds without a measurement."""
        found = [f"{name} is damaged and not used ({what})." for name, what in self.damaged.items()]
        found += [
            f"{trial} was trained more than once, with different results ({what}): training is not deterministic."
            for trial, what in self.disagreements.items()
        ]
        n = len(self.study["seeds"])
        measured = max((one.estimate.n for one in self.quantities), default=0)
        if (self.quantities or self.study["kind"] == "probe") and not self.missing and measured < n:
            found.append(f"Measurements at {n - measured} of {counted(n, 'seed')} are missing.")
        return found

    @property
    def _code_limits(self) -> list[str]:
        """Results that were kept although their code has changed since."""
        return [
            f"On {one['time'][:10]}, code had changed ({', '.join(one['changed'])}); results of the earlier code were "
            f"kept: {one['results']}."
            for one in self.study.get("code_changes", ())
            if one["decision"] == "keep"
        ]

    @property
    def _log_limits(self) -> list[str]:
        """Changes of seeds after results were known, and faults of the log of declarations."""
        remarks = {remark for claim in self.claims if claim.declaration for remark in claim.declaration.remarks}
        found = [
            f"{remark[0].upper()}{remark[1:]}; verdicts after such a choice are wrong more often than stated."
            for remark in sorted(remarks)
        ]
        if self.log_faults:
            faults = "; ".join(self.log_faults)
            found.append(f"The log of declarations was changed: {faults}. No claim counts as declared before its data.")
        return found

    @property
    def _stop_limits(self) -> list[str]:
        if not self.stopped:
            return []
        steps = " or ".join(map(str, sorted({row["stopped_at"] for row in self.stopped})))
        return [
            f"{len(self.stopped)} of {len(self.study['trials'])} runs were stopped after {steps} steps, because their "
            "arms were behind others of the same program; they have no final result."
        ]

    @property
    def _sweep_limits(self) -> list[str]:
        if not self.sweeps:
            return []
        found = ["The score at a best value is optimistic: the same seeds chose the value. Confirm it on other seeds."]
        optima = [line.optimum for sweep in self.sweeps for line in sweep.lines if line.optimum is not None]
        if optima:
            steps = sorted({one.step for one in optima if one.step is not None})
            after = f"; where too few arms went on, to the scores after {' or '.join(map(str, steps))} steps"
            found.append(
                "An optimum is the minimum of a parabola in the logarithm of the value, fitted to the best value and "
                f"up to {NEIGHBOURS} on each side{after if steps else ''}; its interval relies on that form."
            )
        return found


def analyse(store: Store) -> Analysis:
    """Analyse the results of a study or a probe; the study may be incomplete."""
    study, found = store.declaration, store.rows()
    declared = [found[trial["trial"]] for trial in study["trials"] if trial["trial"] in found]
    finished = {row["trial"]: row for row in declared if row["status"] != "failed"}
    trials: dict[str, list[JsonObject]] = {}
    for trial in study["trials"]:
        trials.setdefault(key_of(trial["labels"]), []).append(trial)
    arms = []
    for own in trials.values():
        rows = [finished.get(trial["trial"]) for trial in own]
        scores = [None if row is None or row["status"] == "stopped" else score(row, study["metric"]) for row in rows]
        diverged = sum(row is not None and is_diverged(row) for row in rows)
        arms.append(ArmSummary(own[0]["labels"], scores, rows, diverged))
    by_labels = {key_of(arm.labels): arm for arm in arms}
    quantities = _quantities(study, store)
    measured = by_labels | {key_of(one.labels): one for one in quantities}
    sweeps = find_sweeps(study, arms)
    log = declaration_log.read(store)
    held = [row.declaration for row in found.values()]
    faults = log.faults_of([*held, *(row.get("declaration") for row in store.measurements(study))])
    claims, withdrawn = judge_claims(study, measured, log, faults)
    explorations = _explore(study, by_labels, {sweep.axis for sweep in sweeps})
    parts = study, declared, arms, quantities, claims, withdrawn, explorations, sweeps, log, faults
    return Analysis(*parts, dict(store.corrupt_files), dict(store.disagreements))


def analyse_to_show(store: Store, reader: str) -> Analysis:
    """Analyse results that somebody will see; where claims lack results, an interim analysis is recorded.

    Args:
      store: the study's folder.
      reader: the command that shows them, such as "report".
    """
    analysis = analyse(store)
    if analysis.claims and analysis.missing and analysis.rows:
        declared = len(analysis.study["trials"])
        declaration_log.record_interim_analysis(store, declared - analysis.missing, declared, reader)
        return dataclasses.replace(analysis, log=declaration_log.read(store))
    return analysis


def _quantities(study: JsonObject, store: Store) -> list[ArmSummary]:
    """Return a summary per number that was measured or derived, over the declared seeds."""
    rows = {row["seed"]: row for row in store.measurements(study)}
    own = [rows.get(seed) for seed in study["seeds"]]
    names = dict.fromkeys(name for row in own if row for name in row["values"])
    return [
        ArmSummary({QUANTITY: name}, [row["values"].get(name) if row else None for row in own], [None] * len(own), 0)
        for name in names
    ]


def _explore(study: JsonObject, arms: dict[str, ArmSummary], swept: Collection[str]) -> list[Exploration]:
    """Compare every level with the reference level of its axis, in every context that was run.

    Contrasts that a claim is about are left out, and those along the swept axes, which the sweeps describe.
    """
    declared = {_pair(claim["terms"][i : i + 2]) for claim in study["claims"] for i in range(0, len(claim["terms"]), 2)}
    baseline = {axis["name"]: axis["baseline"] for axis in study["axes"]}
    steps, at_baseline = [], {}
    for axis in study["axes"]:
        name, reference = axis["name"], axis["baseline"] or axis["labels"][0]
        others = [[(other["name"], label) for label in other["labels"]] for other in study["axes"] if other is not axis]
        for label, context in itertools.product(axis["labels"], map(dict, itertools.product(*others))):
            terms = [(1.0, {**context, name: label}), (-1.0, {**context, name: reference})]
            differences = [] if label == reference else paired_differences(terms, arms)
            if context.items() <= baseline.items():
                at_baseline[name, label] = judge_difference(differences)
            if len(differences) > 1 and _pair(terms) not in declared and name not in swept:
                steps.append((name, label, reference, context, judge_difference(differences)))
    judged = with_verdicts([step[-1] for step in steps])
    discovery = benjamini_hochberg([one.p if one.can_decide else 1.0 for one in judged])
    known = dict(zip(at_baseline, with_verdicts(list(at_baseline.values())), strict=True))
    directions = {step: one.effect.mean for step, one in known.items() if one.verdict != "inconclusive"}
    return [
        Exploration(*step[:-1], judgement, judgement.effect.mean * directions.get(step[:2], 0.0) < 0, p)
        for step, judgement, p in zip(steps, judged, discovery, strict=True)
    ]


def _pair(terms: Terms) -> frozenset[str]:
    return frozenset(key_of(labels) for _, labels in terms)
