"""Several processes on one ledger, and commands that are given again: one entry for all, and shares of the runs."""

from collections.abc import Collection, Iterator, Sequence

from flaxformer.ledger.candidates import RATE
from flaxformer.ledger.log import AnyEntry, Attempt, Confirmation
from flaxformer.ledger.reading import JudgedAttempt
from flaxformer.runner.events import Event
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import run_plan
from flaxformer.runner.launchers.options import Share
from flaxformer.study.plan import StudyPlan


def repeated(
    last: JudgedAttempt | None, reason: str, changes: Sequence[str], file: str, rates: Sequence[float]
) -> Attempt | None:
    """Return the last attempt if it was proposed in the same words and not withdrawn; else None.

    A job that is queued again, or a task of it that starts late, so makes no second attempt.

    Args:
      last: the last attempt.
      reason: why the candidate may be better.
      changes: its changes.
      file: path of the copy of its file.
      rates: learning rates to choose from.
    """
    if last is None or last.verdict == "withdrawn":
        return None
    entry = last.entry
    words = (reason, _without_rate(changes, rates), file, tuple(sorted(rates)))
    is_same = words == (entry.reason, _without_rate(entry.changes, entry.rates), entry.file, entry.rates)
    return entry if is_same else None


def _without_rate(changes: Sequence[str], rates: Sequence[float]) -> list[str]:
    """Changes without the learning rate that is chosen among these."""
    return [text for text in changes if not rates or not text.startswith(f"{RATE}=")]


def is_same_entry(first: AnyEntry, second: AnyEntry) -> bool:
    """True if two processes made the same entry at once; steps at equal seconds are those that each has measured."""
    fields: tuple[str, ...]
    match first, second:
        case Attempt(), Attempt():
            fields = ("number", "reason", "changes", "file", "best", "rates")
        case Confirmation(), Confirmation():
            fields = ("metric", "attempts")
        case _:
            return False
    return all(getattr(first, name) == getattr(second, name) for name in fields)


def train_runs(
    plan: StudyPlan, execution: Execution, share: Share | None, names: Collection[str] | None = None
) -> Iterator[Event]:
    """Train runs of a study: those of a share first, then those that other processes have left.

    Args:
      plan: of the study.
      execution: how.
      share: share of this process; None for all.
      names: names of the runs; None for all.
    """
    if share is not None and share.parts > 1:
        runs = [trial for trial in plan.declaration.trials if names is None or trial.trial in names]
        if mine := share.names(runs):
            yield from run_plan(plan, execution, only=mine)
    yield from run_plan(plan, execution, only=names)
