"""Recurrent networks as a `ModelConfig`."""

from typing import Any

from flaxformer.components.norms import NO_NORM
from flaxformer.components.positions import NoPositions
from flaxformer.components.recurrent import Recurrent
from flaxformer.config.model import ModelConfig


def recurrent_model(cell: Recurrent, **changes: object) -> ModelConfig:
    """Return a stack of recurrent layers; the input of each is the state h of the layer below.

    Dropout is applied to the embeddings and the output of each layer, not between tokens (Zaremba et al. 2014).

    >>> recurrent_model(LSTM(), layers=2, d_model=256, dropout=0.2)

    Args:
      cell: Elman(), GRU() or LSTM().
      changes: other fields of `ModelConfig`; by default, there is one layer.
    """
    fields: dict[str, Any] = {
        "attention": cell,
        "layers": 1,
        "feed_forward": None,
        "positions": NoPositions(),
        "norm": NO_NORM,
        "attention_residual": False,
    }
    fields |= changes
    return ModelConfig(**fields)
