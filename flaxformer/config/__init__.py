"""Architecture as data: `ModelConfig`, its blocks, and configs of published models."""

from flaxformer.config.block import Block
from flaxformer.config.initial import DEPTH_SCALED_OUTPUTS, ZERO_OUTPUTS, Initial
from flaxformer.config.model import ModelConfig
from flaxformer.config.published import PUBLISHED
from flaxformer.config.recurrent import recurrent_model

__all__ = [
    "DEPTH_SCALED_OUTPUTS",
    "PUBLISHED",
    "ZERO_OUTPUTS",
    "Block",
    "Initial",
    "ModelConfig",
    "recurrent_model",
]
