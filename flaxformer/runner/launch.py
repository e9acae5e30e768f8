"""Running a study in this process: what is missing, and only that, into a folder that others may work on too."""

import contextlib
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from flaxformer.runner import partial_runs
from flaxformer.runner.execute import Finished, Message, StudyEvent, execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.multihost import on_all_processes
from flaxformer.store import declarations
from flaxformer.store.leases import Leases
from flaxformer.store.provenance import provenance
from flaxformer.store.store import LOCK_PATIENCE, Row, Store, check_file_name, is_finished
from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.declare import Study, Trial
from flaxformer.study.plan import ProgramGroup, declaration, groups
from flaxformer.study.probe import check_quantities
from flaxformer.user_code import copy_sources, user_modules
from flaxformer.user_code.changes import OnCodeChange

POLL = 1.0
"""Seconds between two looks at the leases of others, while there is nothing else to do."""
OnError = Literal["continue", "stop"]


def store_of(study: Study, execution: Execution) -> Store:
    """The study's folder: `output`, or runs/NAME."""
    return Store(execution.folder(study.name))


def declare(study: Study, store: Store, on_code_change: OnCodeChange = "refuse") -> Row:
    """Write the study's declaration into its folder, and return it; see `declarations.declare`."""
    with store.locked(LOCK_PATIENCE):
        return declarations.declare(store, declaration(study), on_code_change)


def missing(
    study: Study, store: Store, only: Collection[str] | None = None, retry_failed: bool = False
) -> list[ProgramGroup]:
    """The groups, with only the trials that have no row yet, or also those that failed.

    Raises:
      UserError: `only` names a trial that the study does not declare.
    """
    return _left(_share(study, only), store.rows(), retry_failed)


def _share(study: Study, only: Collection[str] | None) -> list[ProgramGroup]:
    """The groups with the trials of these names alone."""
    whole = groups(study.trials(), study.measure, study.file)
    if only is None:
        return whole
    names = {trial.name for group in whole for trial in group.trials}
    for name in only:
        if name not in names:
            raise UserError(f"only names the trial '{name}'{did_you_mean(name, names)}")
    wanted = set(only)
    return _with([(group, [trial for trial in group.trials if trial.name in wanted]) for group in whole])


def _left(share: Sequence[ProgramGroup], rows: Mapping[str, Row], retry_failed: bool) -> list[ProgramGroup]:
    return _with(
        [
            (group, [c for c in group.trials if c.name not in rows or (retry_failed and not is_finished(rows[c.name]))])
            for group in share
        ]
    )


def _with(found: Sequence[tuple[ProgramGroup, Sequence[Trial]]]) -> list[ProgramGroup]:
    """Groups with fewer trials; those with none are left out."""
    return [dataclasses.replace(group, trials=tuple(trials)) for group, trials in found if trials]


@on_all_processes
def run(
    study: Study,
    execution: Execution,
    only: Collection[str] | None = None,
    retry_failed: bool = False,
    on_error: OnError = "continue",
    on_code_change: OnCodeChange = "refuse",
    submitted: Mapping[str, Any] | None = None,
) -> Iterator[StudyEvent]:
    """Train every missing trial; each finished run is on disk before its event is yielded.

    Any number of processes may do so in one folder: each group is trained by the one that holds its lease. A process
    that finds all that is left held by others waits for them, and takes over from those that die.

    Args:
      study: what to run.
      execution: how.
      only: names of trials; no others are trained or waited for.
      retry_failed: train again, once, what failed before.
      on_error: "stop" to end after the first run that fails.
      on_code_change: what to do with results whose user code has changed since: "refuse" to run, "keep" them, or
        "retrain", which sets them aside.
      submitted: `provenance.code` where the work was submitted; what differs here is told and recorded.

    Raises:
      UserError: another process holds the folder for too long, or it has results of another recipe or of other code.
    """
    if on_error not in ("continue", "stop"):
        raise UserError(f"on_error is '{on_error}'; expected continue or stop")
    store = Store(store_of(study, execution).root, worker=secrets.token_hex(6))
    execution = dataclasses.replace(execution, output=store.root)
    declared, share = declaration(study), _share(study, only)
    launch = provenance(study.file) | {"worker": store.worker}
    changed = [name for name in ("commit", "source", "study_file") if submitted and submitted.get(name) != launch[name]]
    for group in share:
        check_file_name(group.name)
    with store.locked(LOCK_PATIENCE):
        declarations.declare(store, declared, on_code_change)
        store.repair()
        launch["code"] = copy_sources(store.root / "code", user_modules(study.file))
        store.record_launch(launch | ({"changed_since_submission": changed} if changed else {}))
    if changed:
        yield Message(f"the code is not what was submitted: {', '.join(changed)} changed; the launch records it")
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in declared["trials"]}
    with Leases(store.leases) as leases:
        worker = _Worker(store, leases, share, fingerprints, retry_failed)
        yield from worker.work(execution, alone=only is not None, stop=on_error == "stop")
        worker.settle()
    if study.derive is not None:
        with store.locked(LOCK_PATIENCE):
            store.replace_measurements(derived(study, store.rows()))


