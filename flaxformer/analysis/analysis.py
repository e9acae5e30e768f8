"""Analysis of a folder of results: arms, claims with verdicts, exploratory contrasts, and sweeps."""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from flaxformer.analysis.arms import ArmSummary, divergence_rates, without_value
from flaxformer.analysis.claim_history import FurtherSeeds, History
from flaxformer.analysis.declaration_limits import foreign_limits, log_limits
from flaxformer.analysis.effects import Change, changes
from flaxformer.analysis.explore import Exploration, explore
from flaxformer.analysis.former_results import former_arms
from flaxformer.analysis.judging import JudgedClaim, judge_claims
from flaxformer.analysis.scaling_analysis import ScalingAnalysis, analyse_scaling, limits_of_scaling, scaling_axes
from flaxformer.analysis.speedup import SpeedUps, speed_ups
from flaxformer.analysis.sweep import Sweep, find_sweeps
from flaxformer.analysis.trials import ArmRows, Rows, TrialResults
from flaxformer.statistics.estimates import proportion
from flaxformer.statistics.finite import describe_left_out, finite
from flaxformer.statistics.judgement import FEWEST_SEEDS
from flaxformer.statistics.parabola import NEIGHBOURS
from flaxformer.store import declaration_log, trial_measurements
from flaxformer.store.declaration import QUANTITY, Declaration, DeclaredTrial, Labels, key_of
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.line_forms import LAUNCHES, TrialMeasurement, read_checked
from flaxformer.store.store import Store
from flaxformer.study.data_limits import coverage, data_limits
from flaxformer.study.divergence import RULE
from flaxformer.system.user_code import read_records
from flaxformer.system.wording import count_of

