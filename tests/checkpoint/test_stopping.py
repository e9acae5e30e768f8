"""The first signal is a flag, the second the end."""

import os
import signal
import subprocess
import sys

import pytest

from flaxformer.checkpoint import stopping
from flaxformer.checkpoint.stopping import SIGNALS, Stop

CHILD = f"""
import runpy, time
stopping = runpy.run_path({sys.modules[Stop.__module__].__file__!r})["stopping"]
with stopping() as stop:
    print("ready", flush=True)
    while not stop.asked:
        time.sleep(0.01)
    print(stop.by.name, flush=True)
    if input() == "stop":
        print("saved", flush=True)
        raise SystemExit
    while True:  # not one long sleep: a signal that comes just before it is heard only after it
        time.sleep(0.01)
"""


def asked(number):
    """A process that has been sent one signal, and has seen it."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.stdout.readline() == f"{number.name}\n"
    return child


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_one_signal_lets_a_process_end_by_itself_and_two_end_it_at_once(number):
    child = asked(number)
    assert child.communicate("stop\n", timeout=20)[0] == "saved\n"
    assert child.returncode == 0
    with asked(number) as child:
        child.stdin.write("go on\n")
        child.stdin.flush()
        child.send_signal(number)
        assert child.wait(20) == 128 + number
        assert child.stdout.read() == ""


def test_within_a_process_a_signal_is_a_flag_and_the_handlers_come_back():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with stopping() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (stop.asked, stop.by) == (True, signal.SIGUSR2)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
