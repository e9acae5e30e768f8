"""Leases: one owner at a time, known to be dead by what the observer saw, whatever clocks and files say."""

import errno
import json
import os
import threading

import pytest

from flaxformer.store import leases as module
from flaxformer.store.leases import EXPIRY, Leases, read_lease, read_leases, start_time
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder

TRIALS = ["a", "b", "c"]


class Clock:
    """Monotonic seconds that a test moves."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


def observer(folder, clock):
    return Leases(folder, heartbeat=10.0, clock=clock)


def foreign(folder, name="g", **changes):
    """A lease of a process of another machine."""
    folder.mkdir(exist_ok=True)
    said = {"token": "f" * 32, "host": "far", "pid": 1, "born": "1", "machine": "other", "started": 0.0}
    path = folder / f"{name}.lease"
    path.write_text(json.dumps(said | {"heartbeat": 10.0, "trials": TRIALS} | changes))
    return path


def test_of_many_processes_one_gets_a_lease(folder):
    barrier, won = threading.Barrier(8), []

    def try_it():
        own = Leases(folder)
        barrier.wait()
        if own.take("g", TRIALS):
            won.append(own)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release("g")
    assert read_leases(folder) == []


def test_a_lease_taken_between_check_and_removal_is_kept(folder, clock, monkeypatch):
    path, watcher = foreign(folder), observer(folder, clock)
    before = path.read_bytes()
    monkeypatch.setattr(Leases, "trials_of_others", lambda *_: set())
    assert watcher.take("g", TRIALS) is None
    assert path.read_bytes() == before


def test_leaving_the_context_releases_the_own_leases_alone(folder):
    other = foreign(folder, "h")
    with Leases(folder) as own:
        assert own.take("g", TRIALS) == TRIALS
        assert own.take("g", TRIALS) is None
        assert sorted(lease["group"] for lease in read_leases(folder)) == ["g", "h"]
    assert [lease["path"] for lease in read_leases(folder)] == [other]


@pytest.fixture(params=["open", "write", "some", "quota"])
def full_disk(request, monkeypatch):
    """A function after which no new file can be created, or nothing or only a part be written to it."""

    def fill():
        number = errno.EDQUOT if request.param == "quota" else errno.ENOSPC
        open_, write = os.open, os.write

        def opened(path, flags, *arguments, **options):
            if request.param == "open" and flags & os.O_CREAT and not os.path.exists(path):
                raise OSError(number, os.strerror(number))
            return open_(path, flags, *arguments, **options)

        def written(file, data):
            if request.param == "some":
                return write(file, data[:5])
            if request.param in ("write", "quota"):
                raise OSError(number, os.strerror(number))
            return write(file, data)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "write", written)

    return fill


@pytest.mark.parametrize("how", ["release", "leave", "expire"])
def test_a_full_disk_keeps_no_lease_that_is_released_or_dead(folder, clock, full_disk, how):
    watcher, path = observer(folder, clock), folder / "g.lease"
    with observer(folder, clock) as own:
        if how == "expire":
            foreign(folder)
            (folder / ".lock").touch()  # of the owner, when it took the lease
            assert watcher.of_others("g")
            clock.now += 1000
        else:
            assert own.take("g", TRIALS) == TRIALS
        full_disk()
        if how == "release":
            own.release("g")
            assert not path.exists()
        elif how == "expire":
            assert watcher.of_others("g") == []
    assert not path.exists()
    assert not (folder / ".lock.holder").exists()


def test_a_full_disk_gives_no_lease_and_its_lock_excludes_others(folder, clock, full_disk):
    own, other = observer(folder, clock), observer(folder, clock)
    assert own.take("g", TRIALS) == TRIALS
    full_disk()
    with pytest.raises(UserError, match=r"No space left on device|Disk quota exceeded"):
        other.take("h", TRIALS)
    first, second = (lock_folder(folder, "removing leases", only_removes=True) for _ in range(2))
    with first, pytest.raises(UserError, match="another process is removing leases"), second:
        raise AssertionError("two processes hold the lock")
    assert other.trials_of_others("g") is None
    assert [lease["group"] for lease in read_leases(folder)] == ["g"]


def test_a_share_of_a_group_leaves_the_other_trials_to_other_processes(folder, clock):
    first, second, third = (observer(folder, clock) for _ in range(3))
    assert first.take("g.0123456789ab", ["a"]) == ["a"]
    assert second.take("g", TRIALS) == ["b", "c"]
    assert third.take("g", TRIALS) is None
    assert third.take("other", TRIALS) == TRIALS


def test_a_silent_owner_counts_as_dead_after_ten_heartbeats_of_the_observers_own(folder, clock):
    foreign(folder)
    watcher = observer(folder, clock)
    assert watcher.take("g", TRIALS) is None
    clock.now += 10.0 * EXPIRY - 0.1
    assert watcher.take("g", TRIALS) is None
    clock.now += 0.2
    assert watcher.take("g", TRIALS) == TRIALS


@pytest.mark.parametrize("when", [0, 2**31, 2**33], ids=["long ago", "2038", "far ahead"])
def test_only_a_changed_file_counts_as_a_heartbeat(folder, clock, when):
    path, watcher = foreign(folder), observer(folder, clock)
    os.utime(path, (when, when))
    assert watcher.take("g", TRIALS) is None
    for jump in (-5, 3600, -7200, 1):
        clock.now += 10.0 * EXPIRY - 1
        os.utime(path, (when + jump, max(when + jump, 0)))
        assert watcher.take("g", TRIALS) is None


def test_a_slow_heartbeat_is_waited_for(folder, clock):
    foreign(folder, heartbeat=60.0)
    watcher = observer(folder, clock)
    assert watcher.take("g", TRIALS) is None
    clock.now += 590
    assert watcher.take("g", TRIALS) is None
    clock.now += 20
    assert watcher.take("g", TRIALS) == TRIALS


def test_ended_processes_of_this_machine_lose_their_leases_at_once(folder, clock):
    watcher, here = observer(folder, clock), module.machine()
    foreign(folder, machine=here, pid=os.getpid(), born=start_time(os.getpid()))
    assert watcher.take("g", TRIALS) is None
    for gone in ({"pid": 2**22 + 1, "born": "5"}, {"pid": os.getpid(), "born": "5"}):  # no such process; another one
        foreign(folder, machine=here, **gone)
        assert watcher.take("g", TRIALS) == TRIALS
        watcher.release("g")


def test_an_unreadable_lease_counts_as_held_until_it_expires(folder, clock):
    text = foreign(folder).read_bytes()
    cases = [text[:cut] for cut in range(len(text))]
    cases += [b"[]", b"7", b'{"trials": 3, "token": "x"}', b'{"trials": [[]], "token": "x"}', b"\xff", b"[" * 9999]
    for case in cases:
        path, watcher = folder / "g.lease", observer(folder, clock)
        path.write_bytes(case)
        assert watcher.take("g", TRIALS) is None
        assert read_lease(path)["trials"] is None
        clock.now += 10.0 * EXPIRY
        assert watcher.take("g", TRIALS) == TRIALS
        watcher.release("g")
        assert not path.exists()


def test_invalid_heartbeats_in_leases_are_ignored(folder, clock):
    for odd in (-1, 0, 1e30, "x", None, float("nan"), True):
        foreign(folder, heartbeat=odd)
        watcher = observer(folder, clock)
        assert watcher.take("g", TRIALS) is None
        clock.now += 10.0 * EXPIRY
        assert watcher.take("g", TRIALS) == TRIALS
        watcher.release("g")


def test_an_owner_that_was_considered_dead_leaves_the_new_lease_alone(folder, clock):
    with Leases(folder, heartbeat=0.02) as slow:
        assert slow.take("g", TRIALS)
        before = (folder / "g.lease").stat().st_mtime_ns
        assert wait(lambda: (folder / "g.lease").stat().st_mtime_ns != before)
        other = foreign(folder)
        assert wait(lambda: not slow.names)
        slow.release("g")
        before = other.stat().st_mtime_ns
        assert not wait(lambda: other.stat().st_mtime_ns != before, 0.1)
    assert other.exists()


def test_only_the_owner_releases_a_lease(folder, clock):
    own = observer(folder, clock)
    assert own.take("g", TRIALS)
    other = foreign(folder)  # took it over unnoticed
    own.release("g")
    assert other.exists()


def wait(is_so, seconds=20.0):
    """True if something came to be so in time."""
    gate = threading.Event()
    return any(is_so() or gate.wait(0.01) for _ in range(int(seconds * 100)))


def test_links_and_folders_in_place_of_leases_are_refused(tmp_path, folder, clock):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(UserError, match="symbolic link"):
        Leases(tmp_path / "link")
    precious = tmp_path / "precious"
    precious.write_text("kept")
    watcher = observer(folder, clock)
    (folder / "g.lease").symlink_to(precious)
    assert watcher.take("g", TRIALS) is None
    clock.now += 10.0 * EXPIRY
    assert watcher.take("g", TRIALS) == TRIALS
    assert precious.read_text() == "kept"
    (folder / "h.lease").mkdir()
    assert watcher.take("h", TRIALS) is None
    clock.now += 10.0 * EXPIRY
    with pytest.raises(UserError, match=r"h\.lease cannot be removed"):
        watcher.take("h", TRIALS)
