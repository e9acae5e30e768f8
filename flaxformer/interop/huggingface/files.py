"""Files of a checkpoint: config.json, and tensors in one safetensors file or in several with an index."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flaxformer.interop.huggingface.attributes import CONFIG, GENERATION, Attributes
from flaxformer.system.errors import UserError
from flaxformer.system.extras import library
from flaxformer.system.files import make_folder, replacing, write_atomically
from flaxformer.system.json_reader import parse_json
from flaxformer.system.python_files import near_names, siblings

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB, DOWNLOADED = "hf://", ["*.json", "*.safetensors"]
"""Beginning of a name of the hub, and the files that are downloaded."""


def is_checkpoint(folder: Path) -> bool:
    """True if a folder holds a checkpoint of Hugging Face: weights in safetensors, or a config.json of a model type."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return True
    return (folder / CONFIG).is_file() and b'"model_type"' in (folder / CONFIG).read_bytes()


def find_checkpoint(path: str, name: str = "path") -> Path:
    """Return the folder of a path; that of a name of the hub, "OWNER/NAME" or "hf://OWNER/NAME@REVISION", downloaded.

    Args:
      path: a folder, or a name of the hub where there is no such folder (library huggingface_hub).
      name: of the path in messages.

    Raises:
      UserError: there is no such folder, and no such model of the hub.
    """
    folder = Path(path).expanduser()
    repository, _, revision = path.removeprefix(HUB).partition("@")
    if not path.startswith(HUB):
        if folder.is_dir():
            return folder
        if folder.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", repository) or folder.parent.is_dir():
            near = near_names(folder, (place for place in siblings(folder) if place.is_dir()))
            hub = "" if "/" in path else f"; a model of the Hugging Face hub is '{HUB}{path}'"
            missing = "is not a folder" if folder.exists() else "does not exist"
            expected = "expected the folder of a training job, of a study or of a checkpoint of Hugging Face"
            raise UserError(f"{name} is '{path}', which {missing}; {near or expected + hub}")
    library_of_hub = library("huggingface_hub", "weights", f"{name} '{path}'")
    try:
        return Path(library_of_hub.snapshot_download(repository, revision=revision or None, allow_patterns=DOWNLOADED))
    except Exception as error:  # of the library, of its HTTP client, or of the file system
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{name} is '{path}', which is not a folder, and cannot be downloaded: {reason}") from None


def weight_files(folder: Path) -> list[Path]:
    """Return the files that determine a checkpoint's model: its config, and its tensors."""
    return [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]


def read_attributes_file(folder: Path) -> Attributes:
    """Read config.json."""
    return _read_json(folder / CONFIG)


def read_generation(folder: Path) -> Attributes:
    """Read generation_config.json, the settings of transformers' `generate`; empty if there is no such file."""
    return _read_json(folder / GENERATION) if (folder / GENERATION).exists() else {}


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read all tensors, by name; the single file has priority over the index.

    Raises:
      UserError: no weights in safetensors, a file of the index that is missing, or one that cannot be read.
    """
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise UserError(f"{folder} has neither {WEIGHTS} nor {INDEX}; it has: {', '.join(sorted(os.listdir(folder)))}")
    places = _read_json(folder / INDEX)["weight_map"]
    files = {name: read_safetensors(folder / name) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in files[name]:
            raise UserError(f"{INDEX} has '{tensor}' in {name}; expected it there")
    return {tensor: files[name][tensor] for tensor, name in places.items()}


def write(
    folder: Path,
    attributes: Attributes,
    tensors: Mapping[str, np.ndarray],
    generation: Attributes | None,
    shard_bytes: int,
) -> None:
    """Write config.json, the tensors and, if there are settings of generation, their file, each atomically.

    Other files of former weights, which `read_tensors` might prefer, are removed after the new ones are written.
    """
    save_file = library("safetensors.numpy", "weights", "a file of Hugging Face weights").save_file
    make_folder(folder)
    text = json.dumps(attributes, indent=2) + "\n"
    former = {INDEX, WEIGHTS, *(path.name for path in folder.glob("model-*-of-*.safetensors"))}
    shards = _shards(tensors, shard_bytes)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    names = [WEIGHTS] if len(shards) == 1 else names
    for name, shard in zip(names, shards, strict=True):
        # transformers refuses a file that does not name its format.
        with replacing(folder / name) as path:
            save_file({tensor: tensors[tensor] for tensor in shard}, path, metadata={"format": "pt"})
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": size}, "weight_map": places}
        write_atomically(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())
        names.append(INDEX)
    if generation is not None:
        write_atomically(folder / GENERATION, (json.dumps(generation, indent=2) + "\n").encode())
    write_atomically(folder / CONFIG, text.encode())
    for name in former - {*names}:
        (folder / name).unlink(missing_ok=True)


def _shards(tensors: Mapping[str, np.ndarray], shard_bytes: int) -> list[list[str]]:
    """Return the names of the tensors of each file, in order; a larger tensor has a file of its own."""
    shards: list[list[str]] = [[]]
    free = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > free and shards[-1]:
            shards.append([])
            free = shard_bytes
        shards[-1].append(name)
        free -= tensor.nbytes
    return shards


def _read_json(path: Path) -> Attributes:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read the tensors of one file, by name."""
    load_file = library("safetensors.numpy", "weights", f"'{path}'").load_file
    try:
        return load_file(path)
    except Exception as error:  # the library's error class is private
        raise UserError(f"{path} cannot be read: {error}") from None
