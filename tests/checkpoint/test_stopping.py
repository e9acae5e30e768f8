"""The first signal sets a flag, and the second ends the process."""

import os
import signal
import subprocess
import sys

import pytest

from flaxformer.checkpoint import stop_on_signals
from flaxformer.checkpoint.stopping import Stop
from flaxformer.system.interrupts import SIGNALS

CHILD = f"""
import runpy, signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
stop_on_signals = runpy.run_path({sys.modules[Stop.__module__].__file__!r})["stop_on_signals"]
with stop_on_signals() as stop:
    print("ready", flush=True)
    while not stop.is_requested:
        time.sleep(0.01)
    print(stop.by.name, flush=True)
    if input() == "stop":
        print("saved", flush=True)
        raise SystemExit
    while True:  # short sleeps: a signal that arrives just before a sleep is handled after it
        time.sleep(0.01)
"""


def start_and_signal(number):
    """Start a process, send it a signal, and return it when it has handled the signal."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.stdout.readline() == f"{number.name}\n"
    return child


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_one_signal_requests_a_stop_and_a_second_one_ends_the_process(number):
    child = start_and_signal(number)
    assert child.communicate("stop\n", timeout=20)[0] == "saved\n"
    assert child.returncode == 0
    with start_and_signal(number) as child:
        child.stdin.write("go on\n")
        child.stdin.flush()
        child.send_signal(number)
        assert child.wait(20) == 128 + number
        assert child.stdout.read() == ""


def test_signal_handlers_are_restored():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with stop_on_signals() as stop:
        assert not stop.is_requested
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (stop.is_requested, stop.by) == (True, signal.SIGUSR2)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
