"""A state machine of workers, readers, kills, power losses, clocks and damage, in one folder of results.

Workers run the package's own launch, leases, store and checkpoints on a simulated disk, one system call at a time. A
history is a sequence of rules that hypothesis generates. In each history:

- a row that was acknowledged is never lost, doubled or changed;
- no two leases that are in force give the same trial to two processes;
- a reader sees every row that was acknowledged before it began, and no other numbers than those of the study;
- the log of declarations has no fault, and an event that was recorded in it is never lost;
- damage of a file is reported where it can be told from a kill, and everything else is used;
- in the end, one more worker completes the study.

The default is a short form. `FLAXFORMER_HISTORIES=5000 pytest tests/protocol` runs that many histories of each
kind, with another random seed each time; 3,400 of each kind, 10,200 in all, have passed with these rules.
`test_planted_faults.py` shows which faults the histories find.
"""

import collections
import contextlib
import functools
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from protocol import simulated_study as study
from protocol.simulated_study import TRIALS, results, worker
from protocol.simulated_world import HOSTS, STORE, World

from flaxformer.store import columns, declaration_log, records
from flaxformer.store.leases import EXPIRY, HEARTBEAT, Leases, read_lease
from flaxformer.store.log_entries import Interim
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

HISTORIES = int(os.environ.get("FLAXFORMER_HISTORIES", "0"))
INDEX, ROWS = st.integers(0, 3), st.integers(0, 2)
HOST = st.sampled_from(HOSTS)
SHARE = st.none() | st.sets(st.sampled_from(TRIALS), min_size=1, max_size=3)
ROOT = Path(STORE)
SHARED = (
    *(("create", ".lease"), ("unlink", ".lease"), ("scandir", "/leases"), ("flock", ".lock")),
    *(("write", ".jsonl"), ("fsync", ".jsonl"), ("unlink", ".jsonl"), ("scandir", "/groups"), ("rename", ".parquet")),
)
"""System calls at which processes meet: a name, and an end of a path."""
CALLS = (*SHARED, *((name, "") for name in ("write", "fsync", "rename", "unlink", "read", "sleep")))
"""System calls before which a process is suspended or killed."""
PROGRESS = st.sampled_from((("create", ".lease"), ("write", ".jsonl"), ("rename", ".parquet"), ("unlink", ".jsonl")))
"""System calls of a process that takes trials over, from its lease to the end of its merge."""
LOGGING = st.sampled_from(
    [(name, end) for name in ("write", "fsync", "rename") for end in ("s.jsonl", "s.head", ".tmp")]
)
"""System calls of a process that adds a line to the log of declarations, and to its head."""
MEETING, CALL, TURN = st.sampled_from(SHARED), st.sampled_from(CALLS), st.integers(0, 60)


def undisturbed():
    """The results of one worker that nothing disturbs."""
    world = World()
    with world.patched(), study.patched(world, lambda row: None):
        world.run(world.start(worker()))
        return results(Store(ROOT).rows())


expected = functools.cache(undisturbed)
"""The results that every history has to have."""


def read_tables(store):
    """Read what a report reads: columns of all rows, and whole rows of some trials."""
    assert columns.scalars(store).height <= len(TRIALS) >= columns.everything(store).height
    return columns.rows_of(store, TRIALS)


READERS = {"status": status, "rows": lambda store: store.rows(), "report": read_tables, "log": declaration_log.read}
READER = st.sampled_from([*READERS])


def token_of(node):
    """The token of a lease file; None if it is not written, or only in part."""
    return json.loads(node.data)["token"] if node.data.endswith(b"}") else None


def owned(leases):
    """The leases of a process that are in force."""
    found = [(token, read_lease(leases.folder / f"{name}.lease")) for name, token in leases._mine.items()]
    return [lease for token, lease in found if lease is not None and lease["token"] == token]


