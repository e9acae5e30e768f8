"""Output of the command: texts are shown, never obeyed; words that no command can read are refused."""

import io

import pytest
from rich.text import Text

from flaxformer.cli import main, mistakes
from flaxformer.cli.terminal import safe_console
from flaxformer.system.errors import UserError


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x9b31m", "\x07", "\x7f", "\udcff"])
def test_control_characters_are_not_printed(bad):
    console = safe_console()
    console.file = file = io.StringIO()
    console.print(f"one {bad} two", Text(f"three {bad}"))
    found = file.getvalue()
    assert all(character.isprintable() or character == "\n" for character in found)
    assert found.startswith("one ")


def test_markup_of_others_is_text():
    console = safe_console()
    console.file = file = io.StringIO()
    console.print("[/bold] [red]x[/red] [link=http://example.org]y[/link]")
    assert file.getvalue() == "[/bold] [red]x[/red] [link=http://example.org]y[/link]\n"


@pytest.mark.parametrize("word", ["", "a\0b", "\x1b[2J", "\x85"])
def test_words_that_name_nothing_are_refused(capsys, word):
    assert main(["status", word]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_errors_of_the_system_and_of_memory_are_messages_and_others_are_not():
    assert mistakes.message(FileNotFoundError(2, "No such file", "x/y")) == "x/y cannot be used: No such file"
    assert mistakes.message(OSError(28, "No space left")) == "the operating system reports: No space left"
    assert str(mistakes.message(MemoryError("needs 3 TB"))).startswith("out of memory (MemoryError: needs 3 TB)")
    assert mistakes.message(UserError("size is 3")) == "size is 3"
    assert mistakes.message(KeyError("size")) is None
    assert mistakes.message(SystemExit(0)) is None


@pytest.mark.parametrize("command", ["status", "report", "run", "plan", "train", "generate", "prepare"])
def test_names_that_are_too_long_are_one_message(capsys, command):
    words = {"run": ["run", "x" * 300 + ".py"], "prepare": ["prepare", "x" * 300, "y"]}
    assert main(words.get(command, [command, "x" * 300])) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert "Traceback" not in out + err
