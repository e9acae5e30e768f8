"""Normalization of tensor names: one name per tensor, without tensors that no model of this package has."""

import re
from collections.abc import Mapping

import numpy as np

from flaxformer.interop.huggingface.family import Family, StateDict
from flaxformer.system.errors import UserError


def normalize_names(
    family: Family, state: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> StateDict:
    """Return the tensors by the names of `expected`; unknown tensors keep their names, for the caller to reject.

    Raises:
      UserError: two tensors that the config ties differ.
    """
    tensors = {_rename(family, name): array for name, array in state.items()}
    if family.prefix and not any(name.startswith(family.prefix) for name in tensors):
        outer = family.outer
        tensors = {name if name.startswith(outer) else family.prefix + name: array for name, array in tensors.items()}
    dropped = {name for name in tensors if any(re.fullmatch(pattern, name) for pattern in family.dropped)}
    for alias, name in family.aliases.items():
        if alias in tensors and alias not in expected:
            other = tensors.pop(alias)
            if not np.array_equal(tensors.setdefault(name, other), other) and alias not in dropped:
                raise UserError(
                    f"tensors '{alias}' {other.shape} and '{name}' {tensors[name].shape} differ; expected equal "
                    "tensors, since config.json ties them (tie_word_embeddings)"
                )
    tensors = {name: array for name, array in tensors.items() if name in expected or name not in dropped}
    zeros = {name: np.zeros(expected[name], np.float32) for name in family.zeros if name in expected}
    return zeros | tensors


def _rename(family: Family, name: str) -> str:
    for pattern, replacement in family.renamed:
        name = re.sub(pattern, replacement, name)
    return name
