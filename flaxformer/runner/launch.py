"""Running a study in this process: the trials without results, in a folder that other processes may work on too."""

import contextlib
import dataclasses
import hashlib
import math
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from flaxformer.runner import partial_runs
from flaxformer.runner.events import Event, Finished, Message
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.kept_weights import Keep, finished_without_weights
from flaxformer.runner.multihost import on_all_processes
from flaxformer.runner.remaining import (
    check_recipes,
    declare,
    missing,
    selected_groups,
    store_of,
    with_trials,
    without_results,
)
from flaxformer.runner.stages import check_alone, plan_of, stages
from flaxformer.store import declarations
from flaxformer.store.leases import Leases
from flaxformer.store.provenance import provenance
from flaxformer.store.repair import repair
from flaxformer.store.rows import Row, is_finished
from flaxformer.store.store import LOCK_PATIENCE, Store, check_file_name
from flaxformer.study.arm import Trial
from flaxformer.study.claim import Claim
from flaxformer.study.declare import Study
from flaxformer.study.divergence import CountedRow
from flaxformer.study.plan import StudyPlan
from flaxformer.study.probe import check_quantities
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.study.user_functions import numbers_of
from flaxformer.system.digests import JsonObject
from flaxformer.system.files import refresh
from flaxformer.system.user_code import copy_sources, path_of_copy, read_records, user_modules
from flaxformer.system.wording import count_of

__all__ = ["check_recipes", "declare", "missing", "plan_of", "run_plan", "store_of"]

POLL = 1.0
"""Seconds between two checks of the leases of other processes, while there is nothing else to do."""


def run_plan(plan: StudyPlan, execution: Execution, only: Collection[str] | None = None) -> Iterator[Event]:
    """Train every trial without a result; each finished run is on disk before its event is yielded.

    Any number of processes may do so in one folder: each group is trained by the one that holds its lease. A process
    that finds all remaining trials held by others waits for them, and takes over from processes that end. A study with
    stages (halving, search) is trained stage by stage (`runner.stages`).

    Args:
      plan: that of the study to run (`stages.plan_of`).
      execution: how.
      only: names of trials; no others are trained or waited for.

    Raises:
      UserError: another process holds the folder for too long, or it has results of another recipe or of other code;
        or `only` is given for a study with stages.
    """
    if only is not None:
        check_alone(plan, "trials that are chosen by name")

    def events() -> Iterator[Event]:
        for stage, where in stages(plan, execution):
            yield from _run_stage(stage, where, only)

    return on_all_processes(plan, execution, events())


def _run_stage(plan: StudyPlan, execution: Execution, only: Collection[str] | None) -> Iterator[Event]:
    """Train a study without stages; see `run_plan`."""
    study, declared, share = plan.study, plan.declaration, selected_groups(plan, only)
    store = Store(store_of(study, execution).root, worker=secrets.token_hex(6))
    execution = dataclasses.replace(execution, output=store.root)
    launch: JsonObject = provenance(study.file) | {"worker": store.worker}
    for group in share:
        check_file_name(group.name)
    with store.locked(LOCK_PATIENCE):
        entry = declarations.declare(store, declared, execution.on_code_change, study.file).declaration
        repair(store)
        launch["code"] = copy_sources(store.root / "code", user_modules(study.file))
        store.record_launch(launch)
    keep = Keep.of(study, execution, path_of_copy(launch["code"], study.file))
    if keep is not None and (lost := finished_without_weights(store)):
        yield Message(
            f"{count_of(lost, 'finished run')} without kept weights {'is' if lost == 1 else 'are'} not trained again; "
            "give another --output to train all with --keep"
        )
    fingerprints = declared.fingerprints
    share = [dataclasses.replace(group, initial_weights=declared.initial_weights) for group in share]
    with read_records.recording(store.root, study.file), Leases(store.leases) as leases:
        worker = _Worker(store, leases, share, fingerprints, entry, execution.retry_failed)
        yield from worker.work(execution, keep, alone=only is not None)
        worker.settle()
        if study.derive is not None:
            with store.locked(LOCK_PATIENCE):
                identity = {"measured_by": declared.measured_by, "declaration": entry}
                rows = [identity | row for row in derive_numbers(study, store.rows())]
                store.replace_measurements(rows, identity["measured_by"])


