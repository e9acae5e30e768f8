"""Pairs of lines, of which the second translates the first, from two text files or from prepared tokens."""

from typing import NamedTuple

import numpy as np

from flaxformer.data.corpus import tenth
from flaxformer.data.lines import read_line_pairs
from flaxformer.data.tokenizer import Tokenizer
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path


class Pair(NamedTuple):
    """Tokens of a line and of its translation, and the tenth of the data that they fall in, if it decides the split."""

    source: np.ndarray
    target: np.ndarray
    tenth: int = 0


def split_pairs(tokens: np.ndarray, documents: np.ndarray) -> list[Pair]:
    """Return the pairs of consecutive documents: 0 and 1, 2 and 3, …"""
    lines = np.split(tokens, documents[1:-1])
    return [Pair(source, target) for source, target in zip(lines[::2], lines[1::2], strict=True)]


@remembered
def read_pairs(source_path: str, target_path: str, encoding: Tokenizer) -> list[Pair]:
    """Read every pair of lines, without white space at their ends, as tokens.

    Raises:
      UserError: a file is missing, the files have different numbers of lines, or a line cannot be encoded.
    """
    first, second = local_path(source_path, "source_path"), local_path(target_path, "target_path")
    lines = read_line_pairs(first, second, encoding.is_text, names=("source_path", "target_path"))
    return [
        Pair(encoding.encode(source), encoding.encode(target), tenth(source + b"\n" + target))
        for source, target in lines
    ]
