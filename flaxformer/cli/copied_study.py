"""The study of a folder of results, from the copy of its file that ran, or from a file that the user names."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flaxformer.cli.parsing import parse
from flaxformer.digests import JsonObject
from flaxformer.errors import UserError
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.store import Store, read_lines
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.suggest import Search
from flaxformer.user_code import is_unchanged_copy, path_of_copy


def copied_study(store: Store, file: Path | None, overrides: Sequence[str], seeds: Sequence[int]) -> Study:
    """Return the study of a file, or of the last copy of its file in the folder, whose digest is compared first.

    Args:
      store: the study's folder.
      file: the file; None for the copy.
      overrides: changes of the baseline; without any, those of the last command.
      seeds: the seeds.

    Raises:
      UserError: there is no copy, it was changed, or the study's arms depend on its results.
    """
    launches = read_lines(store.root / LAUNCHES)
    file = copy_of_file(store, launches) if file is None else file
    command = last_command(launches)
    study = load_study(file, overrides or tuple(getattr(command, "overrides", ())), seeds)
    if isinstance(study, Search):
        raise UserError(f"study '{study.name}' is a search, whose arms depend on its results; expected fixed arms")
    return study


def copy_of_file(store: Store, launches: Sequence[JsonObject]) -> Path:
    """Return the path of the last copy of the study's file, which is as it was written; nothing is executed."""
    known = [one for one in launches if one.get("file") and one.get("code")]
    copies = [store.root / str(path_of_copy(one["code"], Path(one["file"]))) for one in known]
    file = next((path for path in reversed(copies) if path.is_file()), None)
    if file is None:
        raise UserError(f"{store.root} holds no copy of the study's file (code/); give the file with --file")
    if not is_unchanged_copy(file.parent):
        raise UserError(f"{file.parent} was changed after it was written; give the study's file with --file")
    return file


def last_command(launches: Sequence[JsonObject]) -> Any:
    """Return the arguments of the last recorded command `run`; None without one."""
    command = next((one["command"] for one in reversed(launches) if one.get("command")), "")
    words = shlex.split(command)[1:]
    return parse(words) if words[:1] == ["run"] else None
