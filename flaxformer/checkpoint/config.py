"""The run of a folder, written beside its checkpoints, so that the folder alone determines the model."""

import dataclasses
import shutil
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from flaxformer.catalog import import_named
from flaxformer.core.canonical import canonical
from flaxformer.core.struct import Config, alternatives, qualified_name, type_hints
from flaxformer.store.places import SUPERSEDED, next_superseded
from flaxformer.system.digests import DamagedError, JsonObject, read_document, write_document
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.files import make_folder
from flaxformer.system.json_differences import Json, differences
from flaxformer.system.links import check_file
from flaxformer.system.typed_data import plain
from flaxformer.system.user_code import changes, read_records
from flaxformer.system.user_code.changes import OnCodeChange
from flaxformer.training.run import Run

NAME = "config.json"
FORMAT = 2
"""Version of config.json; raised when older files cannot be read."""
LOCKS = (".lock", ".lock.holder")
"""Files of the lock, which stay where they are."""


class ConfigFile(TypedDict):
    """Content of config.json."""

    format: int
    run: Json
    """The run, as `core.canonical` gives it."""
    code: dict[str, str] | None
    """Digests of user code by the name of the definition."""
    source: str | None
    code_changes: NotRequired[list[JsonObject]]
    initial_weights: NotRequired[str]
    """Digest of the weights that the run started from."""
    extensions: NotRequired[list[JsonObject]]
    """Changes of the number of steps, in order: fields of `jobs.extension.Extension`, and the time."""


def write_config(
    folder: str | Path,
    run: Run,
    code: Mapping[str, str] | None = None,
    on_code_change: OnCodeChange = "refuse",
    source: str | None = None,
    initial_weights: str | None = None,
    file: Path | None = None,
) -> None:
    """Write a run into a folder, which is created if it does not exist. Do nothing if the folder has the same run.

    Args:
      folder: the folder.
      run: the run.
      code: digests of the user code that the run uses, by the name of the definition.
      on_code_change: what to do if that code has changed: "refuse"; "keep" the folder's results and record the change;
        or "retrain", which moves them to superseded/N.
      source: path in the folder of the copied file that declares the run, such as "code/0123456789abcdef/mine.py".
      initial_weights: digest of the weights that the run starts from.
      file: file that declares the run, whose folder the paths of files that user code has read are relative to.

    Raises:
      UserError: the folder has another run, or results of other code; the message lists what differs.
    """
    folder, code = Path(folder), dict(code or {})
    decided = check_config(folder, run, code, on_code_change, initial_weights, file)
    old = _read_document(folder) if (folder / NAME).exists() else None
    if old is not None and not decided:
        return
    history = [] if old is None else [*old.get("code_changes", []), *map(plain, decided)]
    if decided:
        if on_code_change == "retrain":
            supersede(folder)
        read_records.accept(folder, file)
    make_folder(folder)
    data: ConfigFile = {"format": FORMAT, "run": canonical(run), "code": code, "source": source}
    if history:
        data["code_changes"] = history
    if old is not None and on_code_change == "keep" and "extensions" in old:
        data["extensions"] = old["extensions"]
    if initial_weights is None and old is not None and on_code_change == "keep":  # they are not there any more
        initial_weights = old.get("initial_weights")
    if initial_weights is not None:
        data["initial_weights"] = initial_weights
    write_document(folder / NAME, dict(data))


def check_config(
    folder: Path,
    run: Run,
    code: Mapping[str, str],
    on_code_change: OnCodeChange,
    initial_weights: str | None = None,
    file: Path | None = None,
) -> list[changes.CodeChange]:
    """Return the record of what has changed of user code, and of what it read, since the folder's results were made.

    Raises:
      UserError: the folder has another run, or one that started from other weights; or `on_code_change` is "refuse" and
        code has changed.
    """
    changes.check_decision(on_code_change)
    if not (folder / NAME).exists():
        return []
    old = _read_document(folder)
    if changed_fields := differences(old["run"], canonical(run)):
        lines = "\n".join(f"  {line}" for line in changed_fields)
        raise UserError(f"{folder} holds another run:\n{lines}\nGive another folder, or set these fields back.")
    if None not in (initial_weights, old_weights := old.get("initial_weights")) and old_weights != initial_weights:
        raise UserError(
            f"{folder} holds a run that started from other weights: {old_weights} -> {initial_weights}. Give another "
            "folder, or restore these weights."
        )
    changed = changes.compare_digests(old.get("code") or {}, code) + read_records.changed_reads(folder, file)
    return changes.decide(folder, on_code_change, {changes.DERIVED: changed} if changed else {}, 1, "a run")


def extend_config(folder: Path, run: Run, extension: JsonObject) -> None:
    """Write a run that differs from a folder's in the number of steps, and add the extension to those before."""
    data = _read_document(folder)
    data["run"], data["extensions"] = canonical(run), [*data.get("extensions", []), extension]
    write_document(folder / NAME, dict(data))


def supersede_after(folder: Path, step: int) -> None:
    """Move the checkpoints after a step to superseded/N, and copy the other files of the folder there."""
    target = next_superseded(folder)
    make_folder(target)
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name.partition(".")[0].isdecimal() and int(path.name.partition(".")[0]) > step:
            path.rename(target / path.name)
        elif path.is_file() and path.name not in LOCKS:
            shutil.copyfile(path, target / path.name)


def supersede(folder: Path) -> None:
    """Move a folder's contents to superseded/N inside it, except copies of code, which are named by their digest."""
    target = next_superseded(folder)
    make_folder(target)
    for path in sorted(folder.iterdir()):
        if path.name not in (*LOCKS, SUPERSEDED, "code"):
            path.rename(target / path.name)


