"""Attempts of a ledger: declared, trained pair by pair until they are decided, and recorded.

Everything is in the ledger's folder. A process that is killed goes on where it was; several processes, also on other
machines, train the pairs of one attempt together, by the leases of its study, and come to the same verdict.
"""

import dataclasses
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import cast

import flaxformer
from flaxformer.analysis.analysis import analyse
from flaxformer.core.paths import replace_at
from flaxformer.ledger import candidates, joining, log, rules
from flaxformer.ledger.beginning import begun_of, check_begun
from flaxformer.ledger.candidates import RATE
from flaxformer.ledger.declare import Ledger
from flaxformer.ledger.judge import AttemptEvidence, judge
from flaxformer.ledger.log import Attempt, Begun, Confirmation, Decision, EntryT
from flaxformer.ledger.reading import (
    AXIS,
    BEST,
    CANDIDATE,
    CONFIRMATION,
    TUNING,
    LedgerResults,
    check_can_go_on,
    decision_of,
    folder_of,
    read_ledger,
    read_scores,
    recipe_digest,
)
from flaxformer.runner.compiled_runs import keeping_compiled_runs
from flaxformer.runner.events import Event
from flaxformer.runner.execution import Execution
from flaxformer.runner.launchers.options import Share
from flaxformer.store.places import LEDGER, check_kind
from flaxformer.store.store import Store
from flaxformer.study.metrics import metrics_of
from flaxformer.study.plan import StudyPlan
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder, make_folder
from flaxformer.system.links import output_folder
from flaxformer.training.run import Run

PATIENCE = 30.0
"""Seconds to wait for another process that writes the ledger's log."""
COMPILED = 4
"""Number of compiled runs that are kept while a ledger is worked on."""


@dataclasses.dataclass(frozen=True)
class Looked:
    """The evidence after a look."""

    number: int
    evidence: AttemptEvidence


