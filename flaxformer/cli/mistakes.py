"""Mistakes of a command line: names and options, checked before JAX is imported, and exceptions that end it."""

import ast
import os
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from flaxformer.cli.arguments.runs import Generate, Train
from flaxformer.cli.arguments.studies import RunStudy
from flaxformer.cli.arguments.tools import Improve
from flaxformer.runner.launchers.options import Options, Share
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.extras import TRACKERS
from flaxformer.system.objects import url_of
from flaxformer.system.python_files import (
    CLASSES,
    COMMANDS,
    assigned_names,
    check_is_python,
    defines_none_of,
    find_experiment,
    has_only_constants,
    near_names,
    siblings,
)
from flaxformer.system.settings import (
    ProfiledSteps,
    check_numbers,
    check_processes,
    mesh_sizes,
)

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")
"""Texts of JAX's errors where memory ran out; on a CPU, it calls them internal errors."""
DEFINES = {"plan": "study", "declare": "study", "run": "study", "train": "run", "improve": "ledger"}
"""Name that the file of a command defines."""
OF_SEVERAL = {"check": ("study", "run"), "noise": ("study", "run", "ledger")}
"""Names of which the file of a command defines one."""
FOLDERS = ("directory", "a", "b")
"""Arguments of commands that are folders of results."""
READ = {
    "measure": {"file": "defines the function"},
    "improve": {"candidate": "defines `run`"},
    "generate": {"edit": "defines `edit`"},
}
"""Arguments of commands that are further Python files, and what these define."""
DYNAMIC = {"exec", "globals", "locals", "setattr", "vars"}
"""Functions by which a file may define a name that it does not assign."""
CHECKS: dict[str, Callable[..., object]] = {
    "seeds": parse_seeds,
    "share": Share.parse,
    "profile": ProfiledSteps.parse,
    "mesh": mesh_sizes,
}
"""Functions that read the value of an option, or refuse it."""
NEEDS = {
    ("plan", "quick"): "target",
    ("train", "remat"): "plan",
}
"""Option of a command without which another one has no effect."""
EXCLUDES = {
    ("train", "extend"): "restart",
}
"""Option of a command beside which another one has no effect."""


def message(error: BaseException) -> str | None:
    """Return the message for an exception that a user can correct; None for one that is a fault of the program."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, DamagedError):
        return f"a file is damaged: {error}"
    if (frames := sys.modules.get("flaxformer.system.user_code.source")) and frames.place_of(error):
        return str(frames.describe(error))
    if isinstance(error, SystemExit):
        return None
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fspath(error.filename)} cannot be used: {error.strerror}"
    if isinstance(error, OSError):
        return f"the operating system reports: {error.strerror or error}"
    if isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
        return f"out of memory ({type(error).__name__}: {error}); a smaller model, batch or length needs less"
    return None


def check_words(words: Sequence[str]) -> None:
    """Check the words of a command line.

    Raises:
      UserError: one is empty, such as an unset variable of a shell; or holds a control character, which neither names a
        file nor belongs to a text to continue.
    """
    for number, word in enumerate(words, start=1):
        if not word:
            raise UserError(f"word {number} of the command is empty; expected a value")
        control = next((c for c in word if unicodedata.category(c) == "Cc" and c not in "\n\t\r"), None)
        if control is not None:
            raise UserError(f"{word!r} holds the control character {control!r}; expected printable text")


def end_of_pipe() -> None:
    """Let the interpreter end in silence after the reader of its output is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_inputs(name: str, command: object) -> None:
    """Check the file and the folder of a command, as far as their names and the text of the file tell.

    Args:
      name: name of the command.
      command: its arguments.

    Raises:
      UserError: there is no such file or folder, with those of similar names; an error of syntax; or a file for
        another command.
    """
    for argument in FOLDERS:
        folder = getattr(command, argument, None)
        if isinstance(folder, Path) and url_of(folder) is None:
            _check_folder(folder)
    output = getattr(command, "output", None)
    if isinstance(output, Path) and url_of(output) is None:
        _check_output(output)
    file = getattr(command, "file", None)
    if isinstance(file, Path) and name in (*DEFINES, *OF_SEVERAL):
        is_for_both = name == "plan" and getattr(command, "target", None) is not None
        _check_file(OF_SEVERAL["check"] if is_for_both else OF_SEVERAL.get(name) or (DEFINES[name],), file)
    for argument, purpose in READ.get(name, {}).items():
        if isinstance(file := getattr(command, argument), Path):
            _check_is_file(file, purpose)


def _check_folder(folder: Path) -> None:
    """Check a folder of results."""
    if not folder.exists():
        near = near_names(folder, (path for path in siblings(folder) if path.is_dir()))
        raise UserError(f"no folder '{folder}'; {near or 'expected a folder of results'}")
    if folder.is_file():
        folder_of_run = Path("runs") / folder.stem
        raise UserError(
            f"'{folder}' is a file; expected the output folder of a study or a job, such as {folder_of_run}"
        )


