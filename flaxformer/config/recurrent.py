"""The recurrent network as a ModelConfig."""

from typing import Any

from flaxformer.config.model import ModelConfig
from flaxformer.parts.norms import NO_NORM
from flaxformer.parts.positions import NoPositions
from flaxformer.parts.recurrent import Recurrent


def recurrent_model(cell: Recurrent, **changes: Any) -> ModelConfig:
    """A stack of recurrent layers: each reads the states h of the layer below, with nothing between them.

    Dropout acts on the embeddings and on the output of each layer, never from token to token (Zaremba et al. 2014).

    >>> recurrent_model(LSTM(), layers=2, d_model=256, dropout=0.2)

    Args:
      cell: Elman(), GRU() or LSTM().
      changes: other fields of the ModelConfig; the model has one layer by default.
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
