"""Pairs of lines, of which the second translates the first, from two text files or from prepared tokens."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer.data.corpus import tenth
from flaxformer.data.tokenizer import Tokenizer
from flaxformer.errors import UserError


class Pair(NamedTuple):
    """Tokens of a line and of its translation, and the tenth of the data that they fall in, if it decides the split."""

    source: np.ndarray
    target: np.ndarray
    tenth: int = 0


def split_pairs(tokens: np.ndarray, documents: np.ndarray) -> list[Pair]:
    """Return the pairs of consecutive documents: 0 and 1, 2 and 3, …"""
    lines = np.split(tokens, documents[1:-1])
    return [Pair(source, target) for source, target in zip(lines[::2], lines[1::2], strict=True)]


@functools.cache
def read_pairs(source_path: str, target_path: str, encoding: Tokenizer) -> list[Pair]:
    """Read every pair of lines, stripped and encoded.

    Raises:
      UserError: a file is missing, or the files have different numbers of lines.
    """
    sources, targets = (
        list(_read_lines(name, path)) for name, path in (("source", source_path), ("target", target_path))
    )
    if len(sources) != len(targets):
        counts = f"{len(sources)} lines and target_path '{target_path}' has {len(targets)}"
        raise UserError(f"source_path '{source_path}' has {counts}; expected equal numbers")
    return [
        Pair(encoding.encode(source), encoding.encode(target), tenth(source + b"\n" + target))
        for source, target in zip(sources, targets, strict=True)
    ]


def _read_lines(name: str, path: str) -> Iterator[bytes]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{name}_path is '{path}', which is not a file; expected text with one sentence per line")
    return (line.strip() for line in file.read_bytes().splitlines())
