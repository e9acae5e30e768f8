"""A checkpoint's folder: config.json, and tensors in one safetensors file or in several with an index."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flaxformer.struct import UserError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    return _read_json(folder / CONFIG)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors, by name; where both are there, the single file counts and not the index.

    Raises:
      UserError: no weights in safetensors, a file of the index that is missing, or one that cannot be read.
    """
    if (folder / WEIGHTS).exists():
        return _read(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise UserError(f"{folder} has neither {WEIGHTS} nor {INDEX}; it has: {', '.join(sorted(os.listdir(folder)))}")
    places = _read_json(folder / INDEX)["weight_map"]
    files = {name: _read(folder / name) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in files[name]:
            raise UserError(f"{INDEX} has '{tensor}' in {name}; expected it there")
    return {tensor: files[name][tensor] for tensor, name in places.items()}


def write(folder: Path, attributes: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Both files, each replaced as a whole: a reader sees the old one or the new one."""
    save_file = _safetensors().save_file
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(attributes, indent=2) + "\n"
    # transformers refuses a file that does not name its format.
    _replace(folder / WEIGHTS, lambda path: save_file(dict(tensors), path, metadata={"format": "pt"}))
    _replace(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    load_file = _safetensors().load_file
    try:
        return load_file(path)
    except Exception as error:  # the library's own error is of a private module, and a missing file's of another
        raise UserError(f"{path} cannot be read: {error}") from None


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError(
            "safetensors is not installed; expected it, for Hugging Face weights: pip install 'flaxformer[weights]'"
        ) from None
    return safetensors.numpy
