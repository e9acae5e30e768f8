"""Trials of a study as runs of trackers, written when a trial has finished.

DIR/trackers/NAME-FINGERPRINT marks a trial that the tracker NAME has, so that a resumed study, or several processes in
one folder, write each trial once.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flaxformer.jobs.trackers.attached import AttachedTracker
from flaxformer.jobs.trackers.tracker import TrackedRun, Tracker
from flaxformer.runner.events import Event, Finished, Message
from flaxformer.store.declaration import Declaration
from flaxformer.store.job_log import LogLine
from flaxformer.store.rows import Row
from flaxformer.store.store import LOCK_PATIENCE, Store
from flaxformer.system.files import lock_folder, write_atomically


def track(events: Iterable[Event], store: Store, trackers: Mapping[str, Callable[[], Tracker]]) -> Iterator[Event]:
    """Pass events on, and write the trials of the folder to trackers: those that are there, and each that finishes.

    Args:
      events: of the study's execution.
      store: the study's folder.
      trackers: as `trackers_of` returns them; without any, the events are returned as they are.
    """
    return _track(events, StudyTrackers(store, trackers)) if trackers else iter(events)


def _track(events: Iterable[Event], study: "StudyTrackers") -> Iterator[Event]:
    yield from study.write_all()
    for event in events:
        if isinstance(event, Finished):
            yield from study.write(event.row)
        yield event
    yield from study.write_all()  # the arms that a halving stopped, and the trials of other processes


class StudyTrackers:
    """The trackers of a study, one object of each for all trials; one that fails is not used again."""

    def __init__(self, store: Store, trackers: Mapping[str, Callable[[], Tracker]]) -> None:
        self.store, self.folder = store, store.root / "trackers"
        self.trackers = {name: functools.cache(create) for name, create in trackers.items()}
        self.study: Declaration | None = None

    def write_all(self) -> Iterator[Message]:
        """Write every finished trial of the folder that a tracker does not have."""
        if self.trackers and (self.store.root / "study.json").exists():
            for row in self.store.rows().values():
                yield from self.write(row)

    def write(self, row: Row) -> Iterator[Message]:
        """Write a trial to the trackers that do not have it, unless it failed or is a run of a halving's rung."""
        if not self.trackers or row["status"] == "failed" or (study := self._study_of(row)) is None:
            return
        arm = row.trial.rpartition(",seed=")[0]
        run = TrackedRun(
            folder=self.store.root,
            name=row.trial,
            config=study.recipes[arm].run | {"seed": row.seed},
            seed=row.seed,
            study=study.name,
            arm=arm,
            key=str(row.fingerprint),
        )
        messages: list[str] = []
        for name, create in list(self.trackers.items()):
            failed = len(messages)
            marker = self.folder / f"{name}-{run.key}"
            if marker.exists():
                continue
            with lock_folder(self.folder, "writing to trackers", LOCK_PATIENCE):
                if marker.exists():
                    continue
                tracker = AttachedTracker(name, create, run, messages.append)
                for line in log_lines(row):
                    tracker(line)
                tracker.close()
                if len(messages) > failed:
                    del self.trackers[name]
                else:
                    write_atomically(marker, b"")
        yield from map(Message, messages)

    def _study_of(self, row: Row) -> Declaration | None:
        """The declaration, read again if it lacks the trial; None where it declares no such trial."""
        if self.study is None or self.study.fingerprints.get(row.trial) != row.fingerprint:
            self.study = self.store.declaration
        return self.study if self.study.fingerprints.get(row.trial) == row.fingerprint else None


def log_lines(row: Row) -> Iterator[LogLine]:
    """The curves of a trial's row as the lines of a job's log, in the order of the steps.

    The time of each step is the mean over the trial.
    """
    steps, losses = row["evaluated_at"], row["train_loss_curve"]
    curves = {name.removesuffix("_curve"): row[name] for name in row if _is_evaluated(name, row)}
    yield _evaluation(steps[0], curves, 0)
    for place, (begin, end) in enumerate(itertools.pairwise(steps), start=1):
        seconds = row["seconds"] * (end - begin) / max(len(losses), 1)
        yield {"kind": "steps", "step": end, "loss": losses[begin:end], "seconds": seconds}
        yield _evaluation(end, curves, place)


def _is_evaluated(name: str, row: Row) -> bool:
    """True for a column with one number per evaluation."""
    return name.endswith("_curve") and name != "train_loss_curve" and row[name] is not None


def _evaluation(step: int, curves: Mapping[str, Sequence[float]], place: int) -> LogLine:
    return {"kind": "evaluation", "step": step} | {name: curve[place] for name, curve in curves.items()}