class _Worker:
    """The part of one process in a study: takes leases, writes rows, and waits for other processes."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        share: Sequence[ProgramGroup],
        fingerprints: Mapping[str, str],
        declaration: str,
        retry: bool,
    ) -> None:
        self.store, self.leases, self.share, self.fingerprints, self.retry = store, leases, share, fingerprints, retry
        self.declaration = declaration
        """Digest of the log's entry under which this process trains."""
        self.tried: set[str] = set()
        self.reported: set[str] = set()
        self.left: dict[str, int] = {}
        """Number of trials of each group that this process still has to train."""

    def todo(self, share: Sequence[ProgramGroup], rows: Mapping[str, Row]) -> list[ProgramGroup]:
        """Groups with the trials that have no row yet, or a failed one that this process has not tried again yet."""
        ended = {name: "stopped" if row.stopped_at else row.status for name, row in rows.items()}
        groups = without_results(share, ended, self.retry)
        return with_trials(
            (group, [trial for trial in group.trials if trial.name not in self.tried]) for group in groups
        )

    def lease_of(self, group: ProgramGroup) -> str:
        """The name of this process's lease on a group, or on its share of the group's trials."""
        share = next(candidate for candidate in self.share if candidate.name == group.name)
        if len(share.trials) == share.size:
            return group.name
        names = "\n".join(sorted(trial.name for trial in share.trials))
        return f"{group.name}.{hashlib.blake2b(names.encode(), digest_size=6).hexdigest()}"

    def take(self, group: ProgramGroup) -> ProgramGroup | None:
        """Lease a group and return it with the trials that still have no result; None if there are none."""
        lease = self.lease_of(group)
        names = self.leases.take(lease, [trial.name for trial in group.trials])
        if names is None:
            return None
        refresh(self.store.groups)  # rows of another machine's process, which had the lease before
        ours = with_trials([(group, [trial for trial in group.trials if trial.name in names])])
        remaining = self.todo(ours, self.store.rows(group.name))
        if not remaining:
            self.leases.release(lease)
            return None
        self.left[group.name] = len(remaining[0].trials)
        return remaining[0]

    def work(self, execution: Execution, keep: Keep | None, alone: bool) -> Iterator[Event]:
        """Train the trials that no other process holds, in rounds, until every trial has its row."""
        patience = None if not alone else time.monotonic() + self.leases.expiry + 2 * POLL
        while True:
            todo = self.todo(self.share, self.store.rows())
            yield from self.corrupt_files()
            if not todo:
                return
            before = len(self.tried)
            with contextlib.closing(execute(todo, execution, self.take, keep)) as events:
                for event in events:
                    if isinstance(event, Finished):
                        event = self.write_finished(event)
                    yield event
                    is_failed = isinstance(event, Finished) and event.row.status == "failed"
                    if is_failed and execution.on_error == "stop":
                        yield Message("stopped after the first run that failed (--on-error stop)")
                        return
            if len(self.tried) > before:
                continue
            held = [text for group in todo for text in self.holders(group) if text not in self.reported]
            self.reported.update(held)
            if held:
                yield Message(f"waiting for other processes: {'; '.join(held)}")
            while not any(map(self.is_free, todo)):
                if patience is not None and time.monotonic() > patience:
                    yield Message("ended: other processes hold the remaining runs")
                    return
                time.sleep(POLL)

    def corrupt_files(self) -> Iterator[Message]:
        """Messages about damaged files that were found since the last call."""
        for name, what in self.store.corrupt_files.items():
            if name not in self.reported:
                self.reported.add(name)
                yield Message(f"{self.store.root / name} is damaged ({what}): the runs that it held are trained again")

    def write_finished(self, event: Finished) -> Finished:
        """Write a row to disk; after the last row of a group, merge the group's files and release its lease."""
        fingerprint = self.fingerprints[event.row.trial]
        row = dataclasses.replace(event.row, fingerprint=fingerprint, declaration=self.declaration)
        self.store.append(event.group, row)
        self.tried.add(row.trial)
        self.left[event.group] -= 1
        if self.left[event.group] == 0:
            self.merge(event.group)
            self.leases.release(self.lease_of(next(group for group in self.share if group.name == event.group)))
        return Finished(event.group, row)

    def merge(self, group: str) -> None:
        """Merge the files of a group, unless another process holds a lease on it."""
        with self.store.locked(LOCK_PATIENCE):
            if not self.leases.of_others(group):
                self.store.finish(group)

    def settle(self) -> None:
        """Merge files that earlier launches left, and remove partial runs that are complete."""
        self.leases.of_others()  # removes the leases of processes that have ended
        for group in self.store.unmerged_groups():
            self.merge(group)
        partial_runs.remove_of(self.store, [group for group in self.share if not self.leases.of_others(group.name)])

    def is_free(self, group: ProgramGroup) -> bool:
        """True if some trial of a group can be taken."""
        held = self.leases.trials_of_others(self.lease_of(group))
        return held is not None and any(trial.name not in held for trial in group.trials)

    def holders(self, group: ProgramGroup) -> list[str]:
        """Describe who holds a group."""
        return [
            f"{group.name} by process {lease.get('pid', '?')} on {lease.get('host', '?')}"
            for lease in self.leases.of_others(group.name)
        ]


def derive_numbers(study: Study, rows: Mapping[str, Row]) -> list[JsonObject]:
    """Numbers that the study derives from the finished runs, for every seed that has all of them.

    The metrics of a run that diverged are those before training, as everywhere (`study.divergence`). Where `derive`
    reads a metric without a score (`statistics.finite`), its numbers at this seed are NaN.

    Raises:
      UserError: a claim is about a number that is not derived; or `derive` fails, or returns no numbers.
    """
    derived = []
    for seed in study.seeds:
        trials = {arm.name: Trial(arm, seed).name for arm in study.arms()}
        by_arm = {arm: rows[trial] for arm, trial in trials.items() if trial in rows}
        if study.derive is None or len(by_arm) < len(trials):
            continue
        if all(is_finished(row) and row.status != "stopped" for row in by_arm.values()):
            counted_rows = {arm: CountedRow.of(row) for arm, row in by_arm.items()}
            values = numbers_of(study.derive, [counted_rows], "derive", f"at seed {seed}")
            check_quantities([claim for claim in study.claims if isinstance(claim, Claim)], values)
            if any(row.metrics.unscored for row in counted_rows.values()):
                values = dict.fromkeys(values, math.nan)
            derived.append({"seed": seed, "seconds": 0.0, "values": values})
    return derived
