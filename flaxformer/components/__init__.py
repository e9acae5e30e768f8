"""Components of a model, one file per family; each file begins with the base class of its family."""

from flaxformer.components.attention import Attention
from flaxformer.components.branch import TokenMixer
from flaxformer.components.cache import KeysValues
from flaxformer.components.component import Aux, Component, Context
from flaxformer.components.feed_forward import Dense, FeedForward, Gated
from flaxformer.components.heads import Classifier, Head, LanguageModel, NoHead, Regressor
from flaxformer.components.initializers import Initializer, LeCun, Normal, Orthogonal, Xavier
from flaxformer.components.inputs import Embeddings, Inputs, Patches, Tokens, Vectors
from flaxformer.components.norms import (
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
    ZeroCentredRMSNorm,
)
from flaxformer.components.parametrizations import NTK, ByRole, MuP, Parametrization, Role
from flaxformer.components.positions import (
    Alibi,
    ConcatenatedIndex,
    LearnedPositions,
    NoPositions,
    Positions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from flaxformer.components.recurrent import GRU, LSTM, Elman, Recurrent
from flaxformer.components.residuals import DeepNorm, DepthScaled, LayerScale, Residual, ReZero
from flaxformer.components.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, RotaryScaling, YaRN

__all__ = [
    "GRU",
    "LSTM",
    "NO_NORM",
    "NTK",
    "POST",
    "PRE",
    "RES_POST_NORM",
    "SANDWICH",
    "Alibi",
    "Attention",
    "Aux",
    "BatchNorm",
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
    "KeysValues",
    "LanguageModel",
    "LayerNorm",
    "LayerScale",
    "LeCun",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "MuP",
    "NTKScaling",
    "NoHead",
    "NoPositions",
    "Norm",
    "NormPlacement",
    "Normal",
    "Orthogonal",
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
    "RotaryScaling",
    "Sinusoidal",
    "TokenMixer",
    "Tokens",
    "Vectors",
    "Xavier",
    "YaRN",
    "ZeroCentredRMSNorm",
]
