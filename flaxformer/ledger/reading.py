"""Results of a ledger, from its folder alone: attempts with their evidence, and what is wrong with the folder.

    ledger.jsonl      log of attempts and verdicts (`ledger.log`), with its number of lines in ledger.head
    attempts/001/     study of the first attempt: the best recipe and the candidate, at the attempt's seeds
    tuning/001-…/     study of the learning rates of the first candidate, where they were tuned
    code/DIGEST/      copies of the files that declare candidates
    confirmation/     study of the best recipe and the start, on the test data
    report.html       the page

It may be read while attempts are trained.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flaxformer.analysis.trials import TrialResults
from flaxformer.ledger import log, rules
from flaxformer.ledger.judge import AttemptEvidence, judge
from flaxformer.ledger.log import AnyEntry, Attempt, Begun, Confirmation, Decision
from flaxformer.store import declaration_log
from flaxformer.store.declaration import Declaration
from flaxformer.store.store import Store
from flaxformer.system import digests
from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import count_of

ATTEMPTS, TUNING, CODE, CONFIRMATION, PAGE = "attempts", "tuning", "code", "confirmation", "report.html"
AXIS, BEST, CANDIDATE, START = "recipe", "best", "candidate", "start"


def is_ledger(folder: Path) -> bool:
    """True for the folder of a ledger."""
    return (folder / log.NAME).is_file()


@dataclasses.dataclass(frozen=True)
class JudgedAttempt:
    """An attempt with its results."""

    entry: Attempt
    decision: Decision | None
    evidence: AttemptEvidence
    seconds: float
    """Seconds of training of its runs."""
    flops: float
    """FLOPs of training of its runs."""

    @property
    def number(self) -> int:
        """Number of the attempt, from 1."""
        return self.entry.number

    @property
    def verdict(self) -> log.AttemptVerdict | None:
        """The recorded verdict; None while there is none."""
        return None if self.decision is None else self.decision.verdict


@dataclasses.dataclass(frozen=True)
class LedgerResults:
    """A ledger as its folder holds it."""

    root: Path
    begun: Begun
    entries: Sequence[AnyEntry]
    attempts: Sequence[JudgedAttempt]
    faults: Sequence[str]
    """Changes, removals and copies after the folder was written; verdicts are doubtful with any."""

    @property
    def kept(self) -> list[JudgedAttempt]:
        """The attempts whose changes make up the best recipe, in order."""
        return [attempt for attempt in self.attempts if attempt.verdict == "kept"]

    @property
    def unfinished(self) -> JudgedAttempt | None:
        """The attempt that has no verdict yet; None without one."""
        return next((attempt for attempt in self.attempts if attempt.decision is None), None)

    @functools.cached_property
    def confirmations(self) -> list[Confirmation]:
        """Looks at the test data; one is allowed."""
        return [entry for entry in self.entries if isinstance(entry, Confirmation)]


def read_ledger(root: Path) -> LedgerResults:
    """Return the results of a ledger.

    Raises:
      UserError: the folder holds no ledger, or its first line is damaged.
    """
    entries, faults = log.read(root)
    begun = entries[0] if entries else None
    if not isinstance(begun, Begun):
        what = f": {faults[0]}" if faults else ""
        raise UserError(f"{root} holds no ledger{what}; expected the folder of 'flaxformer improve'")
    decisions = {entry.number: entry for entry in entries if isinstance(entry, Decision)}
    attempts: list[JudgedAttempt] = []
    best, kept = begun.recipe, 0
    for entry in entries:
        if isinstance(entry, Attempt):
            attempt, wrong = _judged(root, begun, entry, decisions.get(entry.number), kept)
            attempts.append(attempt)
            faults += wrong
            if entry.best != best:
                faults.append(f"attempt {entry.number}: it was not compared with the best recipe before it")
            if attempt.verdict == "kept":
                best, kept = entry.recipe, kept + 1
    known = {folder_of(root, attempt.number).name for attempt in attempts}
    folders = sorted(path.name for path in (root / ATTEMPTS).glob("*") if path.is_dir())
    faults += [f"{ATTEMPTS}/{name} has no entry in {log.NAME}" for name in folders if name not in known]
    results = LedgerResults(root, begun, entries, attempts, faults)
    faults += _faults_of_confirmation(results, best)
    return results


def _faults_of_confirmation(results: LedgerResults, best: str) -> list[str]:
    """Faults of the confirmation, which is of the best recipe (by its digest) and the start."""
    folder = results.root / CONFIRMATION
    if not results.confirmations:
        return [f"{CONFIRMATION} has no entry in {log.NAME}"] if folder.is_dir() else []
    arms = {f"{AXIS}={START}": results.begun.recipe, f"{AXIS}={BEST}": best}
    return _read_study(CONFIRMATION, folder, rules.seeds_of_confirmation(results.begun), arms)[1]


def check_can_go_on(results: LedgerResults) -> None:
    """Refuse another attempt on a ledger that is confirmed, or whose last attempt has no verdict.

    Raises:
      UserError: why.
    """
    if results.confirmations:
        raise UserError(f"{results.root} is confirmed, which ends it; expected another ledger for further attempts")
    if (unfinished := results.unfinished) is not None:
        raise UserError(
            f"attempt {unfinished.number} ('{unfinished.entry.reason}') has no verdict yet; expected the command "
            "without a change or its own, which go on with it, or --withdraw"
        )


def folder_of(root: Path, number: int) -> Path:
    """Return the folder of an attempt's study."""
    return root / ATTEMPTS / f"{number:03}"


