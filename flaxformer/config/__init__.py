"""Architecture as data: `ModelConfig`, its blocks, and configs of published models."""

from flaxformer.config.block import Block
from flaxformer.config.model import ModelConfig
from flaxformer.config.published import PUBLISHED
from flaxformer.config.recurrent import recurrent_model

__all__ = ["PUBLISHED", "Block", "ModelConfig", "recurrent_model"]
