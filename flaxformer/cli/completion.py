"""The command `flaxformer completion SHELL`."""

import contextlib
import io

import tyro
from rich.console import Console

from flaxformer.cli.arguments import Completion
from flaxformer.cli.parsing import SETTINGS, all_commands

COMPLETIONS = "completions = get_completions(words, current_index, COMPLETION_SPEC)"
FILES = """
    word = (words[current_index:] or [''])[0]
    if not word.startswith('-') and all(one.startswith('-') for one in completions):
        completions = ['__TYRO_COMPLETE_FILES__']"""
BASH_FILES = 'COMPREPLY=($(compgen -f -- "$cur"))'
BASH_FILES_OF_WORD = 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))'
CHANGES = {
    "bash": {COMPLETIONS: COMPLETIONS + FILES, BASH_FILES: BASH_FILES_OF_WORD},
    "zsh": {COMPLETIONS: COMPLETIONS + FILES},
    "fish": {"complete --no-files": "complete"},
}
"""Changes of tyro's script, which completes file names only after options; our positional arguments are files too."""


def main(arguments: Completion, console: Console) -> int:
    """Print the script for the shell."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        tyro.cli(all_commands(), prog="flaxformer", args=["--tyro-print-completion", arguments.shell], config=SETTINGS)
    script = printed.getvalue()
    for old, new in CHANGES[arguments.shell].items():
        script = script.replace(old, new)
    print(script, end="")
    return 0
