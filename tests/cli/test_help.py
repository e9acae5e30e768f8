"""Help, versions, completion and exit codes: shown at once, within 80 columns, with examples."""

import json
import os
import shutil
import subprocess
import sys
import typing

import pytest

from flaxformer.cli import main
from flaxformer.cli.arguments import COMMANDS, options
from flaxformer.model.layout import Layout
from flaxformer.runner.execution import OnError
from flaxformer.system.user_code.changes import OnCodeChange


def printed(*words, columns="80", **how):
    """Output and errors of the command in a process of its own, and its exit code."""
    environment = os.environ | {"COLUMNS": columns}
    command = [sys.executable, "-m", "flaxformer.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **how)
    return done.stdout, done.stderr, done.returncode


ALL_HELPS = """
import contextlib, io, json, sys
from flaxformer.cli import main
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try: code = main([*filter(None, [name]), "--help"])
        except SystemExit as stop: code = stop.code
    print(json.dumps([name, {"text": text.getvalue(), "code": code, "jax": "jax" in sys.modules}]))
"""


@pytest.fixture(scope="module")
def helps():
    """For each command, and for "", which is all: what --help prints, its exit code, and if JAX is imported by then."""
    done = subprocess.run(
        [sys.executable, "-c", ALL_HELPS, "", *COMMANDS],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
        check=True,
    )
    return dict(map(json.loads, done.stdout.splitlines()))


def test_help_is_shown_without_importing_jax(helps):
    assert {name: (shown["code"], shown["jax"]) for name, shown in helps.items()} == dict.fromkeys(
        ["", *COMMANDS], (0, False)
    )


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_an_example_and_fits_80_columns(helps, name):
    text = helps[name]["text"]
    assert [line for line in text.splitlines() if len(line.rstrip()) > 80] == []
    assert f"  flaxformer {name}".rstrip() in text


def test_the_list_of_commands_has_the_first_line_of_each(helps):
    text = " ".join(helps[""]["text"].split())
    for name, command in COMMANDS.items():
        assert f"{name} {command.__doc__.splitlines()[0]}" in text


def test_help_lists_the_exit_codes(helps):
    codes = [line.split()[0] for line in helps[""]["text"].splitlines() if line[:5].strip().isdigit()]
    assert codes == ["0", "1", "2", "130"]


def test_version_names_the_versions_of_a_bug_report(capsys):
    assert main(["--version"]) == 0
    flaxformer, jax, python = capsys.readouterr().out.strip().split(", ")
    assert flaxformer.startswith("flaxformer ")
    assert jax == f"jax {sys.modules['jax'].__version__}"
    assert python == "python " + ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(("word", "meant"), [("rnu", "run"), ("stauts", "status"), ("--vesion", None)])
def test_an_unknown_command_gets_the_nearest_one(capsys, word, meant):
    assert main([word]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: there is no command '{word}'")
    assert (f"did you mean '{meant}'?" in message) == (meant is not None)


def test_no_command_is_a_mistake_and_shows_the_help(capsys):
    assert main([]) == 2
    assert "usage: flaxformer COMMAND" in capsys.readouterr().err


def test_choices_are_those_of_the_package():
    pairs = {Layout: options.LAYOUTS, OnError: options.ON_ERROR, OnCodeChange: options.ON_CODE_CHANGE}
    for package, command in pairs.items():
        assert typing.get_args(package) == typing.get_args(command)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_every_command_and_file_names(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(f"'{name}'" in script for name in COMMANDS)
    changed = {"bash": 'COMP_WORDS[COMP_CWORD]}"))', "zsh": "word.startswith('-')", "fish": "complete --command"}
    assert changed[shell] in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_files(tmp_path):
    script = printed("completion", "bash")[0]
    (tmp_path / "completion").write_text(script)
    (tmp_path / "my_study.py").touch()
    call = (
        'source completion; complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); '
        '_tyro_flaxformer; echo "${COMPREPLY[*]}"; }; '
        "complete_words flaxformer stat; complete_words flaxformer run --see; complete_words flaxformer run my_; "
        "complete_words flaxformer run --output my_"
    )
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["status", "--seeds", "my_study.py", "my_study.py"]
