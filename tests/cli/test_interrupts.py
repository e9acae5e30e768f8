"""Interruption of commands: exit code 130 and no traceback, wherever the signal arrives."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from study.tiny import FILE

from flaxformer.cli import main

DEADLINE = 20.0
"""Seconds after which a command that has not noticed an interruption returns 0."""


@pytest.fixture
def _former_handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in former.items():
        signal.signal(number, handler)


def send() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # Python handles it at one of the next instructions
        pass


def in_a_callback_of_the_garbage_collector() -> None:
    def callback(phase: str, info: object) -> None:
        gc.callbacks.remove(callback)
        send()

    gc.callbacks.append(callback)
    gc.collect()


class Finalized:
    """An object whose deletion is interrupted."""

    def __del__(self) -> None:
        send()


def in_a_deletion() -> None:
    Finalized()


def in_a_deletion_and_its_repetition() -> None:
    patch = pytest.MonkeyPatch()

    def start(timer: threading.Timer) -> None:
        patch.undo()
        send()

    patch.setattr(threading.Timer, "start", start)
    in_a_deletion()


def in_a_callback_of_a_weak_reference() -> None:
    def target() -> None:
        pass

    reference = weakref.ref(target, lambda _: send())
    del target
    assert reference() is None


def turned_into_another_exception() -> None:
    try:
        send()
    except KeyboardInterrupt:
        raise RuntimeError("KeyboardInterrupt") from None


def swallowed_at_the_end() -> None:
    try:
        send()
    except KeyboardInterrupt:
        sys.exit(0)


@pytest.mark.usefixtures("_former_handlers")
@pytest.mark.parametrize(
    "interrupted",
    [
        in_a_callback_of_the_garbage_collector,
        in_a_deletion,
        in_a_deletion_and_its_repetition,
        in_a_callback_of_a_weak_reference,
        turned_into_another_exception,
        swallowed_at_the_end,
        send,
    ],
)
def test_a_dropped_interruption_ends_the_command_with_130(
    interrupted: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: object,
) -> None:
    reached = []

    def work(arguments: object, console: object) -> int:
        interrupted()
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            time.sleep(0.5)
        reached.append("the end")
        return 0

    monkeypatch.setattr("flaxformer.cli.status.main", work)
    assert main(["status", str(tmp_path)]) == 130
    assert not reached
    errors = capsys.readouterr().err
    assert "Stopped." in errors
    assert "Traceback" not in errors
    assert "ignored" not in errors


MOMENTS = [
    pytest.param(
        words, seconds, marks=() if (words[0], seconds) in (("plan", 0.4), ("check", 1.5)) else pytest.mark.slow
    )
    for words in (
        ("plan", "tiny.py"),
        ("check", "tiny.py"),
        ("run", "tiny.py", "training.steps=100000"),
        ("report", "results/tiny"),
        ("measure", "results/tiny", "tiny.py"),
        ("prepare", "text.txt", "--tokenizer", "bpe", "--vocabulary", "5000"),
        ("bench", "--quick"),
    )
    for seconds in (0.4, 1.5, 3.0)
]


@pytest.mark.parametrize(("words", "seconds"), MOMENTS)
def test_ctrl_c_at_any_moment_is_130_or_comes_too_late(tmp_path, words, seconds):
    (tmp_path / "tiny.py").write_text(FILE)
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 200_000)
    command = [sys.executable, "-m", "flaxformer.cli", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 130 or (process.returncode in (0, 2) and "Stopped" not in errors)