class Protocol(RuleBasedStateMachine):
    """Histories on a local file system."""

    network, locks, damages, power, count = False, True, False, True, 0

    def __init__(self):
        super().__init__()
        type(self).count += 1
        expected()
        self.world = World(self.network, self.locks)
        self.world.watch = self.check_removal
        self.acknowledged, self.lost, self.damaged, self.was_full = {}, set(), False, False
        self.lost_early = set()
        """Trials whose row was damaged after it was written, and before it was acknowledged."""
        self.losses = collections.Counter()
        self.checked = None
        """The files and the acknowledged rows when `acknowledged_rows_are_there` was last checked."""
        self.events = []
        """Numbers of the events that were recorded in the log."""
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(self.world.patched())
        self.stack.enter_context(study.patched(self.world, self.acknowledge))

    def acknowledge(self, row):
        if self.acknowledged.get(row.trial) != "done" or row.trial in self.lost:
            self.acknowledged[row.trial] = row.status
        self.lost.discard(row.trial)
        if row.trial in self.lost_early:
            self.lost_early.remove(row.trial)
            self.lost.add(row.trial)

    # --- processes -----------------------------------------------------------------------------------------

    @initialize(shares=st.lists(SHARE, min_size=2, max_size=3), call=st.none() | MEETING)
    def start_workers(self, shares, call):
        for only, host in zip(shares, HOSTS, strict=False):
            process = self.world.start(worker(only and sorted(only)), host)
            if call:
                self.world.step_to(process, *call)

    def alive(self):
        return [process for process in self.world.processes if process.is_alive]

    def chosen(self, index):
        alive = self.alive()
        return alive[index % len(alive)]

    @precondition(lambda self: len(self.alive()) < 4)
    @rule(
        host=HOST,
        only=SHARE,
        retry=st.booleans(),
        fails=st.just(()) | st.sets(st.sampled_from(TRIALS), max_size=2),
    )
    def start_worker(self, host, only, retry, fails):
        self.world.start(worker(only and sorted(only), retry, fails=fails), host)

    @precondition(lambda self: len(self.alive()) < 4)
    @rule(host=HOST, kind=READER)
    def start_reader(self, host, kind):
        self.world.start(functools.partial(self.read, kind), host)

    @precondition(lambda self: len(self.alive()) < 4)
    @rule(host=HOST, call=st.none() | LOGGING)
    def start_recorder(self, host, call):
        """Begin a process that records an event in the log, as a report of unfinished results does."""
        process = self.world.start(self.record_event, host)
        if call:
            self.world.step_to(process, *call)

    def record_event(self, process):
        event = Interim(finished=process.number, declared=0, reader="report")
        if declaration_log.record_event(Store(ROOT), event):
            self.events.append(process.number)

    def read(self, kind, _process):
        """What a reader of a kind does."""
        before = {trial: state for trial, state in self.acknowledged.items() if trial not in self.lost}
        may_be_late, losses = self.network, self.losses.copy()
        store, found = Store(ROOT), None
        try:
            found = READERS[kind](store)
        except UserError as error:
            if kind != "status" or not (self.damaged or "holds no study" in str(error)):
                raise
        if found is None:
            return
        # A row that is damaged while a reader is suspended may be another one when it goes on.
        before = {trial: state for trial, state in before.items() if self.losses[trial] == losses[trial]}
        if kind == "log":
            assert self.damaged or not found.faults, found.faults
        elif kind == "status":
            done = {trial for trial, state in before.items() if state == "done"} - self.lost
            assert may_be_late or found["done"] >= len(done), (found, done)
            assert found["declared"] == len(TRIALS)
        else:
            self.check_rows(found, {} if may_be_late else before)
        assert self.damaged or not store.corrupt_files, store.corrupt_files

    @precondition(lambda self: self.alive())
    @rule(index=INDEX, calls=st.integers(1, 200))
    def step(self, index, calls):
        self.world.step_process(self.chosen(index), calls)

    @precondition(lambda self: self.alive())
    @rule(index=INDEX, call=CALL)
    def step_to(self, index, call):
        """Let a process make a system call, and then go on until its next one is of a kind."""
        process = self.chosen(index)
        self.world.step_process(process)
        self.world.step_to(process, *call)

    @precondition(lambda self: len(self.alive()) > 1)
    @rule(index=INDEX, call=MEETING, other=st.none() | MEETING, turns=st.lists(TURN, max_size=5))
    def meet(self, index, call, other, turns):
        """Let two processes come to the same call, or to two; then let them go on in turns."""
        pair = self.chosen(index), self.chosen(index + 1)
        for process, where in zip(pair, (call, other or call), strict=True):
            self.world.step_to(process, *where)
        for turn, calls in enumerate(turns):
            self.world.step_process(pair[turn % 2], calls)

    @precondition(lambda self: len(self.alive()) in range(1, 4))
    @rule(index=INDEX, rows=ROWS, at=MEETING, host=HOST, share=ROWS, until=PROGRESS, turn=TURN)
    def take_over(self, index, rows, at, host, share, until, turn):
        """Suspend a process until another one has taken trials over from it; then both go on."""
        silent = self.chosen(index)
        if not any(own._mine for own in silent.leases):
            self.world.step_to(silent, "write", ".lease")
        for _ in range(rows):
            self.world.step_to(silent, "write", ".jsonl")
            self.world.step_process(silent)
        self.world.step_to(silent, *at)
        held = sorted({trial for own in silent.leases for lease in owned(own) for trial in lease["trials"]})
        if not held or silent.is_done:
            return
        silent.is_frozen = True
        successor = self.world.start(worker(held[share:] or held), host)
        self.world.step_to(successor, "sleep")
        self.world.pass_time(130.0)
        self.world.step_process(successor)
        self.world.step_to(successor, *until)
        self.world.step_process(silent, turn)
        self.world.step_process(successor, 60)

    @precondition(lambda self: self.alive())
    @rule(index=INDEX, host=HOST, kind=READER, calls=TURN, call=MEETING, turn=TURN)
    def read_meanwhile(self, index, host, kind, calls, call, turn):
        """Let a process write while a reader reads."""
        reader, writer = self.world.start(functools.partial(self.read, kind), host), self.chosen(index)
        self.world.step_to(reader, "scandir", "/groups")
        self.world.step_process(reader, calls)
        self.world.step_to(writer, *call)
        self.world.step_process(writer, turn)
        self.world.step_process(reader, 3000)

    @precondition(lambda self: self.alive())
    @rule(index=INDEX)
    def go_on(self, index):
        process = self.chosen(index)
        for _ in range(10):
            self.world.step_process(process, 300)

    @precondition(lambda self: self.alive())
    @rule(index=INDEX, call=st.none() | CALL, torn=st.none() | st.floats(0, 1))
    def kill(self, index, call, torn):
        process = self.chosen(index)
        if call:
            self.world.step_to(process, *call)
        self.world.kill(process, torn)

    @precondition(lambda self: self.alive())
    @rule(index=INDEX)
    def freeze_or_thaw(self, index):
        process = self.chosen(index)
        process.is_frozen = not process.is_frozen

    @rule(seconds=st.sampled_from((3.0, 50.0, 101.0, 130.0)))
    def pass_time(self, seconds):
        self.world.pass_time(seconds)

    @rule(host=HOST, seconds=st.sampled_from((-1e9, -3600.0, 3600.0, 1e9)))
    def set_clock(self, host, seconds):
        self.world.wall[host] += seconds

    # --- faults --------------------------------------------------------------------------------------------

    @rule(room=st.just(0) | st.integers(1, 6000))
    def fill_disk(self, room):
        self.world.disk.room, self.was_full = room, True

    @precondition(lambda self: self.world.disk.room is not None)
    @rule()
    def free_disk(self):
        self.world.disk.room = None

    @precondition(lambda self: self.power)
    @rule(seed=st.integers(0, 2**16))
    def lose_power(self, seed):
        self.world.lose_power(seed)

    @precondition(lambda self: self.damages and any(True for _ in self.world.disk.files()))
    @rule(index=st.integers(0, 30), how=st.sampled_from(("flip", "cut", "delete")), place=st.floats(0, 0.999))
    def damage(self, index, how, place):
        found = list(self.world.disk.files())
        path, node = found[index % len(found)]
        before = dict(self.rows())
        at = int(place * len(node.data))
        if how == "delete":
            self.world.observer.client.unlink(path)
        elif how == "cut":
            node.data = node.data[:at]
        elif node.data:
            other = bytes([(node.data[at] + 1) % 256])  # a second change of one byte does not undo the first
            node.data = node.data[:at] + other + node.data[at + 1 :]
        self.damaged = True
        store = Store(ROOT)
        now = self.rows(store)
        gone = before.keys() - now.keys()
        assert set(now) <= set(before)
        if gone and how == "flip":
            assert path.removeprefix(f"{STORE}/") in store.corrupt_files
        if ".parquet" in path:  # a merge that has written it may go on, and remove the lines with the same rows
            group = Path(path).name.removeprefix(".").partition(".parquet")[0]
            gone |= {trial for trial, row in before.items() if row.group == group}
        self.lost |= gone & self.acknowledged.keys()
        self.lost_early |= gone - self.acknowledged.keys()
        self.losses.update(gone)

    # --- what must hold ------------------------------------------------------------------------------------

    def rows(self, store=None):
        return (store or Store(ROOT)).rows()

    def check_rows(self, found, acknowledged):
        missing = acknowledged.keys() - found.keys() - self.lost
        assert not missing, f"lost: {missing}"
        for trial, row in found.items():
            if row.status == "failed":
                assert acknowledged.get(trial) != "done" or trial in self.lost, f"{trial}: the result became a failure"
            else:
                assert results({trial: row})[trial] == expected()[trial]

    @invariant()
    def acknowledged_rows_are_there(self):
        now = [(path, node.data) for path, node in self.world.disk.files()], dict(self.acknowledged), set(self.lost)
        if now == self.checked:
            return
        self.checked = now
        store = Store(ROOT)
        self.check_rows(store.rows(), self.acknowledged)
        assert self.damaged or not store.corrupt_files, store.corrupt_files
        assert not store.disagreements
        log = declaration_log.read(store)
        assert self.damaged or not log.faults, log.faults
        recorded = [entry.finished for entry in log.of(Interim)]
        assert self.damaged or not {*self.events} - {*recorded}, (self.events, recorded)

    @invariant()
    def one_owner_per_trial(self):
        owners = {}
        for process in self.alive():
            for own in process.leases:
                for lease in owned(own):
                    for trial in lease["trials"]:
                        assert owners.setdefault(trial, process) is process, f"two owners of {trial}"

    def check_removal(self, remover, name, path):
        """Check that no process removes a lease of another living one that is younger than the time of its expiry."""
        if name != "unlink" or not path.endswith(".lease") or self.damaged:
            return
        node = self.world.disk.find(path)
        owners = [one for one in self.alive() for own in one.leases if token_of(node) in own._mine.values()]
        if owners and owners != [remover]:
            assert self.world.now - node.created >= EXPIRY * HEARTBEAT, f"{path} is removed, and its owner is alive"

    @invariant()
    def processes_end_in_order(self):
        for process in self.world.processes:
            if process.error is not None:
                self.check_error(process.error)

    def check_error(self, error):
        is_full = self.was_full and "No space left" in str(error)
        if not isinstance(error, UserError) or not (self.damaged or is_full or "another process is" in str(error)):
            raise error

    def teardown(self):
        try:
            if getattr(self, "stack", None) is not None:
                self.complete()
        finally:
            self.stack.close()

    def complete(self):
        """Let all come to their end; then one more worker has a complete and tidy folder."""
        self.world.disk.room = None
        for client in self.world.clients.values():
            client.lose_reply = False
        for _ in range(2000):
            for process in self.alive():
                process.is_frozen = False
                self.world.step_process(process, 300)
            if not self.alive():
                break
        assert not self.alive(), [process.pending for process in self.alive()]
        self.processes_end_in_order()
        self.acknowledged_rows_are_there()
        watcher = Leases(ROOT / "leases", clock=lambda: self.world.now)
        watcher.of_others()
        self.world.pass_time(200)
        assert not watcher.of_others()
        last = self.world.start(worker(retry=True))
        self.world.run(last)
        if last.error is not None:
            raise last.error
        self.lost.clear()
        self.acknowledged = dict.fromkeys(TRIALS, "done")
        self.acknowledged_rows_are_there()
        tables = [row["trial"] for path in ROOT.glob("groups/*.parquet") for row in records.read_table(path)]
        assert sorted(tables) == sorted(TRIALS)
        assert not list(ROOT.glob("groups/*.jsonl"))
        assert not list(ROOT.glob("leases/*.lease"))


class Damage(Protocol):
    """Histories in which files are damaged."""

    damages, power = True, False


class Network(Protocol):
    """Histories on NFS: names and attributes are believed for a minute, and replies are lost."""

    network, power = True, False

    @precondition(lambda self: self.alive())
    @rule(host=HOST)
    def lose_reply(self, host):
        self.world.clients[host].lose_reply = True

    def check_error(self, error):
        if not isinstance(error, UserError):
            raise error


def run(machine, histories, steps=40):
    """Run histories of a machine, and return their number."""
    machine.count = 0
    how = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=not HISTORIES,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(machine, settings=how)
    return machine.count


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("histories", [HISTORIES or 5, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [Protocol, Damage, Network])
def test_any_history_keeps_every_row(machine, histories):
    assert run(machine, histories) >= histories
