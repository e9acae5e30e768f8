"""Single histories of the storage protocol, step by step: races, stale writers, damage, and locks that do not hold."""

import contextlib
from pathlib import Path

import pytest
from protocol import simulated_study as study
from protocol.simulated_study import GROUPS, TRIALS, worker
from protocol.simulated_world import STORE, World

from flaxformer.store.leases import read_lease
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

ROOT = Path(STORE)
FIRST = [trial.name for trial in GROUPS[0].trials]


class History:
    """A world, and the rows that were acknowledged in it."""

    def __init__(self, **world):
        self.world, self.acknowledged = World(**world), []

    def acknowledge(self, row):
        self.acknowledged.append((self.world.process, row.trial))

    def rows_of(self, process):
        return [trial for owner, trial in self.acknowledged if owner is process]

    def go_on(self, process, until, limit=3000):
        """Let a process go on to the first system call before which `until(name, path)` holds."""
        for _ in range(limit):
            self.world.step_process(process)
            assert not process.is_done, process.error
            if until(*process.pending):
                return
        raise AssertionError(process.pending)

    def end(self, *processes):
        for process in processes:
            self.world.run(process)
            if process.error is not None:
                raise process.error

    def lost(self):
        return {trial for _, trial in self.acknowledged} - Store(ROOT).rows().keys()


@contextlib.contextmanager
def history(**world):
    own = History(**world)
    with own.world.patched(), study.patched(own.world, own.acknowledge):
        yield own


def test_row_of_a_suspended_worker_survives_a_merge_by_another():
    """The merge has read the file of the suspended worker, which then adds a row to it."""
    with history() as own:
        late = own.world.start(worker())
        own.go_on(late, lambda *_: len(own.rows_of(late)) == 1)
        late.is_frozen = True
        other = own.world.start(worker(only=FIRST[2:]), "two")
        own.go_on(other, lambda name, path: name == "rename" and "parquet" in path)
        own.go_on(late, lambda *_: len(own.rows_of(late)) == 2)
        own.go_on(other, lambda name, path: name == "unlink" and "lease" in path)
        assert own.lost() == set()


def test_suspended_owner_does_not_merge_the_rows_of_its_successor():
    with history() as own:
        late = own.world.start(worker(only=FIRST))
        own.go_on(late, lambda *_: len(own.rows_of(late)) == 1)
        late.is_frozen = True
        successor = own.world.start(worker(only=FIRST), "two")
        own.go_on(successor, lambda *_: len(own.rows_of(successor)) == 1)
        for _ in range(2000):
            own.world.step_process(late)
        assert len(own.rows_of(late)) == 3
        assert not list(ROOT.glob("groups/*.parquet"))
        own.end(successor, late)
        assert Store(ROOT).rows().keys() == set(FIRST)


@pytest.mark.parametrize("first", ["share", "group"])
def test_a_share_and_its_group_are_never_both_taken(first):
    with history() as own:
        one, two = own.world.start(worker(only=FIRST[:1])), own.world.start(worker(), "two")
        if first == "group":
            one, two = two, one
        own.go_on(one, lambda name, path: name == "create" and path.endswith(".lease"))
        for _ in range(400):
            own.world.step_process(two)
            if any(leases.names for leases in two.leases):
                break
        own.world.step_process(one, 30)
        owners = [trial for process in (one, two) for leases in process.leases for trial in held(leases)]
        assert len(owners) == len(set(owners))
        own.end(one, two)
        assert Store(ROOT).rows().keys() == set(TRIALS)


def held(leases):
    return [trial for name in leases.names for trial in read_lease(leases.folder / f"{name}.lease")["trials"]]


def test_row_after_a_line_that_was_cut_is_kept():
    with history() as own:
        process = own.world.start(worker())
        own.go_on(process, lambda *_: len(own.rows_of(process)) == 1)
        [node] = [node for path, node in own.world.disk.files() if path.endswith(".jsonl") and "groups" in path]
        node.data = node.data[:-9]
        own.acknowledged.clear()
        own.go_on(process, lambda *_: len(own.rows_of(process)) == 1)
        assert own.lost() == set()


