"""The names of a file's tensors, settled: one name each, and none that no model here has."""

import re
from collections.abc import Mapping

import numpy as np

from flaxformer.interop.huggingface.family import Family, StateDict
from flaxformer.struct import UserError


def normalize_names(
    family: Family, state: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> StateDict:
    """The tensors by the names of `expected`; what the family does not know keeps its own, for the caller to refuse.

    Raises:
      UserError: two tensors that the config ties and that differ.
    """
    found = {_renamed(family, name): array for name, array in state.items()}
    if family.prefix and not any(name.startswith(family.prefix) for name in found):
        outer = family.outer
        found = {name if name.startswith(outer) else family.prefix + name: array for name, array in found.items()}
    found = {name: array for name, array in found.items() if not any(re.fullmatch(p, name) for p in family.dropped)}
    for alias, name in family.aliases.items():
        if alias in found and alias not in expected:
            other = found.pop(alias)
            if not np.array_equal(found.setdefault(name, other), other):
                raise UserError(
                    f"tensors '{alias}' {other.shape} and '{name}' {found[name].shape} differ; expected the same "
                    "numbers, which config.json ties (tie_word_embeddings)"
                )
    zeros = {name: np.zeros(expected[name], np.float32) for name in family.zeros if name in expected}
    return zeros | found


def _renamed(family: Family, name: str) -> str:
    for pattern, replacement in family.renamed:
        name = re.sub(pattern, replacement, name)
    return name
