"""`flaxformer prepare`: its summary, and its messages about wrong arguments."""

import pytest

from flaxformer.cli import main
from flaxformer.data import prepare
from flaxformer.data.token_files import read_description
from flaxformer.tasks import PairedTokens, TokenFiles


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Function that runs the command in a folder with a text and its translation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "one.txt").write_text("".join(f"the line {i}\n" for i in range(90)))
    (tmp_path / "two.txt").write_text("".join(f"die Zeile {i}\n" for i in range(90)))

    def call(*arguments):
        code = main(["prepare", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, " ".join(err.split())

    return call


def test_text_is_prepared_and_summarised(command, tmp_path):
    code, out, _ = command("one.txt", "out/a=b", "--validation-tenths", "3", "--tokenizer", "characters", "--end")
    assert code == 0
    expected = prepare("one.txt", tmp_path / "own", validation_tenths=3, tokenizer="characters", end=True)
    about = read_description(tmp_path / "out" / "a=b")
    assert about == expected
    lines = [line.split() for line in out.splitlines()]
    assert lines[:3] == [
        ["data", "tokens", "documents"],
        ["train", f"{about['tokens']['train']:,}", "1"],
        ["validation", f"{about['tokens']['validation']:,}", "1"],
    ]
    assert f"vocabulary of {about['vocabulary']} tokens (characters); data in out/a=b" in out
    line = out.splitlines()[-1]
    assert line == 'task=TokenFiles(path="out/a=b")'
    assert eval(line.removeprefix("task=")).vocabulary == about["vocabulary"] == TokenFiles(path="own").vocabulary


def test_summary_counts_pairs(command):
    code, out, _ = command("one.txt", "counted", "--target", "two.txt")
    assert code == 0
    task = eval(out.splitlines()[-1].removeprefix("task="))
    assert task == PairedTokens(path="counted")
    counts = [line.split()[2] for line in out.splitlines()[1:3]]
    assert counts == [str(len(pairs)) for pairs in task.sides().values()]
    assert sum(map(int, counts)) == 90


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.txt", "out"), "none.txt"),
        (("one.txt", "out", "--validation-tenths", "10"), "validation_tenths is 10; expected a number at most 9"),
        (("one.txt", "out", "--tokenizer", "bpe"), "vocabulary is None; expected a number for tokenizer='bpe'"),
        (("one.txt", "out", "--target", "two.txt", "--end"), "end is True; expected False for pairs"),
    ],
)
def test_wrong_arguments_print_one_error_message(command, tmp_path, arguments, message):
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert not (tmp_path / "out").exists()
