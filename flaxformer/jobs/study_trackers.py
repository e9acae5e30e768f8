"""Trials of a study as runs of TensorBoard or Weights & Biases, written when a trial has finished.

DIR/trackers/NAME-FINGERPRINT marks a trial that the tracker NAME has, so that a resumed study, or several processes in
one folder, write each trial once.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flaxformer.jobs.trackers import TrackedTrial, Tracker
from flaxformer.runner.events import Event, Finished, Message
from flaxformer.store.declaration import Declaration
from flaxformer.store.job_log import LogLine
from flaxformer.store.rows import Row
from flaxformer.store.store import LOCK_PATIENCE, Store
from flaxformer.system.files import lock_folder, write_atomically


def track(events: Iterable[Event], store: Store, names: Sequence[str]) -> Iterator[Event]:
    """Pass events on, and write the trials of the folder to trackers: those that are there, and each that finishes.

    Args:
      events: of the study's execution.
      store: the study's folder.
      names: of trackers; without any, the events are returned as they are.
    """
    return _track(events, StudyTrackers(store, names)) if names else iter(events)


def _track(events: Iterable[Event], study: "StudyTrackers") -> Iterator[Event]:
    yield from study.write_all()
    for event in events:
        if isinstance(event, Finished):
            yield from study.write(event.row)
        yield event
    yield from study.write_all()  # the arms that a halving stopped, and the trials of other processes


class StudyTrackers:
    """The trackers of a study; one that fails is not used again."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self.store, self.names, self.folder = store, list(names), store.root / "trackers"
        self.study: Declaration | None = None

    def write_all(self) -> Iterator[Message]:
        """Write every finished trial of the folder that a tracker does not have."""
        if self.names and (self.store.root / "study.json").exists():
            for row in self.store.rows().values():
                yield from self.write(row)

    def write(self, row: Row) -> Iterator[Message]:
        """Write a trial to the trackers that do not have it, unless it failed or is a run of a halving's rung."""
        if not self.names or row["status"] == "failed" or (study := self._study_of(row)) is None:
            return
        arm = row.trial.rpartition(",seed=")[0]
        trial = TrackedTrial(study.name, arm, row.seed, str(row.fingerprint))
        recipe = study.recipes[arm].run | {"seed": row.seed}
        messages: list[str] = []
        for name in tuple(self.names):
            marker = self.folder / f"{name}-{trial.key}"
            if marker.exists():
                continue
            with lock_folder(self.folder, "writing to trackers", LOCK_PATIENCE):
                if marker.exists():
                    continue
                tracker = Tracker(name, self.store.root, recipe, messages.append, trial)
                for line in log_lines(row):
                    tracker(line)
                tracker.close()
                if messages:
                    self.names.remove(name)
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