class PairScores(NamedTuple):
    """Scores of both recipes at the seeds of an attempt, in order, of the first pairs that have ended."""

    best: list[float | None]
    candidate: list[float | None]
    identical: list[bool]
    """True at pairs whose runs have the same value of every metric."""
    seconds: float = 0.0
    """Seconds of training of all runs."""
    flops: float = 0.0
    """FLOPs of training of all runs."""
    faults: tuple[str, ...] = ()
    """Damage of the folder, and signs that it is not that of the attempt."""


def recipe_digest(declared: Declaration, arm: str) -> str:
    """Return the digest of an arm's recipe: config, data, semantics and user code."""
    return digests.digest(json.dumps(plain(declared.recipes[arm]), sort_keys=True).encode())


def _read_study(
    name: str, folder: Path, seeds: range, arms: Mapping[str, str]
) -> tuple[TrialResults | None, list[str]]:
    """Return the results of a study of a ledger, and signs that it is not the one that was run.

    Args:
      name: name of the study in the sentences.
      folder: its folder; there are no results before it is declared.
      seeds: its seeds.
      arms: digest of the recipe of each arm.
    """
    if not (folder / "study.json").is_file():
        return None, []
    store = Store(folder)
    try:
        declared = store.read_declaration()
    except DamagedError as error:
        return None, [f"{name}: study.json is damaged ({error})"]
    results = TrialResults(store, declared.trials)
    faults = [f"{file} is damaged ({what})" for file, what in store.corrupt_files.items()]
    if declared.seeds != tuple(seeds):
        faults.append(f"its study has other seeds than {seeds.start} to {seeds.stop - 1}")
    if any(arm not in declared.recipes or recipe_digest(declared, arm) != recipe for arm, recipe in arms.items()):
        faults.append("its study has other recipes than the log")
    if results.foreign:
        faults.append(f"{count_of(len(results.foreign), 'result')} of another recipe or seed")
    faults += declaration_log.read(store).faults_of(results.declarations)
    return results, [f"{name}: {fault}" for fault in faults]


def read_scores(begun: Begun, attempt: Attempt, folder: Path) -> PairScores:
    """Return the scores of an attempt from the folder of its study; none before it is declared.

    Seeds or recipes that are not the attempt's, such as those of another study in its place, are faults.
    """
    arms = {f"{AXIS}={BEST}": attempt.best, f"{AXIS}={CANDIDATE}": attempt.recipe}
    seeds = rules.seeds_of(begun, attempt.number)
    results, faults = _read_study(f"attempt {attempt.number}", folder, seeds, arms)
    if results is None:
        return PairScores([], [], [], faults=tuple(faults))
    by_trial = dict(zip(results.trials, results.scores(begun.metric), strict=True))
    status = dict(zip(results.trials, results.statuses, strict=True))
    places = {trial: place for place, trial in enumerate(results.trials)}
    metrics = [results.column(name) for name in results.metrics]
    scores: tuple[list[float | None], list[float | None]] = ([], [])
    identical: list[bool] = []
    for seed in seeds:
        names = [f"{arm},seed={seed}" for arm in arms]
        if any(status.get(name) is None for name in names):
            break
        for values, name in zip(scores, names, strict=True):
            values.append(by_trial[name])
        first, second = (places[name] for name in names)
        identical.append(all(column[first] == column[second] for column in metrics))
    seconds, flops = (float(results.numbers(name).fill_null(0).sum()) for name in ("seconds", "flops"))
    return PairScores(*scores, identical, seconds, flops, tuple(faults))


def digest_of_scores(best: Sequence[float | None], candidate: Sequence[float | None]) -> str:
    """Return the digest of the scores of an attempt's pairs, in which every bit counts."""
    texts = [
        "none" if value is None else float(value).hex() for pair in zip(best, candidate, strict=True) for value in pair
    ]
    return digests.digest(" ".join(texts).encode())


def _judged(
    root: Path, begun: Begun, entry: Attempt, decision: Decision | None, kept: int
) -> tuple[JudgedAttempt, list[str]]:
    """An attempt with its evidence, from the number of those kept before it; and what is wrong with it."""
    scores = read_scores(begun, entry, folder_of(root, entry.number))
    pairs = None if decision is None else decision.pairs  # others may have been trained after a withdrawal
    best, candidate = scores.best[:pairs], scores.candidate[:pairs]
    level = rules.level(begun, entry.number, kept)
    evidence = judge(begun, level, best, candidate, scores.identical[:pairs])
    faults = list(scores.faults)
    if decision is not None:
        recorded = None if decision.verdict == "withdrawn" else decision.verdict
        if digest_of_scores(best, candidate) != decision.results:
            faults.append(f"attempt {entry.number}: its results are not those by which it was judged")
        elif recorded != evidence.verdict:
            says = evidence.verdict or "nothing yet"
            faults.append(f"attempt {entry.number} was recorded as {decision.verdict}; its results say {says}")
    return JudgedAttempt(entry, decision, evidence, scores.seconds, scores.flops), faults


def decision_of(number: int, verdict: log.AttemptVerdict, evidence: AttemptEvidence, scores: PairScores) -> Decision:
    """Return the end of an attempt by its pairs so far; one with a run that failed counts too."""
    pairs = evidence.pairs + (evidence.verdict == "failed")
    results = digest_of_scores(scores.best[:pairs], scores.candidate[:pairs])
    return Decision(number=number, verdict=verdict, pairs=pairs, results=results)