def test_changed_end_of_the_last_line_is_reported():
    with history() as own:
        process = own.world.start(worker())
        own.go_on(process, lambda *_: len(own.rows_of(process)) == 1)
        [node] = [node for path, node in own.world.disk.files() if path.endswith(".jsonl") and "groups" in path]
        for data, reported in ((node.data[:-1] + b"\x0b", True), (node.data[:-1], False)):
            node.data, store = data, Store(ROOT)
            assert store.rows() == {}
            assert ["its end was changed" in what for what in store.corrupt_files.values()] == [True] * reported


def test_locks_that_do_not_exclude_other_machines_are_reported():
    with history(network=True, locks=False) as own:
        one, two = own.world.start(worker()), own.world.start(worker(), "two")
        own.go_on(one, lambda name, path: name == "rename" and "study.json" in path)
        own.go_on(two, lambda name, path: path.endswith(".lease"))
        with pytest.raises(UserError, match="was locked by two processes; expected a file system with flock"):
            own.end(one)


@pytest.mark.parametrize("file", ["study.json", ".jsonl", ".parquet", ".lease"])
def test_file_that_is_replaced_on_nfs_while_it_is_read_is_read_anew(file):
    """The reader has opened the file; then a worker merges rows and ends, and another one begins and ends."""
    with history(network=True) as own:
        own.end(own.world.start(worker(only=FIRST[:1])))
        late = own.world.start(worker())
        own.go_on(late, lambda *_: own.rows_of(late) == FIRST[1:2])
        reader = own.world.start(lambda _: (Store(ROOT).rows(), status(Store(ROOT))), "two")
        own.go_on(reader, lambda name, path: name == "read" and path.endswith(file))
        own.end(late, own.world.start(worker()))
        own.end(reader)
        assert reader.result[1]["declared"] == len(TRIALS)


@pytest.mark.parametrize("network", [False, True])
def test_a_merge_while_a_reader_is_suspended_hides_no_row_and_is_no_damage(network):
    with history(network=network) as own:
        late = own.world.start(worker(only=FIRST))
        own.go_on(late, lambda name, path: name == "rename" and path.endswith(".parquet"))
        readers = []
        while not readers or not readers[-1].is_done:
            readers.append(own.world.start(lambda _: read(Store(ROOT)), "two"))
            own.world.step_process(readers[-1], len(readers))
        assert len(readers) > 10
        own.end(late)
        for reader in readers:
            own.end(reader)
            trials, damage = reader.result
            assert trials == set(FIRST) or (network and trials < set(FIRST))  # a listing may be a minute old
            assert not damage


def read(store):
    return store.rows().keys(), store.corrupt_files


def test_a_partial_run_that_is_removed_while_another_process_begins_is_no_error():
    """The second process lists the partial runs, to refuse links, when the first one removes those of its group."""
    with history() as own:
        first, second = own.world.start(worker(only=FIRST)), own.world.start(worker(only=TRIALS[-1:]))
        own.go_on(first, lambda name, path: name == "rmdir" and path.endswith(GROUPS[0].name))
        own.go_on(second, lambda name, path: name == "scandir" and path.endswith(GROUPS[0].name))
        own.world.step_process(first)
        own.end(second, first)
        assert Store(ROOT).rows().keys() == {*FIRST, TRIALS[-1]}


def test_lease_is_released_on_a_full_disk():
    """The disk is full before a worker's first row is merged; the worker ends with one message, and has no lease."""
    with history() as own:
        process = own.world.start(worker(), "one")
        own.go_on(process, lambda *_: len(own.rows_of(process)) == len(FIRST))
        own.world.disk.room = 0
        own.world.run(process)
        assert isinstance(process.error, UserError)
        assert "No space left on device" in str(process.error)
        assert not list(ROOT.glob("leases/*.lease"))
        assert own.lost() == set()
        own.world.disk.room = None
        own.end(own.world.start(worker(), "two"))
        assert Store(ROOT).rows().keys() == set(TRIALS)
