"""Tables of tensors as text: one line per module of a checkpoint, its path in this package, and its kind.

    model.embed_tokens                  embedding/tokens                       table
    model.layers.*.input_layernorm      blocks/*/attention_connection/pre      norm
    model.layers.*.self_attn.q_proj     blocks/*/attention/query

`*` is the number of a layer. Weights that are stored as one tensor are joined by "+": attention/query+key+value.
Without a kind, a module is a linear map with the matrix [out, in]. A line whose weights a config lacks is left out.
"""

from collections.abc import Mapping

import numpy as np

from flaxformer.interop.tensors import INPUT_FIRST, MATRIX, TABLE, VECTOR, TensorLayout, TensorRow

Kind = tuple[tuple[str, str, TensorLayout], ...]
"""Tensors of a module: the end of the name of each, the end of its path, and its layout."""
KINDS: Mapping[str, Kind] = {
    "linear": ((".weight", "", MATRIX), (".bias", "_bias", VECTOR)),
    "input_first": ((".weight", "", INPUT_FIRST), (".bias", "_bias", VECTOR)),
    "head": ((".weight", "/matrix", MATRIX), (".bias", "/bias", VECTOR)),
    "norm": ((".weight", "/gain", VECTOR), (".bias", "/bias", VECTOR)),
    "table": ((".weight", "", TABLE),),
    "tensor": (("", "", VECTOR),),
    "matrix": (("", "", MATRIX),),
    "same": (("", "", TABLE),),
}
"""Kinds of modules; a family may add others."""


def shifted(count: int) -> TensorLayout:
    """Return the layout of a table whose first rows are not used: dropped, and written as 0."""
    return TensorLayout(
        shape=lambda spec: (spec.shape[0] + count, spec.shape[1]),
        load=lambda weight, spec: weight[count:],
        save=lambda weight, spec: np.pad(weight, ((count, 0), (0, 0))),
    )


def read_table(text: str, layers: Mapping[str, int], kinds: Mapping[str, Kind] = KINDS) -> tuple[TensorRow, ...]:
    """Return the rows of a table.

    layers: number of layers of each stack, by the beginning of its paths: "" for the decoder, "encoder".
    """
    rows = []
    for name, path, *kind in lines_of(text):
        folder, _, words = path.rpartition("/")
        stack = path.partition("/")[0]
        for number in range(layers[stack if stack in layers else ""]) if "*" in name else (0,):
            for end, path_end, layout in kinds[(kind or ["linear"])[0]]:
                paths = [
                    f"{folder}/{word}{path_end}".lstrip("/").replace("*", str(number)) for word in words.split("+")
                ]
                rows.append(TensorRow(name.replace("*", str(number)) + end, tuple(paths), layout))
    return tuple(rows)


def within(name: str, path: str, text: str) -> str:
    """Return the table of a module that is part of another one, with prefixes for its names and paths."""
    lines = (" ".join([name + there, path + here, *kind]) for there, here, *kind in lines_of(text))
    return "\n".join(lines) + "\n"


def lines_of(text: str) -> list[list[str]]:
    """Return the words of each line that is not empty."""
    return [line.split() for line in text.splitlines() if line.strip()]
