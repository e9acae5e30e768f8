"""Processes of several simulated machines that share a folder, stepped one system call at a time.

Each process is a thread that runs only while the test lets it: `World.step_process` lets it make some system calls. It
can be killed before any of them: no code of it has an effect from then on. A process that is not stepped is suspended;
while time passes, its heartbeat thread goes on unless the process is frozen.
"""

import contextlib
import hashlib
import os
import threading
import time
from types import SimpleNamespace
from unittest import mock

from protocol.simulated_client import Client, Locks
from protocol.simulated_disk import ROOT, Disk
from protocol.simulated_os import System

from flaxformer.checkpoint import checkpoints
from flaxformer.runner import launch, partial_runs
from flaxformer.store import leases, status
from flaxformer.system import files

MODULES = (files, launch, partial_runs, leases, status)
HEARTBEAT = leases.HEARTBEAT
HOSTS = ("one", "two", "three")


class Killed(BaseException):
    """A kill of the process; no code catches it."""


def baton():
    """Return a lock that is held: whoever waits for it goes on when another thread releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Process:
    """A process of a machine, in a thread of its own unless it is the test's."""

    def __init__(self, world, host, work=None):
        self.world, self.host, self.client, self.work = world, host, world.clients[host], work
        self.number = 1000 + len(world.processes)
        self.files, self.leases = {}, []
        self.budget, self.wake, self.is_frozen, self.is_killed = 0, 0.0, False, False
        self.pending = self.until = None
        """The system call that it makes next; and those where it is suspended, as a name and an end of a path."""
        self.torn = None
        """How much of the data to write when it is killed there."""
        self.fails = frozenset()
        """Trials whose training raises an exception in this process."""
        self.is_done = work is None
        self.result = self.error = None
        self.turn = baton()
        self.thread = threading.Thread(target=self._run, daemon=True) if work else None

    def _run(self):
        self.turn.acquire()
        try:
            if not self.is_killed:
                self.result = self.work(self)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True
        for number in list(self.files):
            self.client.close(self.files.pop(number))
        self.world.turn.release()

    @property
    def is_alive(self):
        return not (self.is_done or self.is_killed)

    def is_at(self, call):
        """True if its next system call has this name, and a path with this end; `call` is None for no call."""
        return call is not None and self.pending[0] == call[0] and self.pending[1].endswith(call[1])


class OwnLock:
    """Lock between the threads of a simulated process, of which one runs at a time."""

    def __init__(self):
        self.depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


class AtOnce:
    """Executor that runs what it is given at once."""

    def __init__(self, *_, **__):
        pass

    def submit(self, function, *arguments):
        function(*arguments)
        return SimpleNamespace(result=lambda: None)


