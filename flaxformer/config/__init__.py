"""Configs of a model: its components, its blocks, and `ModelConfig`."""

from flaxformer.component import Aux, Component, Context
from flaxformer.config.block import Block
from flaxformer.config.model import ModelConfig
from flaxformer.config.published import PUBLISHED
from flaxformer.config.recurrent import recurrent_model
from flaxformer.parts.attention import Attention
from flaxformer.parts.feed_forward import Dense, FeedForward, Gated
from flaxformer.parts.heads import Classifier, Head, LanguageModel, NoHead, Regressor
from flaxformer.parts.initializers import Initializer, LeCun, Normal, Xavier
from flaxformer.parts.inputs import Embeddings, Inputs, Patches, Tokens, Vectors
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.norms import (
    NO_NORM,
    POST,
    PRE,
    RES_POST_NORM,
    SANDWICH,
    BatchNorm,
    LayerNorm,
    Norm,
    NormPlacement,
    RMSNorm,
)
from flaxformer.parts.parametrizations import NTK, ByRole, MuP, Parametrization, Role
from flaxformer.parts.positions import (
    Alibi,
    ConcatenatedIndex,
    LearnedPositions,
    NoPositions,
    Positions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from flaxformer.parts.recurrent import GRU, LSTM, Elman, Recurrent
from flaxformer.parts.residuals import DeepNorm, DepthScaled, LayerScale, Residual, ReZero

__all__ = [
    "GRU",
    "LSTM",
    "NO_NORM",
    "NTK",
    "POST",
    "PRE",
    "PUBLISHED",
    "RES_POST_NORM",
    "SANDWICH",
    "Alibi",
    "Attention",
    "Aux",
    "BatchNorm",
    "Block",
    "ByRole",
    "Classifier",
    "Component",
    "ConcatenatedIndex",
    "Context",
    "DeepNorm",
    "Dense",
    "DepthScaled",
    "Elman",
    "Embeddings",
    "FeedForward",
    "Gated",
    "Head",
    "Initializer",
    "Inputs",
    "LanguageModel",
    "LayerNorm",
    "LayerScale",
    "LeCun",
    "LearnedPositions",
    "ModelConfig",
    "MuP",
    "NoHead",
    "NoPositions",
    "Norm",
    "NormPlacement",
    "Normal",
    "Parametrization",
    "Patches",
    "Positions",
    "RMSNorm",
    "ReZero",
    "Recurrent",
    "Regressor",
    "RelativeBuckets",
    "Residual",
    "Role",
    "Rotary",
    "Sinusoidal",
    "TokenMixer",
    "Tokens",
    "Vectors",
    "Xavier",
    "recurrent_model",
]