@dataclasses.dataclass(frozen=True)
class OpenLedger:
    """A ledger with its folder and the settings of execution."""

    ledger: Ledger
    root: Path
    execution: Execution
    trust_code: bool = False
    """True to execute the copies of candidates' files in the folder, which another process may have written."""
    written: set[str] = dataclasses.field(default_factory=set)
    """Copies that this process has written."""
    plans: dict[int, StudyPlan] = dataclasses.field(default_factory=dict)
    """Plans of the attempts that this process has declared."""
    share: Share | None = None
    """Share of the runs that this process trains before it takes those that other processes have left."""

    def results(self) -> LedgerResults:
        """Return the results so far; see `read_ledger`."""
        return read_ledger(self.root)

    def _sound(self) -> LedgerResults:
        """The results, from which attempts go on.

        Raises:
          UserError: something was changed after it was written.
        """
        results = self.results()
        if results.faults:
            raise UserError(
                f"{self.root}: {results.faults[0]}; expected a ledger as it was written: begin another one (--output)"
            )
        return results

    def begin(self) -> LedgerResults:
        """Write the declaration of a new ledger, or check that the folder holds this one.

        Raises:
          UserError: it holds another ledger, or one that was changed after it was written.
        """
        begun = self.declare()
        results = self._sound()
        check_begun(results.begun, begun, self.root)
        return results

    def declare(self) -> Begun:
        """Write the declaration into a folder without any; return it.

        Raises:
          UserError: the folder cannot be that of a ledger, or the task gives no evaluation data.
        """
        ledger = self.ledger
        check_kind(self.root, LEDGER)
        make_folder(output_folder(self.root))
        study = candidates.start_study(ledger)
        declared = StudyPlan(study).declaration
        data = declared.evaluation_data.get("baseline")
        if data is None:
            raise UserError("start.task gives no evaluation data; expected a task that loads")
        recipe = recipe_digest(declared, "baseline")
        begun = begun_of(ledger, study.unit, recipe, data.digest, flaxformer.SEMANTICS)
        with lock_folder(self.root, "writes the ledger", PATIENCE):
            entries, _ = log.read(self.root)
            if not entries and not (self.root / log.NAME).exists():
                log.append(self.root, entries, begun)
        return begun

    def best(self, results: LedgerResults) -> Run:
        """Return the best recipe so far."""
        kept = [attempt.entry for attempt in results.kept]
        return candidates.best_of(self.ledger, self.root, kept, self._trusts({entry.file for entry in kept}))

    def _trusts(self, files: set[str]) -> bool:
        return self.trust_code or files <= {"", *self.written}

    def candidate(self, best: Run, changes: Sequence[str], file: str) -> Run:
        """Return the run of a candidate; see `candidates.candidate_of`."""
        return candidates.candidate_of(self.root, best, changes, file, self._trusts({file}))

    def propose(
        self, changes: Sequence[str], file: Path | None, reason: str, rates: Sequence[float] = ()
    ) -> Generator[Event, None, Attempt]:
        """Declare an attempt, before it is judged; learning rates to choose from are tried first, at the tuning seeds.

        The last attempt, proposed in the same words, is returned as it is.

        Args:
          changes: changes of the best recipe, or of the run of `file`, as on a command line.
          file: file that declares the candidate as `run`; None for the best recipe.
          reason: why it may be better, in a sentence.
          rates: learning rates of which the candidate gets the best one; none to leave it as it is.

        Raises:
          UserError: it may not be made; see `candidates.check_candidate`.
        """
        results = self.begin()
        copied = "" if file is None else candidates.copy_candidate(self.root, file)
        self.written.add(copied)
        last = results.attempts[-1] if results.attempts else None
        if (entry := joining.repeated(last, reason, changes, copied, rates)) is not None:
            return entry
        check_can_go_on(results)
        candidates.check_not_adjusted(self.ledger, changes)
        best = self.best(results)
        candidate = self.candidate(best, changes, copied)
        candidates.check_held(best, candidate)
        candidates.check_causality(candidate)
        number = len(results.attempts) + 1
        measured = candidates.at_equal_seconds(self.ledger, best, candidate)
        candidate = replace_at(candidate, measured)
        if rates:
            rate = yield from self._tune(number, best, candidate, rates, results.begun.data)
            changes = [*(text for text in changes if not text.startswith(f"{RATE}=")), f"{RATE}={rate:g}"]
            candidate = replace_at(self.candidate(best, changes, copied), measured)
        notes = candidates.check_candidate(best, candidate, rates, measured)
        plan = StudyPlan(candidates.attempt_study(self.ledger, number, best, candidate, reason))
        candidates.check_data(plan, results.begun.data)
        entry = Attempt(
            number=number,
            reason=reason,
            changes=tuple(changes),
            file=copied,
            adjusted=measured or candidates.adjusted_fields(plan),
            best=recipe_digest(plan.declaration, f"{AXIS}={BEST}"),
            recipe=recipe_digest(plan.declaration, f"{AXIS}={CANDIDATE}"),
            programs=len(plan.groups),
            rates=tuple(sorted(rates)),
            notes=notes,
        )
        expected = results.kept[-1].entry.recipe if results.kept else results.begun.recipe
        if entry.best != expected:
            raise UserError(
                f"the best recipe is another one than {self.root} was left with: its code, its data or flaxformer has "
                "changed; expected them as they were, or another --output"
            )
        written = self._append(results, entry)
        if written.recipe == entry.recipe:
            self.plans[number] = plan
        return written

    def _append(self, results: LedgerResults, entry: EntryT) -> EntryT:
        """Add an entry that follows from these results; return it, or the same one of another process.

        Raises:
          UserError: another process has added another one since they were read.
        """
        with lock_folder(self.root, "writes the ledger", PATIENCE):
            entries, _ = log.read(self.root)
            if len(entries) == len(results.entries):
                return log.append(self.root, entries, entry)
        added = entries[len(results.entries) :]
        if added and joining.is_same_entry(entry, added[0]):
            return cast("EntryT", added[0])
        raise UserError(f"another process has added to {self.root} meanwhile; run the command again")

    def _tune(
        self, number: int, best: Run, candidate: Run, rates: Sequence[float], data: str
    ) -> Generator[Event, None, float]:
        """Try learning rates of a candidate, at the cost of the best recipe; return the best by the mean of the metric.

        Raises:
          UserError: fewer than two rates, or no rate has a result at every seed.
        """
        if len({*rates}) < 2:
            raise UserError(f"learning rates to try are {list(rates)}; expected at least two different ones")
        if candidates.changed_fields(best, candidate):
            study = candidates.attempt_study(self.ledger, number, best, candidate, "tuning")
            candidate = replace_at(candidate, candidates.adjusted_fields(StudyPlan(study)))
        tuning = StudyPlan(candidates.tuning_study(self.ledger, number, candidate, sorted(rates)))
        candidates.check_data(tuning, data)
        digests = {recipe_digest(tuning.declaration, arm) for arm in tuning.declaration.recipes}
        folder = self.root / TUNING / f"{number:03}-{min(digests)}"  # another candidate may have been refused after it
        with keeping_compiled_runs(COMPILED):
            yield from self._train(tuning, folder)
        arms = [arm for arm in analyse(Store(folder)).arms if None not in arm.scores]
        if not arms:
            raise UserError(
                f"no learning rate of {sorted(rates)} has a result at every seed ({folder}); try lower ones"
            )
        sign = 1.0 if self.ledger.goal == "lower" else -1.0
        chosen = min(arms, key=lambda arm: sign * arm.estimate.mean)
        return float(next(iter(chosen.labels.values())))

    def train(self, attempt: Attempt) -> Iterator[Event | Looked]:
        """Train an attempt pair by pair until it is decided, and record its verdict.

        Raises:
          UserError: the recipes are not those of the attempt any more.
        """
        results = self._sound()
        if results.attempts[attempt.number - 1].verdict is not None:  # another process was faster
            return
        plan = self.plans.get(attempt.number) or self._plan_of(attempt, results)
        recipes = [recipe_digest(plan.declaration, f"{AXIS}={label}") for label in (BEST, CANDIDATE)]
        if recipes != [attempt.best, attempt.recipe]:
            raise UserError(
                f"attempt {attempt.number} has other recipes than when it was declared: its code, its data or "
                "flaxformer has changed; expected them as they were, or --withdraw"
            )
        folder, shown = folder_of(self.root, attempt.number), -1
        begun, seeds = results.begun, rules.seeds_of(results.begun, attempt.number)
        level = rules.level(begun, attempt.number, len(results.kept))
        with keeping_compiled_runs(COMPILED):
            while True:
                scores = read_scores(begun, attempt, folder)
                evidence = judge(begun, level, scores.best, scores.candidate, scores.identical)
                if evidence.pairs > shown or evidence.verdict is not None:
                    yield Looked(attempt.number, evidence)
                shown = evidence.pairs
                if evidence.verdict is not None:
                    break
                first = len(scores.best) // begun.together * begun.together
                look = seeds[first : first + begun.together]
                names = [f"{AXIS}={label},seed={seed}" for seed in look for label in (BEST, CANDIDATE)]
                yield from self._train(plan, folder, names)
        self._record(decision_of(attempt.number, evidence.verdict, evidence, scores))

    def _train(self, plan: StudyPlan, folder: Path, names: Collection[str] | None = None) -> Iterator[Event]:
        return joining.train_runs(plan, dataclasses.replace(self.execution, output=folder), self.share, names)

    def _plan_of(self, attempt: Attempt, results: LedgerResults) -> StudyPlan:
        best = self.best(results)
        candidate = replace_at(self.candidate(best, attempt.changes, attempt.file), attempt.adjusted)
        return StudyPlan(candidates.attempt_study(self.ledger, attempt.number, best, candidate, attempt.reason))

    def withdraw(self) -> Attempt:
        """End the attempt that has no verdict; it counts as one without effect.

        If its results decide it, which a kill may have left unrecorded, their verdict is recorded instead.

        Raises:
          UserError: every attempt has a verdict.
        """
        results = self._sound()
        unfinished = results.unfinished
        if unfinished is None:
            raise UserError(f"every attempt of {self.root} has a verdict; expected one under way")
        number, evidence = unfinished.number, unfinished.evidence
        scores = read_scores(results.begun, unfinished.entry, folder_of(self.root, number))
        self._record(decision_of(number, evidence.verdict or "withdrawn", evidence, scores))
        return unfinished.entry

    def _record(self, decision: Decision) -> None:
        """Add a verdict, unless another process has recorded it."""
        with lock_folder(self.root, "writes the ledger", PATIENCE):
            entries, _ = log.read(self.root)
            if not any(isinstance(entry, Decision) and entry.number == decision.number for entry in entries):
                log.append(self.root, entries, decision)

    def confirm(self) -> Iterator[Event]:
        """Compare the best recipe with the start, once: at seeds of its own, on the test data where there are any.

        Raises:
          UserError: an attempt has no verdict yet, or no change was kept.
        """
        results = self.begin() if log.read(self.root)[0] else None
        if results is not None and not results.confirmations:
            check_can_go_on(results)
        if results is None or not results.kept:
            raise UserError(f"{self.root} has kept no change; expected at least one to confirm")
        study = candidates.confirmation_study(self.ledger, self.best(results), self._test_metric())
        plan = StudyPlan(study)
        if not results.confirmations:
            self._append(results, Confirmation(metric=study.metric, attempts=len(results.attempts)))
        yield from self._train(plan, self.root / CONFIRMATION)

    def _test_metric(self) -> str:
        """The ledger's metric on the test data; the metric itself for a task without any, and for one of `measure`."""
        metric, start = self.ledger.metric, self.ledger.start
        if metric not in metrics_of(start) or start.task.load().test() is None:
            return metric
        return f"test_{metric.removeprefix('validation_')}"
