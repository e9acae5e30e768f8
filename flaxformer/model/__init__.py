"""Functions of a model's parameters and config: initialisation, forward pass, decoding."""

from flaxformer.model.beam import Beams, beam_search
from flaxformer.model.call import ArrayIndex, ForwardInputs
from flaxformer.model.decoding import Generation, generate, stream
from flaxformer.model.interface import activations_at, apply, apply_with_intermediates, extend, points
from flaxformer.model.output import Intermediates
from flaxformer.model.sampling import Sampling
from flaxformer.model.transformer import encode, new_cache, run
from flaxformer.model.weights import Transformer, init, specs

__all__ = [
    "ArrayIndex",
    "Beams",
    "ForwardInputs",
    "Generation",
    "Intermediates",
    "Sampling",
    "Transformer",
    "activations_at",
    "apply",
    "apply_with_intermediates",
    "beam_search",
    "encode",
    "extend",
    "generate",
    "init",
    "new_cache",
    "points",
    "run",
    "specs",
    "stream",
]
