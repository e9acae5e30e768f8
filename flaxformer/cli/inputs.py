"""Files and folders that a command names, checked before JAX is imported: mistakes in a name are answered at once."""

import ast
from pathlib import Path

from flaxformer.system.errors import UserError
from flaxformer.system.objects import url_of
from flaxformer.system.python_files import assigned_names, check_is_python, find_experiment, near_names, siblings

DEFINES = {"plan": "study", "declare": "study", "run": "study", "train": "run", "improve": "ledger"}
"""Name that the file of a command defines."""
INSTEAD = {"study": "flaxformer run", "run": "flaxformer train", "ledger": "flaxformer improve"}
"""Command for a file by the name that it defines."""


def check_inputs(name: str, command: object) -> None:
    """Check the file and the folder of a command, as far as their names and the text of the file tell.

    Args:
      name: name of the command.
      command: its arguments.

    Raises:
      UserError: there is no such file or folder, with those of similar names; an error of syntax; or a file for
        another command.
    """
    folder, file = getattr(command, "directory", None), getattr(command, "file", None)
    if isinstance(folder, Path) and url_of(folder) is None and not folder.exists():
        near = near_names(folder, (path for path in siblings(folder) if path.is_dir()))
        raise UserError(f"no folder '{folder}'; {near or 'expected a folder of results'}")
    if isinstance(file, Path) and name in (*DEFINES, "check", "noise"):
        is_for_both = name == "plan" and getattr(command, "target", None) is not None
        _check_file(None if is_for_both else DEFINES.get(name), file)


def _check_file(expected: str | None, file: Path) -> None:
    """Check a file that defines `expected`; a study or a run if that is None."""
    path = find_experiment(file)
    purpose = "defines `study` or `run`" if expected is None else f"defines `{expected}`"
    if not path.exists():
        near = near_names(file, (path for path in siblings(file) if path.suffix == ".py"))
        raise UserError(f"no file '{file}'; {near or f'expected a Python file that {purpose}'}")
    if path.is_file():
        check_is_python(file, purpose)
    if not path.is_file() or expected is None:
        return
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
    except (OSError, ValueError):
        return  # the command says what is wrong with its content
    names = assigned_names(tree)
    anywhere = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for other, command in INSTEAD.items():
        if other in names and not {expected, "*"} & (names | anywhere):
            raise UserError(f"'{file}' defines `{other}` and no `{expected}`; expected {command} {file}")
