"""Exceptions outside `Exception` in a user's file or function: one message with the file and the line."""

import pytest

from flaxformer.study.load import load_module
from flaxformer.study.user_functions import calling
from flaxformer.system.errors import UserError


class Outside(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize("raised", ["Outside('mine')", "GeneratorExit", "SystemExit(0)", "RuntimeError('mine')"])
def test_every_exception_of_a_file_is_a_message(tmp_path, raised):
    file = tmp_path / "study.py"
    file.write_text(f"class Outside(BaseException): ...\n\nraise {raised}\n")
    with pytest.raises(UserError, match=r"study\.py"):
        load_module(file, "defines a study")


def test_an_interruption_of_a_file_stays_one(tmp_path):
    file = tmp_path / "study.py"
    file.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_module(file, "defines a study")


@pytest.mark.parametrize("raised", [Outside("mine"), GeneratorExit(), SystemExit(0), RuntimeError("mine")])
def test_every_exception_of_a_function_is_a_message(raised):
    with pytest.raises(UserError, match="measure failed at seed 3"), calling("measure", "at seed 3"):
        raise raised


def test_an_interruption_of_a_function_stays_one():
    with pytest.raises(KeyboardInterrupt), calling("measure", "at seed 3"):
        raise KeyboardInterrupt