class World:
    """Machines, their processes, their disk and their time."""

    def __init__(self, network=False, locks=True):
        self.now, self.wall, self.disk = 1e9, dict.fromkeys(HOSTS, 0.0), Disk()
        shared = Locks()
        self.clients = {
            host: Client(host, self.disk, lambda: self.now, network, shared if locks else None) for host in HOSTS
        }
        if not network:  # processes of one machine
            self.clients = dict.fromkeys(HOSTS, self.clients[HOSTS[0]])
        self.processes, self.counter, self.calls = [], 0, []
        self.turn, self.is_beating = baton(), False
        self.system = System(self)
        self.observer = Process(self, HOSTS[0])
        self.observer.client = Client("observer", self.disk, lambda: self.now)
        self.process = self.observer
        """The process whose code runs now."""
        self.watch = None
        """Called with each system call that changes something, for traces."""

    # --- for the simulated system --------------------------------------------------------------------------

    def is_dead(self):
        return self.process.is_killed

    def die(self):
        self.process.is_killed = True
        raise Killed

    def step(self, name, path, changes=False, data=None):
        """Suspend the calling process if its steps are used up; the part of `data` that a kill leaves, or None."""
        process = self.process
        if process.is_killed:
            raise Killed
        if process.work is not None and not self.is_beating:
            process.pending = (name, path)
            if process.budget <= 0 or process.is_at(process.until):
                self._suspend(process)
            process.budget -= 1
            if process.is_killed:
                if data is not None and process.torn is not None:
                    process.is_killed = False
                    return data[: int(len(data) * process.torn)]
                raise Killed
        if changes and self.watch:
            self.watch(process, name, path)
        return None

    def _suspend(self, process):
        self.turn.release()
        process.turn.acquire()

    def sleep(self, seconds):
        process = self.process
        if process.work is None:
            raise AssertionError("the observer must not wait")
        if process.is_killed:
            raise Killed
        process.wake, process.pending = self.now + seconds, ("sleep", "")
        self._suspend(process)
        if process.is_killed:
            raise Killed

    # --- for the test --------------------------------------------------------------------------------------

    def start(self, work, host=HOSTS[0]):
        """Begin a process; it is suspended before its first system call."""
        process = Process(self, host, work)
        self.processes.append(process)
        process.thread.start()
        return process

    def step_process(self, process, calls=1):
        """Let a process make some system calls, or come to its end, or to the point where it waits."""
        if process.is_done or not calls:
            return
        if process.wake > self.now:
            self.pass_time(process.wake - self.now)
        process.budget = calls
        self._hand_over(process)

    def step_to(self, process, call, end="", limit=1000):
        """Let a process go on until its next system call has this name, and a path with this end."""
        process.until = (call, end)
        while limit > 1 and process.is_alive and not (process.pending and process.is_at(process.until)):
            self.step_process(process, limit - 1)
            limit = min(limit - 1, process.budget + 1)
        process.until = None

    def _hand_over(self, process):
        """Let a process run until it is suspended or ends."""
        former, self.process = self.process, process
        process.turn.release()
        self.turn.acquire()
        self.process = former

    def run(self, process, limit=100_000):
        """Let a process come to its end."""
        for _ in range(limit // 1000):
            if process.is_done:
                return
            self.step_process(process, 1000)
        raise AssertionError(f"a process does not end: {process.pending}")

    def kill(self, process, torn=None):
        """Kill a process before its next system call; of data that it was to write, a part may have been written."""
        if not process.is_done:
            process.is_killed, process.torn = True, torn
            process.budget, process.until = 1, None
            self._hand_over(process)
            process.is_killed = True
            process.thread.join()

    def lose_power(self, seed):
        """Kill all processes, and lose some of what was not flushed."""
        for process in self.processes:
            self.kill(process)
        self.disk.lose_power(seed)
        for client in self.clients.values():
            client.folders.clear()
            client.attributes.clear()

    def pass_time(self, seconds):
        """Let time pass, with the heartbeats of all processes that are not frozen."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + HEARTBEAT)
            for process in self.processes:
                if process.is_alive and not process.is_frozen:
                    for own in process.leases:
                        self.beat(process, own)

    def beat(self, process, own):
        if own._lock.depth == 0:  # else the heartbeat thread waits for the main one
            former, self.process, self.is_beating = self.process, process, True
            try:
                own.beat()
            finally:
                self.process, self.is_beating = former, False

    @contextlib.contextmanager
    def patched(self):
        """Within, the package's files, time, random names and processes are simulated."""
        clock = SimpleNamespace(
            time=lambda: self.wall[self.process.host] + self.now,
            monotonic=self._monotonic,
            sleep=self.sleep,
            perf_counter=time.perf_counter,
        )
        random = SimpleNamespace(token_hex=self._token)
        threads = SimpleNamespace(RLock=OwnLock, Event=threading.Event, Thread=self._thread)
        with contextlib.ExitStack() as stack:
            for module in MODULES:
                if hasattr(module, "time"):
                    stack.enter_context(mock.patch.object(module, "time", clock))
                if hasattr(module, "secrets"):
                    stack.enter_context(mock.patch.object(module, "secrets", random))
            changes = {"threading": threads, "machine": lambda: self.process.host, "start_time": self._born}
            for name, value in changes.items():
                stack.enter_context(mock.patch.object(leases, name, value))
            pool = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=AtOnce, Future=object))
            stack.enter_context(mock.patch.object(checkpoints, "concurrent", pool))
            stack.enter_context(mock.patch.object(launch, "POLL", 2 * HEARTBEAT))
            stack.enter_context(mock.patch.object(os, "getpid", self._pid))
            stack.enter_context(mock.patch.object(leases.Leases.__init__, "__defaults__", (None, lambda: self.now)))
            stack.enter_context(self.system.patched())
            try:
                yield self
            finally:
                for process in self.processes:
                    self.kill(process)

    def _monotonic(self):
        self.now += 1e-6  # a call takes time
        return self.now

    def _token(self, size=16):
        self.counter += 1
        return hashlib.blake2b(str(self.counter).encode(), digest_size=size).hexdigest()

    def _thread(self, target, **_):
        """The heartbeat thread of leases, which `pass_time` replaces."""

        def start():
            self.process.leases.append(target.__self__)

        def join():
            self.process.leases.remove(target.__self__)

        return SimpleNamespace(start=start, join=join)

    def _pid(self):
        return self.process.number

    def _born(self, pid):
        alive = [one for one in self.processes if one.number == pid and one.is_alive and one.host == self.process.host]
        return str(pid) if alive or pid == self.process.number else None


STORE = f"{ROOT}/study"
