"""The run beside its checkpoints, so that a folder says by itself what model its numbers are of."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer.files import write_atomically
from flaxformer.struct import Config, UserError, canonical, did_you_mean, differences, type_hints
from flaxformer.training.run import Run

NAME = "config.json"
FORMAT = 1


def write_config(folder: str | Path, run: Run) -> None:
    """Write the run into the folder, which is made if need be; nothing happens where it is there already.

    Raises:
      UserError: the folder is another run's; the message lists what differs, field by field.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / NAME).exists():
        if unlike := differences(_data_in(folder), canonical(run)):
            lines = "\n".join(f"  {line}" for line in unlike)
            raise UserError(f"{folder} holds another run:\n{lines}\nGive another folder, or remove this one.")
        return
    data = {"format": FORMAT, "run": canonical(run)}
    write_atomically(folder / NAME, json.dumps(data, indent=1, ensure_ascii=False).encode())


def config_of(folder: str | Path, classes: Mapping[str, type[Config]] | None = None) -> Run:
    """The run whose checkpoints the folder holds.

    Args:
      folder: as given to `write_config`.
      classes: config classes of your own that it may name, such as a task's, by name; the library's are known.

    Raises:
      UserError: no such file, one that is damaged or of another format, or one with a class or field not known here.
    """
    run = from_canonical(_data_in(Path(folder)), classes_within(Run) | dict(classes or {}), "run")
    if not isinstance(run, Run):
        raise UserError(f"{Path(folder) / NAME} holds a {type(run).__name__}; expected a Run")
    return run


def classes_within(root: type[Config]) -> dict[str, type[Config]]:
    """Every config class that a field of `root` may hold, at any depth, by name: what a file may name, and no more."""
    found: dict[str, type[Config]] = {}
    waiting: list[Any] = [root]
    while waiting:
        kind = waiting.pop()
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            waiting += typing.get_args(kind)
        elif kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += type_hints(kind).values()
        elif found[kind.__name__] is not kind:
            raise TypeError(f"two config classes are named {kind.__name__}; expected one")
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
        if isinstance(data[name], list) and fields[name].metadata["pytree_node"]:
            raise UserError(f"{where}.{name} is {data[name]!r}; expected one value")
    return classes[kind](**{name: from_canonical(data[name], classes, f"{where}.{name}") for name in names})


def _data_in(folder: Path) -> Any:
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
    return data["run"]
