"""Work in a process of its own: results, mistakes, output, and the message when the process dies."""

import os
import sys

import pytest

from flaxformer.cli.child_process import ChildDiedError, call_in_process
from flaxformer.system.errors import UserError


def add(a, b):
    return a + b


def refuse(word):
    raise UserError(f"word is {word}; expected another")


def fail():
    raise ZeroDivisionError("a fault of the program")


def abort():
    """End as a compiler does that finds a fault of its own: a fatal message, a stack, SIGABRT."""
    sys.stderr.write("F1126 12:00:00 compiler.cc:12] Check failed: fits\n*** SIGABRT ***\n    @ 0x7f0 main\n")
    sys.stderr.flush()
    os.abort()


def leave():
    os.write(2, b"first\nlast words\n")
    os._exit(7)


def test_the_result_and_the_mistake_of_the_function_come_back():
    assert call_in_process(add, 3, 4) == 7
    with pytest.raises(UserError, match="word is two; expected another"):
        call_in_process(refuse, "two")


@pytest.mark.slow
def test_a_fault_of_the_program_is_printed_as_one(capfd):
    assert call_in_process(fail) == 1
    assert "ZeroDivisionError: a fault of the program" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (abort, "ended by SIGABRT: F1126 12:00:00 compiler.cc:12] Check failed: fits"),
        pytest.param(leave, "exit code 7: last words", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_gives_one_message(function, words, capfd):
    with pytest.raises(ChildDiedError) as raised:
        call_in_process(function)
    assert str(raised.value) == words
    assert capfd.readouterr().err == ""