MOST_DRAWN = 200
"""Largest number of arms in a figure of arms, in the learning curves, and in a table of the terminal."""
MOST_LISTED = 20
"""Largest number of runs with differing results that a report names."""
BOUNDS = {"of accuracy": (0.0, 1.0)}
"""Bounds of a metric by its unit."""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Content of a report, computed from the folder of results alone."""

    study: Declaration
    results: TrialResults
    """Results of all declared trials by column."""
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
    further_seeds: FurtherSeeds = dataclasses.field(default_factory=FurtherSeeds)
    """Sets of seeds that the study tried and left behind."""
    measured: dict[str, dict[str, TrialMeasurement]] = dataclasses.field(default_factory=dict)
    """Numbers measured from kept weights, by function and trial."""
    reads: list[str] = dataclasses.field(default_factory=list)
    """Files, folders and environment variables that user code has read, such as "data.txt" or "variable LEVEL"."""

    @property
    def exact(self) -> bool:
        """True if the numbers do not depend on the seed."""
        return self.study.exact

    @functools.cached_property
    def missing(self) -> int:
        """Number of declared trials without a finished run; a run that was stopped early is not missing."""
        has_row = [status not in (None, "failed") for status in self.results.statuses]
        return has_row.count(False) + len(self.results.places_without_score(self.study.metric))

    @functools.cached_property
    def rows(self) -> Rows:
        """Rows of the declared trials with all their columns, read from the folder when they are asked for."""
        return self.results.rows

    @functools.cached_property
    def stopped_runs(self) -> Rows:
        """Runs that a halving stopped early."""
        return self.results.with_status("stopped")

    @functools.cached_property
    def failed_runs(self) -> Rows:
        """Runs that ended in an exception."""
        return self.results.with_status("failed")

    @property
    def axes(self) -> list[str]:
        """Names of the axes."""
        return [axis.name for axis in self.study.axes]

    @functools.cached_property
    def scaling(self) -> ScalingAnalysis | None:
        """Scaling laws of a study that declares them."""
        return analyse_scaling(self.study, self.arms)

    @functools.cached_property
    def changes(self) -> list[Change]:
        """Effects of the changes of a study that varies its axes one at a time."""
        return changes(self.study, self.arms)

    @functools.cached_property
    def speed_ups(self) -> list[SpeedUps]:
        """Effective speed-ups of the arms over the reference, and of the arms of claims over each other."""
        return list(speed_ups(self.study, self.arms))

    @functools.cached_property
    def exploratory_findings(self) -> list[Exploration]:
        """Significant contrasts and weak signals: those opposite to the effect at the baseline first, then by size."""
        findings = [contrast for contrast in self.explorations if contrast.is_significant or contrast.is_weak_signal]
        return sorted(findings, key=lambda contrast: (not contrast.is_opposite, -abs(contrast.judgement.effect.mean)))

    @property
    def ordered_explorations(self) -> list[Exploration]:
        """All exploratory contrasts, the findings first."""
        findings = self.exploratory_findings
        known = {id(finding) for finding in findings}
        return [*findings, *(contrast for contrast in self.explorations if id(contrast) not in known)]

    @property
    def coverage(self) -> str:
        """Sentence on what the intervals cover; empty where nothing was trained."""
        errors = self.results.numbers(f"{self.study.metric}_se")
        is_done = self.results.table["status"].eq_missing("done")
        return coverage(self.study, errors.filter(is_done).drop_nulls().to_list())

    @functools.cached_property
    def divergence(self) -> tuple[int, int, float, float]:
        """Number of diverged runs and of runs, and the 95 % interval of the rate."""
        finished, diverged = len(self.rows) - len(self.failed_runs), int(self.results.diverged.sum())
        low, high = proportion(diverged, finished) if finished else (math.nan, math.nan)
        return diverged, finished, low, high

    @property
    def limits(self) -> list[str]:
        """Limits of the study: the author's caveats, and those that follow from its size and its results."""
        n = len(self.study.seeds)
        limits = [
            *self._missing_limits,
            *self._divergence_limits,
            *describe_left_out(without_value(self.study, [*self.arms, *self.quantities])),
            *self._stop_limits,
            *self._sweep_limits,
            *limits_of_scaling(self.scaling),
            *self._code_limits,
            *self._log_limits,
            *self._damage_limits,
            *data_limits(self.study),
        ]
        if n < FEWEST_SEEDS and not self.exact:
            limits.append(f"It has {count_of(n, 'seed')}; with fewer than {FEWEST_SEEDS}, no claim is decided.")
        if len(self.arms) > MOST_DRAWN:
            limits.append(f"Figures show at most {MOST_DRAWN} arms; the files in tables/ have all {len(self.arms):,}.")
        return [*limits, *self.study.caveats]

    @property
    def warnings(self) -> list[str]:
        """Limits by which a verdict is less reliable than it says: missing, chosen, forged or damaged results."""
        return [*self._missing_limits, *self._log_limits, *self._damage_limits]

    @property
    def _missing_limits(self) -> list[str]:
        return [f"{self.missing} of {len(self.study.trials)} runs are missing."] if self.missing else []

    @property
    def _log_limits(self) -> list[str]:
        """Seeds that were chosen or left behind, rows that were forged, and faults of the log."""
        foreign = foreign_limits(self.results.foreign, len(self.rows) + len(self.results.foreign))
        declared = [claim.declaration for claim in self.claims]
        return [*foreign, *log_limits(declared, self.further_seeds, self.log, self.log_faults)]

    @property
    def _divergence_limits(self) -> list[str]:
        """The rule of divergence, in every report of training, and the rate of each arm with diverged runs."""
        if self.study.kind != "study" or not self.divergence[1]:
            return []
        return [RULE, *divergence_rates(self.arms)]

    @property
    def _damage_limits(self) -> list[str]:
        """Files of results that are damaged, whose content is not used, and seeds without a measurement."""
        different = "was trained more than once, with different results"
        limits = [f"{name} is damaged and not used ({what})." for name, what in self.damaged.items()]
        limits += [
            f"{trial} {different} ({what}): training is not deterministic."
            for trial, what in itertools.islice(self.disagreements.items(), MOST_LISTED)
        ]
        if (more := len(self.disagreements) - MOST_LISTED) > 0:
            limits.append(f"{count_of(more, 'other run')} had different results too.")
        n = len(self.study.seeds)
        measured = max((quantity.estimate.n + len(quantity.not_finite) for quantity in self.quantities), default=0)
        if (self.quantities or self.study.kind == "probe") and not self.missing and measured < n:
            limits.append(f"Measurements at {n - measured} of {count_of(n, 'seed')} are missing.")
        return limits

    @property
    def _code_limits(self) -> list[str]:
        """Results that were kept although their code has changed since."""
        return [
            f"On {change.time[:10]}, code had changed ({', '.join(change.changed)}); results of the earlier code were "
            f"kept: {change.results}."
            for change in self.study.code_changes
            if change.decision == "keep" and change.results
        ]

    @property
    def _stop_limits(self) -> list[str]:
        if not self.stopped_runs:
            return []
        stops = self.results.table.filter(status="stopped")["stopped_at"]
        steps = " or ".join(map(str, sorted(stops.unique().to_list())))
        return [
            f"{len(self.stopped_runs)} of {len(self.study.trials)} runs were stopped after {steps} steps, because "
            "their arms were behind others of the same program; they have no final result."
        ]

    @property
    def _sweep_limits(self) -> list[str]:
        if not self.sweeps:
            return []
        limits = ["The score at a best value is optimistic: the same seeds chose the value. Confirm it on other seeds."]
        optima = [line.optimum for sweep in self.sweeps for line in sweep.lines if line.optimum is not None]
        if optima:
            steps = sorted({optimum.step for optimum in optima if optimum.step is not None})
            after = f"; where too few arms went on, to the scores after {' or '.join(map(str, steps))} steps"
            limits.append(
                "An optimum is the minimum of a parabola in the logarithm of the value, fitted to the best value and "
                f"up to {NEIGHBOURS} on each side{after if steps else ''}; its interval is over the seeds, and relies "
                "on that form."
            )
        return limits