def _check_output(folder: Path) -> None:
    """Check a folder to write, which need not exist."""
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        raise UserError(f"output is '{folder}', and '{file}' is a file; expected a folder")


def _check_file(expected: tuple[str, ...], file: Path) -> None:
    """Check a file that defines one of the names `expected`."""
    purpose = "defines " + " or ".join(f"`{name}`" for name in expected)
    path = _check_is_file(file, purpose)
    if not path.is_file():  # a device or a pipe may have no end
        return
    check_is_python(file, purpose)
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
    except (OSError, ValueError):
        return  # the command says what is wrong with its content
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assigned = assigned_names(tree)
    possible = assigned | {node.id for node in names if isinstance(node.ctx, ast.Store) or node.id in DYNAMIC}
    if {*expected, *DYNAMIC, "*"} & possible:
        return
    further = [name for name in COMMANDS if name in assigned]
    if further or has_only_constants(tree):
        raise UserError(defines_none_of(file, {name: CLASSES[name] for name in expected}, further))


def _check_is_file(file: Path, purpose: str) -> Path:
    """Check that a Python file exists; return its path."""
    path = find_experiment(file)
    if not path.exists():
        near = near_names(file, (path for path in siblings(file) if path.suffix == ".py"))
        raise UserError(f"no file '{file}'; {near or f'expected a Python file that {purpose}'}")
    if path.is_dir():
        raise UserError(f"'{file}' is a folder; expected a Python file that {purpose}")
    return path


def check_options(name: str, command: object) -> None:
    """Check the options of a command as far as their values tell.

    Args:
      name: name of the command.
      command: its arguments.

    Raises:
      UserError: an option has a value that is never valid, or has no effect without another option.
    """
    check_numbers(command)
    for option, check in CHECKS.items():
        if (value := getattr(command, option, None)) is not None:
            check(value)
    for (owner, option), needed in NEEDS.items():
        if name == owner and getattr(command, option) and not getattr(command, needed):
            raise UserError(f"--{option} is given without --{needed}, and has no effect; expected both or neither")
    for (owner, option), other in EXCLUDES.items():
        if name == owner and getattr(command, option) and getattr(command, other):
            raise UserError(f"--{option} is given beside --{other}; expected one of them")
    if isinstance(command, RunStudy | Train):
        _check_trackers(command)
    if isinstance(command, RunStudy):
        _check_launcher(command)
    if isinstance(command, Generate):
        _check_decoding(command)
    if isinstance(command, Improve):
        _check_attempt(command)
    check_processes(*(getattr(command, option, None) for option in ("coordinator", "processes", "process")))


def _check_trackers(command: RunStudy | Train) -> None:
    """Check that trackers are those of the package, or may be classes of the file."""
    text = command.file.read_text(errors="replace") if command.track and command.file.is_file() else ""
    for name in command.track:
        if name not in TRACKERS and name not in text and "import *" not in text:
            raise UserError(f"track is '{name}'{did_you_mean(name, list(TRACKERS))}")


def _check_launcher(command: RunStudy) -> None:
    """Check options that the launcher, or its absence, has no use for."""
    launcher = command.launcher
    Options(command.workers, command.slurm, command.ray).check(launcher)
    if command.live and launcher == "slurm":
        raise UserError("--live is given, and --launcher slurm returns before the runs end; expected 'status --serve'")
    for name in ("coordinator", "processes", "process", "share"):
        if launcher is not None and (value := getattr(command, name)) is not None:
            raise UserError(f"--{name} is given {value} and launcher is {launcher}; expected one of them")
    if command.json and (launcher or command.share):
        raise UserError("--json stands beside --launcher or --share; expected 'report DIR --json' after them")


def _check_decoding(command: Generate) -> None:
    """Check that a decoding has one way to choose tokens."""
    if command.beams is not None and (command.temperature, command.top_k, command.top_p) != (None, None, None):
        raise UserError(f"beams is {command.beams} with temperature, top_k or top_p; expected one way to decode")


def _check_attempt(command: Improve) -> None:
    """Check that the options of `improve` do not exclude each other, and that a change has a reason."""
    changes = bool(command.overrides or command.candidate or command.tune is not None)
    modes = [name for name in ("confirm", "withdraw") if getattr(command, name)]
    if len(modes) > 1 or (modes and changes):
        raise UserError(f"--{modes[0]} stands beside {'--' + modes[1] if len(modes) > 1 else 'a change'}; expected one")
    if command.tune == ():
        raise UserError("--tune has no rates; expected at least two, such as --tune 0.001 0.003")
    if command.tune is not None and not (command.overrides or command.candidate):
        raise UserError(
            "--tune stands without a change; expected one, or the rate itself: optimizer.learning_rate=0.002"
        )
    if command.reason is not None and not changes:
        raise UserError("--reason stands without a change; expected one, such as optimizer.learning_rate=0.002")
    if changes and not (command.reason or "").strip():
        raise UserError('the attempt has no reason; expected --reason "why the change may help"')
