"""mT5 (Xue et al. 2021), as in MT5ForConditionalGeneration of transformers 5: T5 1.1, also if its head is tied."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import Attributes
from flaxformer.interop.huggingface.families import t5


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return attributes in which the tensors decide whether the head is tied; transformers 5 always writes true."""
    is_tied, head = attributes.get("tie_word_embeddings") is not False, state.get("lm_head.weight")
    if state:
        is_tied = head is None or np.array_equal(head, state.get("shared.weight", head))
    t5.check_derived(attributes, t5.GATED_GELU)
    return {**attributes, "tie_word_embeddings": is_tied}


FAMILY = dataclasses.replace(
    t5.FAMILY,
    name="mt5",
    architectures=("MT5ForConditionalGeneration", "MT5Model"),
    base=replace_at(t5.FAMILY.base, {"head.scale_exponent": None}),
    attributes=t5.attributes(t5.GATED_GELU),
    normalize=_normalize,
)
