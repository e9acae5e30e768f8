"""Help, versions, completion and exit codes: shown at once, within 80 columns, with examples."""

import os
import shutil
import subprocess
import sys
import typing

import pytest

from flaxformer.cli import main
from flaxformer.cli.arguments import COMMANDS, options
from flaxformer.model.layout import Layout
from flaxformer.runner.launch import OnError
from flaxformer.system.user_code.changes import OnCodeChange


def printed(*words, columns="80", **how):
    """Output and errors of the command in a process of its own, and its exit code."""
    environment = os.environ | {"COLUMNS": columns}
    command = [sys.executable, "-m", "flaxformer.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **how)
    return done.stdout, done.stderr, done.returncode


@pytest.fixture(scope="module")
def helps():
    """What --help prints of each command, and of all; the last line says whether JAX was imported."""
    code = (
        "import sys\n"
        "from flaxformer.cli import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as stop: code = stop.code\n"
        "print(code, 'jax' in sys.modules)"
    )
    found = {}
    for name in ("", *COMMANDS):
        words = [sys.executable, "-c", code, *filter(None, [name]), "--help"]
        environment = os.environ | {"COLUMNS": "80"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
        found[name] = done.stdout.splitlines()
    return found


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_shown_without_importing_jax(helps, name):
    assert helps[name][-1] == "0 False"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_an_example_and_fits_80_columns(helps, name):
    text = helps[name]
    assert [line for line in text if len(line.rstrip()) > 80] == []
    assert f"  flaxformer {name}".rstrip() in "\n".join(text)


def test_the_list_of_commands_has_the_first_line_of_each(helps):
    text = " ".join(" ".join(helps[""]).split())
    for name, command in COMMANDS.items():
        assert f"{name} {command.__doc__.splitlines()[0]}" in text


def test_help_lists_the_exit_codes(helps):
    codes = [line.split()[0] for line in helps[""] if line[:5].strip().isdigit()]
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
