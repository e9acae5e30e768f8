"""The architecture as data: every choice is one line of a config."""

from flaxformer.config.heads import Classifier, LanguageModel, NoHead, Regressor
from flaxformer.config.initializers import LeCun, Normal, Xavier
from flaxformer.config.inputs import Patches, Stream, Tokens, Vectors
from flaxformer.config.model import ModelConfig
from flaxformer.config.norms import (
    BRANCH_POST,
    NO_NORM,
    POST,
    PRE,
    SANDWICH,
    BatchNorm,
    LayerNorm,
    NormSlots,
    RMSNorm,
)
from flaxformer.config.positions import (
    Alibi,
    ConcatenatedIndex,
    LearnedPositions,
    NoPositions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from flaxformer.config.recurrent import RecurrentConfig
from flaxformer.config.residuals import DeepNorm, LayerScale, Residual, ReZero

__all__ = [
    "BRANCH_POST",
    "NO_NORM",
    "POST",
    "PRE",
    "SANDWICH",
    "Alibi",
    "BatchNorm",
    "Classifier",
    "ConcatenatedIndex",
    "DeepNorm",
    "LanguageModel",
    "LayerNorm",
    "LayerScale",
    "LeCun",
    "LearnedPositions",
    "ModelConfig",
    "NoHead",
    "NoPositions",
    "NormSlots",
    "Normal",
    "Patches",
    "RMSNorm",
    "ReZero",
    "RecurrentConfig",
    "Regressor",
    "RelativeBuckets",
    "Residual",
    "Rotary",
    "Sinusoidal",
    "Stream",
    "Tokens",
    "Vectors",
    "Xavier",
]