def read_config(folder: str | Path, classes: Mapping[str, type[Config]] | None = None) -> Run:
    """Read the run of a folder.

    Args:
      folder: the folder that `write_config` wrote to.
      classes: user classes that the file may name, by qualified name, such as {"tasks.Shifted": Shifted} for a class
        in tasks.py (see `core.struct.qualified_name`). Classes of this package, and subclasses of them that have been
        imported, need not be given.

    Raises:
      UserError: the file is missing, damaged or of another format, or names an unknown class or field.
    """
    data = _read_document(Path(folder))["run"]
    import_named(kinds_in(data))
    run = from_canonical(data, classes_within(Run) | dict(classes or {}), "run")
    if not isinstance(run, Run):
        raise UserError(f"{Path(folder) / NAME} holds a {type(run).__name__}; expected a Run")
    return run


def read_canonical(folder: Path) -> Json:
    """Return the run of a folder in canonical form; no class is needed."""
    return _read_document(folder)["run"]


def source_of(folder: str | Path, root: str | Path | None = None) -> Path | None:
    """Return the path of the copy of the file that declares a folder's run; None if there is none.

    Args:
      folder: the folder of config.json.
      root: the folder of code/, if it is another.
    """
    copy = _read_document(Path(folder)).get("source")
    parts = Path(copy).parts if isinstance(copy, str) else ()
    is_inside = len(parts) > 2 and parts[0] == "code" and ".." not in parts
    return Path(root or folder, *parts) if is_inside else None


def names_user_classes(folder: str | Path) -> bool:
    """True if the run of a folder names a class that is not of this package; nothing is executed."""
    return any("." in kind for kind in kinds_in(_read_document(Path(folder))["run"]))


def kinds_in(data: Json) -> set[str]:
    """Return the names of the classes in the canonical form of a config."""
    kinds, queue = set(), [data]
    for node in queue:
        if isinstance(node, dict):
            kinds.add(str(node.get("kind")))
        queue += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return kinds


def classes_within(root: type[Config]) -> dict[str, type[Config]]:
    """Return every config class that a field of `root` may hold, at any depth, by its qualified name.

    A file may name these classes and no others. If two user classes have the same name, as when a notebook cell is run
    twice, the later one is returned.
    """
    by_name: dict[str, type[Config]] = {}
    queue: list[object] = [root]
    seen: set[type] = set()
    for kind in queue:
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            queue += typing.get_args(kind)
        elif kind not in seen:
            seen.add(kind)
            other = by_name.setdefault(qualified_name(kind), kind)
            if other is not kind and kind.__module__.startswith("flaxformer."):
                raise TypeError(f"two config classes are named {kind.__name__}; expected one")
            by_name[qualified_name(kind)] = kind
            hints = type_hints(kind)
            queue += [*(hints[field.name] for field in dataclasses.fields(kind)), *kind.__subclasses__()]
    return by_name


def from_canonical(data: object, classes: Mapping[str, type[Config]], where: str = "config") -> object:
    """Return the value whose `canonical` form is `data`, which may come from a file.

    Args:
      data: JSON data, in which configs are dictionaries with their class under "kind" and with all their fields,
        except those with `omit_default`.
      classes: the classes that it may name.
      where: path of the value in error messages.

    Raises:
      UserError: an unknown class or field, a missing field, or a value that a field cannot have.
    """
    if isinstance(data, list):
        return tuple(from_canonical(item, classes, f"{where}.{number}") for number, item in enumerate(data))
    if not isinstance(data, dict):
        return cast(ConfigFile, data)
    kind = data.get("kind")
    if str(kind).startswith("__main__.") and kind not in classes:
        raise UserError(
            f"{where} is of kind '{kind}', which a notebook defined: define this class here, as it was there"
        )
    if not isinstance(kind, str) or kind not in classes:
        raise UserError(f"{where} is of kind {kind!r}{did_you_mean(str(kind), list(classes))}")
    never_stored = classes[kind].never_stored
    fields = {field.name: field for field in dataclasses.fields(classes[kind]) if field.name not in never_stored}
    names = list(fields)
    for name in [*(name for name in data if name != "kind"), *names]:
        if name not in names:
            raise UserError(f"{where}: {kind} has no field '{name}'{did_you_mean(name, names)}")
        if name not in data:
            if fields[name].metadata.get("omit_default"):
                continue
            raise UserError(
                f"{where}, a {kind}, has no '{name}'; expected every field (was it written by another version?)"
            )
        is_tuple = any(
            typing.get_origin(alternative) is tuple for alternative in alternatives(type_hints(classes[kind])[name])
        )
        if isinstance(data[name], list) and not is_tuple:
            raise UserError(f"{where}.{name} is {data[name]!r}; expected one value")
    stored = [name for name in names if name in data]
    return classes[kind](**{name: from_canonical(data[name], classes, f"{where}.{name}") for name in stored})


def _read_document(folder: Path) -> ConfigFile:
    path = folder / NAME
    check_file(path)
    try:
        data = read_document(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no run (no {NAME}); expected the output folder of a training run") from None
    except DamagedError as error:
        raise UserError(f"{path} is damaged ({error}); expected it as it was written: restore it from a copy") from None
    if data.get("format") != FORMAT or "run" not in data:
        raise UserError(f"{path} is in format {data.get('format')!r}; expected {FORMAT}")
    return cast(ConfigFile, data)
