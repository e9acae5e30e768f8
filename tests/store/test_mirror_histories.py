"""Generated histories of machines that write one remote folder, with kills, failures, pauses and lost disks.

Every machine trains the trials that its folder lacks, one row each, as a worker does. In every history:

- the remote folder can be read at any moment, and has every row of a push that returned, each once;
- of the machines that write, all but one learn that they are late before they store anything;
- a row that was not stored is in the local folder of its machine, and is stored or refused, never dropped.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store.bucket import URL, Bucket, Killed, read, texts, writer

from flaxformer.store import revisions
from flaxformer.store.mirror import LostError
from flaxformer.store.revisions import HeldError
from flaxformer.system.errors import UserError

MACHINES, TRIALS = st.integers(0, 2), 12
CALLS = st.integers(1, 12)


def rows_of(files):
    """Return the rows in the files of a folder."""
    return [row for text in files.values() for row in text.splitlines()]


class RemoteFolder(RuleBasedStateMachine):
    """Three machines, each with a copy of the remote folder, and the rows that they know to be stored."""

    def __init__(self):
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.root = Path(tempfile.mkdtemp())
        self.bucket = Bucket().install(self.patches)
        self.bucket.while_asleep = self.beat
        self.processes, self.suspended, self.stored, self.pushed = {}, set(), set(), {}
        self.readers = 0

    def teardown(self):
        self.patches.undo()
        shutil.rmtree(self.root)

    def place(self, machine):
        return self.root / f"machine {machine}"

    def local(self, machine):
        folder = self.place(machine) / "copy" / "study"
        return rows_of(texts(folder)) if folder.exists() else []

    def beat(self):
        """Let the processes that are not suspended say that they live, as their threads do."""
        for machine in [*self.processes.keys() - self.suspended]:
            self.push(machine)

    def push(self, machine, release=False):
        process = self.processes[machine]
        rows = set(self.local(machine))
        try:
            process.push(release)
        except LostError:
            del self.processes[machine]
            return
        self.stored |= rows

    @initialize()
    def first(self):
        self.attach(0)

    @rule(machine=MACHINES)
    @precondition(lambda self: len(self.processes) < 3)
    def attach(self, machine):
        if machine in self.processes:
            return
        before = self.local(machine)
        living = {*self.processes} - self.suspended
        try:
            self.processes[machine] = writer(self.place(machine))
        except HeldError:
            assert living
        except UserError:  # both have changed
            assert self.local(machine) == before
            shutil.rmtree(self.place(machine))  # as the message says
        else:
            assert not {*self.processes} - self.suspended - {machine}
            assert self.stored <= set(self.local(machine))
            assert set(before) <= set(self.local(machine))

    @rule(machine=MACHINES, count=st.integers(1, 3))
    def train(self, machine, count):
        """Write the rows of some trials, and merge the files of rows when all trials have one."""
        if machine not in self.processes:
            return
        folder = self.processes[machine].folder / "groups"
        folder.mkdir(exist_ok=True)
        missing = sorted({f"row {n:02}" for n in range(TRIALS)} - set(self.local(machine)))
        for row in missing[:count]:
            with (folder / f"a.{machine}.jsonl").open("a") as file:
                file.write(f"{row}\n")
        if len(missing) <= count:
            rows = sorted(self.local(machine))
            (folder / "a.parquet").write_text("\n".join(rows))
            for path in folder.glob("*.jsonl"):
                path.unlink()

    @rule(machine=MACHINES, release=st.booleans())
    def store(self, machine, release):
        if machine in self.processes and machine not in self.suspended:
            self.push(machine, release)
            if release:
                self.processes.pop(machine, None)

    @rule(machine=MACHINES, at=CALLS, how=st.sampled_from(["killed before", "killed after"]))
    def kill(self, machine, at, how):
        """End a process while it stores."""
        if machine in self.processes:
            with self.bucket.wrong(at, how), contextlib.suppress(Killed, LostError):
                self.processes[machine].push()
            del self.processes[machine]
            self.suspended.discard(machine)

    @rule(machine=MACHINES, at=CALLS, how=st.sampled_from(["before", "after"]))
    def fail(self, machine, at, how):
        """Let one call of a push fail."""
        if machine in self.processes and machine not in self.suspended:
            with self.bucket.wrong(at, how), contextlib.suppress(UserError):
                self.push(machine)

    @rule(machine=MACHINES)
    def suspend(self, machine):
        if machine in self.processes:
            self.suspended.add(machine)

    @rule(machine=MACHINES)
    def wake(self, machine):
        """Let a process go on that was suspended, perhaps for so long that another one has taken over."""
        if machine in self.suspended:
            self.suspended.discard(machine)
            if machine in self.processes:
                self.push(machine)

    @rule(machine=MACHINES, other=MACHINES, pushes=st.integers(1, 3))
    def take_over(self, machine, other, pushes):
        """Let another machine go on while one is suspended, and then the suspended one."""
        if machine == other or machine not in self.processes or other in self.processes:
            return
        self.train(machine, 1)
        self.suspended.add(machine)
        self.attach(other)
        for _ in range(pushes):
            self.train(other, 1)
            self.store(other, False)
        self.wake(machine)

    @rule(machine=MACHINES, at=CALLS, how=st.sampled_from(["killed before", "killed after"]))
    def restart(self, machine, at, how):
        """End a process while it stores rows, and let the next one on its machine store what is left."""
        self.train(machine, 1)
        self.kill(machine, at, how)
        self.attach(machine)
        self.store(machine, False)

    @rule(machine=MACHINES)
    def lose_disk(self, machine):
        if machine not in self.processes:
            shutil.rmtree(self.place(machine), ignore_errors=True)

    @invariant()
    def remote_folder_is_whole(self):
        if revisions.newest(URL) is None:
            return
        self.readers += 1
        rows = rows_of(read(self.root / f"reader {self.readers % 2}"))
        assert sorted(rows) == sorted(set(rows))
        assert self.stored <= set(rows)


RemoteFolder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRemoteFolder = pytest.mark.long(RemoteFolder.TestCase)