def analyse(store: Store) -> Analysis:
    """Analyse the results of a study or a probe; the study may be incomplete."""
    study = store.declaration
    results = TrialResults(store, study.trials)
    scores, diverged = results.scores(study.metric), results.diverged
    if unscored := results.places_without_score(study.metric):
        what = f"{count_of(len(unscored), 'row')} without {study.metric}"
        store.corrupt_files.setdefault(f"row of {results.trials[unscored[0]]}", what)
    arms, seeds, bounds = [], [trial.seed for trial in study.trials], BOUNDS.get(study.unit, (-math.inf, math.inf))
    not_finite = set(results.not_finite(study.metric))
    for labels, places in _places(study.trials):
        arm_scores = [scores[place] for place in places]
        without = tuple(seeds[place] for place in places if place in not_finite)
        n = int(diverged[places].sum())
        arms.append(ArmSummary(labels, arm_scores, ArmRows(results, places), n, results, places, without, bounds))
    by_labels = {key_of(arm.labels): arm for arm in arms}
    quantities = _quantities(study, store)
    measured = by_labels | {key_of(quantity.labels): quantity for quantity in quantities}
    sweeps = find_sweeps(study, arms)
    log = declaration_log.read(store)
    held = Counter(results.declarations) + Counter(row.get("declaration") for row in store.measurements(study))
    faults = log.faults_of(held)
    if study.declaration not in (None, *log.digests):
        faults.append("study.json was written under a declaration that is not in the log")
    history = History(study, log)
    declared = [history.declaration_of(claim, not faults) for claim in study.claims]
    former = [(claim, former_arms(store, log, claim)) for claim in history.withdrawn_claims()]
    claims, withdrawn = judge_claims(study, measured, declared, former)
    explorations = explore(study, by_labels, {sweep.axis for sweep in sweeps} | scaling_axes(study))
    if wrong := read_checked(store.root / LAUNCHES)[1]:
        store.corrupt_files.setdefault(LAUNCHES, wrong[0])
    parts = study, results, arms, quantities, claims, withdrawn, explorations, sweeps, log, faults
    measured_weights, reads = trial_measurements.current(store, study), read_records.names(store.root)
    files = dict(store.corrupt_files), dict(store.disagreements)
    return Analysis(*parts, *files, history.further_seeds(), measured_weights, reads)


def _places(trials: Sequence[DeclaredTrial]) -> Iterator[tuple[Labels, list[int]]]:
    """Yield the labels of each arm, and the places of its trials in the order of declaration."""
    by_labels: dict[str, list[int]] = {}
    for place, trial in enumerate(trials):
        by_labels.setdefault(key_of(trial.labels), []).append(place)
    return ((trials[places[0]].labels, places) for places in by_labels.values())


def analyse_to_show(store: Store, reader: str) -> Analysis:
    """Analyse results that somebody will see; where claims lack results, an interim analysis is recorded.

    Args:
      store: the study's folder.
      reader: the command that shows them, such as "report".
    """
    analysis = analyse(store)
    if analysis.claims and analysis.missing and analysis.rows:
        declared = len(analysis.study.trials)
        declaration_log.record_interim_analysis(store, declared - analysis.missing, declared, reader)
        return dataclasses.replace(analysis, log=declaration_log.read(store))
    return analysis


def _quantities(study: Declaration, store: Store) -> list[ArmSummary]:
    """Return a summary per number that was measured or derived, over the declared seeds; NaN and ±∞ are not values."""
    by_seed = {row["seed"]: row for row in store.measurements(study)}
    measurements = [by_seed.get(seed) for seed in study.seeds]
    names = dict.fromkeys(name for row in measurements if row for name in row["values"])

    def summary(name: str) -> ArmSummary:
        values = [row["values"].get(name) if row else None for row in measurements]
        scores, pairs = [*map(finite, values)], zip(study.seeds, values, strict=True)
        not_finite = tuple(seed for seed, value in pairs if value is not None and finite(value) is None)
        return ArmSummary({QUANTITY: name}, scores, [None] * len(measurements), 0, not_finite=not_finite)

    return [*map(summary, names)]
