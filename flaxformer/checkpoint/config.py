"""The run beside its checkpoints, so that a folder says by itself what model its numbers are of."""

import dataclasses
import itertools
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer.files import write_atomically
from flaxformer.struct import (
    Config,
    UserError,
    alternatives,
    canonical,
    did_you_mean,
    differences,
    qualified_name,
    type_hints,
)
from flaxformer.training.run import Run
from flaxformer.user_code import changes
from flaxformer.user_code.changes import OnCodeChange

NAME = "config.json"
FORMAT = 1


def write_config(
    folder: str | Path,
    run: Run,
    code: Mapping[str, str] | None = None,
    on_code_change: OnCodeChange = "refuse",
    source: str | None = None,
) -> None:
    """Write the run into the folder, which is made if need be; nothing happens where it is there already.

    Args:
      code: digests of the user's code that the run uses, by name.
      source: where in the folder the file that declares the run is copied, such as "code/0123456789abcdef/mine.py".
      on_code_change: what to do where it has changed since: "refuse"; "keep" what is there and record the change; or
        "retrain", which moves what is there to superseded/N.

    Raises:
      UserError: the folder is another run's, or of other code; the message lists what differs.
    """
    folder, code = Path(folder), dict(code or {})
    changed = check_config(folder, run, code, on_code_change)
    old = _document(folder) if (folder / NAME).exists() else None
    if old is not None and not changed:
        return
    history = [] if old is None else old.get("code_changes", [])
    if changed:
        history = [*history, changes.entry(on_code_change, {changes.DERIVED: changed}, 1)]
        if on_code_change == "retrain":
            _supersede(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "run": canonical(run), "code": code, "source": source}
    data |= {"code_changes": history} if history else {}
    write_atomically(folder / NAME, json.dumps(data, indent=1, ensure_ascii=False).encode())


def check_config(folder: Path, run: Run, code: Mapping[str, str], on_code_change: OnCodeChange) -> list[str]:
    """The user code of a folder's run that has changed since; nothing is written.

    Raises:
      UserError: the folder is another run's, or of other code where `on_code_change` is "refuse".
    """
    changes.check(on_code_change)
    if not (folder / NAME).exists():
        return []
    old = _document(folder)
    if unlike := differences(old["run"], canonical(run)):
        lines = "\n".join(f"  {line}" for line in unlike)
        raise UserError(f"{folder} holds another run:\n{lines}\nGive another folder, or remove this one.")
    changed = changes.differing(old.get("code") or {}, code)
    if changed and on_code_change == "refuse":
        raise UserError(changes.message(folder, {changes.DERIVED: changed}, "a run"))
    return changed


def _supersede(folder: Path) -> None:
    """Move all that is in a folder to superseded/N in it; copies of code stay, for they are named by their digest."""
    number = next(n for n in itertools.count(1) if not (folder / "superseded" / str(n)).exists())
    target = folder / "superseded" / str(number)
    target.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.name not in (".lock", "superseded", "code"):
            path.rename(target / path.name)


def config_of(folder: str | Path, classes: Mapping[str, type[Config]] | None = None) -> Run:
    """The run whose checkpoints the folder holds.

    Args:
      folder: as given to `write_config`.
      classes: config classes of your own that it may name, by qualified name, such as {"tasks.Shifted": Shifted} for a
        class in tasks.py (see `struct.qualified_name`); the package's own are known.

    Raises:
      UserError: no such file, one that is damaged or of another format, or one with a class or field not known here.
    """
    run = from_canonical(_document(Path(folder))["run"], classes_within(Run) | dict(classes or {}), "run")
    if not isinstance(run, Run):
        raise UserError(f"{Path(folder) / NAME} holds a {type(run).__name__}; expected a Run")
    return run


def source_of(folder: str | Path) -> Path | None:
    """The folder's copy of the file that declares its run, where there is one."""
    source = _document(Path(folder)).get("source")
    parts = Path(source).parts if isinstance(source, str) else ()
    is_inside = len(parts) > 2 and parts[0] == "code" and ".." not in parts
    return Path(folder, *parts) if is_inside else None


def classes_within(root: type[Config]) -> dict[str, type[Config]]:
    """Every config class that a field of `root` may hold, at any depth, by name: what a file may name, and no more.

    Of classes of one name, such as those that a notebook's cell defined twice, the latest.
    """
    found: dict[str, type[Config]] = {}
    waiting: list[Any] = [root]
    seen: set[type] = set()
    for kind in waiting:
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            waiting += typing.get_args(kind)
        elif kind not in seen:
            seen.add(kind)
            other = found.setdefault(qualified_name(kind), kind)
            if other is not kind and kind.__module__.startswith("flaxformer."):
                raise TypeError(f"two config classes are named {kind.__name__}; expected one")
            found[qualified_name(kind)] = kind  # the latest of the user's own, as in Python
            waiting += [*type_hints(kind).values(), *kind.__subclasses__()]
    return found


def from_canonical(data: Any, classes: Mapping[str, type[Config]], where: str = "config") -> Any:
    """The inverse of `struct.canonical`, for data from a file: it names only these classes, and all their fields.

    Raises:
      UserError: a class or field that is not known, a field that is absent, or a value that a field cannot have.
    """
    if isinstance(data, list):
        return tuple(from_canonical(item, classes, f"{where}.{number}") for number, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in classes:
        raise UserError(f"{where} is of kind {kind!r}{did_you_mean(str(kind), list(classes))}")
    fields = {field.name: field for field in dataclasses.fields(classes[kind])}
    names = list(fields)
    for name in [*(name for name in data if name != "kind"), *names]:
        if name not in names:
            raise UserError(f"{where}: {kind} has no field '{name}'{did_you_mean(name, names)}")
        if name not in data:
            raise UserError(f"{where}, a {kind}, lacks '{name}'; expected every field: another version wrote it")
        is_tuple = any(typing.get_origin(one) is tuple for one in alternatives(type_hints(classes[kind])[name]))
        if isinstance(data[name], list) and not is_tuple:
            raise UserError(f"{where}.{name} is {data[name]!r}; expected one value")
    return classes[kind](**{name: from_canonical(data[name], classes, f"{where}.{name}") for name in names})


def _document(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no run (no {NAME}); expected the output folder of a training run") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); expected JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or "run" not in data:
        found = data.get("format") if isinstance(data, dict) else None
        raise UserError(f"{path} is in format {found!r}; expected {FORMAT}")
    return data