class _Worker:
    """One process's part in a study: takes leases, writes rows, waits."""

    def __init__(
        self, store: Store, leases: Leases, share: Sequence[ProgramGroup], fingerprints: Mapping[str, str], retry: bool
    ) -> None:
        self.store, self.leases, self.share, self.fingerprints, self.retry = store, leases, share, fingerprints, retry
        self.tried: set[str] = set()
        self.told: set[str] = set()
        self.left: dict[str, int] = {}
        """Trials under way here, by group."""

    def todo(self, share: Sequence[ProgramGroup], rows: Mapping[str, Row]) -> list[ProgramGroup]:
        """Groups with the trials that have no row yet, or a failed one that this process is to try again, once."""
        found = _left(share, rows, self.retry)
        return _with([(group, [trial for trial in group.trials if trial.name not in self.tried]) for group in found])

    def lease_of(self, group: ProgramGroup) -> str:
        """The name of our lease on a group; another for a share of it, which others may have shares of."""
        own = next(one for one in self.share if one.name == group.name)
        if len(own.trials) == own.size:
            return group.name
        names = "\n".join(sorted(trial.name for trial in own.trials))
        return f"{group.name}.{hashlib.blake2b(names.encode(), digest_size=6).hexdigest()}"

    def take(self, group: ProgramGroup) -> ProgramGroup | None:
        """Lease a group, and look again at what is done."""
        lease = self.lease_of(group)
        names = self.leases.take(lease, [trial.name for trial in group.trials])
        if names is None:
            return None
        ours = _with([(group, [trial for trial in group.trials if trial.name in names])])
        found = self.todo(ours, self.store.rows(group.name))
        if not found:
            self.leases.release(lease)
            return None
        self.left[group.name] = len(found[0].trials)
        return found[0]

    def work(self, execution: Execution, alone: bool, stop: bool) -> Iterator[StudyEvent]:
        """Train the trials that no other process holds, in rounds, until every trial has its row."""
        patience = None if not alone else time.monotonic() + self.leases.expiry + 2 * POLL
        while True:
            todo = self.todo(self.share, self.store.rows())
            yield from self.corrupt_files()
            if not todo:
                return
            before = len(self.tried)
            with contextlib.closing(execute(todo, execution, self.take)) as events:
                for event in events:
                    if isinstance(event, Finished):
                        event = self.finished(event)
                    yield event
                    if stop and isinstance(event, Finished) and event.row["status"] == "failed":
                        yield Message("stopped after the first run that failed (--on-error stop)")
                        return
            if len(self.tried) > before:
                continue
            held = [text for group in todo for text in self.holders(group) if text not in self.told]
            self.told.update(held)
            if held:
                yield Message(f"waiting for what others hold: {'; '.join(held)}")
            while not any(map(self.is_free, todo)):
                if patience is not None and time.monotonic() > patience:
                    yield Message("ended: what is left of these runs is held by others")
                    return
                time.sleep(POLL)

    def corrupt_files(self) -> Iterator[Message]:
        """Messages about damaged files that were found since the last call."""
        for name, what in self.store.corrupt_files.items():
            if name not in self.told:
                self.told.add(name)
                yield Message(f"{self.store.root / name} is damaged ({what}): what it held there is trained again")

    def finished(self, event: Finished) -> Finished:
        """Have a row on disk; with the last of a group, merge the group's lines and give its lease back."""
        row = event.row | {"fingerprint": self.fingerprints[event.row["trial"]]}
        self.store.append(event.group, row)
        self.tried.add(row["trial"])
        self.left[event.group] -= 1
        if self.left[event.group] == 0:
            self.merge(event.group)
            self.leases.release(self.lease_of(next(group for group in self.share if group.name == event.group)))
        return Finished(event.group, row)

    def merge(self, group: str) -> None:
        """Merge a group's lines, where no other worker is adding to them."""
        with self.store.locked(LOCK_PATIENCE):
            if not self.leases.others(group):
                self.store.finish(group)

    def settle(self) -> None:
        """Merge what earlier launches left; a group whose lease another has is merged by that one."""
        self.leases.others()  # removes those of the dead
        for group in self.store.unmerged():
            self.merge(group)
        partial_runs.remove_of(self.store, [group for group in self.share if not self.leases.others(group.name)])

    def is_free(self, group: ProgramGroup) -> bool:
        """True if some trial of a group can be taken."""
        held = self.leases.held(self.lease_of(group))
        return held is not None and any(trial.name not in held for trial in group.trials)

    def holders(self, group: ProgramGroup) -> list[str]:
        """Describe who holds a group."""
        return [
            f"{group.name} by process {lease.get('pid', '?')} on {lease.get('host', '?')}"
            for lease in self.leases.others(group.name)
        ]


def derived(study: Study, rows: Mapping[str, Row]) -> list[Row]:
    """Numbers that the study derives from the finished runs, for every seed that has all of them.

    Raises:
      UserError: a claim is about a number that is not derived.
    """
    found = []
    for seed in study.seeds:
        own = {arm.name: rows.get(Trial(arm, seed).name) for arm in study.arms()}
        if all(is_finished(row) and row["status"] != "stopped" for row in own.values()):  # type: ignore[index]
            values = {name: float(value) for name, value in study.derive(own).items()}  # type: ignore[misc,arg-type]
            check_quantities(study.claims, values)
            found.append({"measured_by": "derived", "seed": seed, "seconds": 0.0, "values": values})
    return found
