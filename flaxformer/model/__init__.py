"""Functions of a model's parameters and config: initialisation, forward pass, decoding."""

from flaxformer.model.beam import Beams, beam_search
from flaxformer.model.call import ForwardInputs
from flaxformer.model.decoding import Generation, generate, stream
from flaxformer.model.interface import apply, apply_with_intermediates, extend
from flaxformer.model.sampling import Sampling
from flaxformer.model.transformer import Intermediates, encode, new_cache, run
from flaxformer.model.weights import Transformer, init, specs

__all__ = [
    "Beams",
    "ForwardInputs",
    "Generation",
    "Intermediates",
    "Sampling",
    "Transformer",
    "apply",
    "apply_with_intermediates",
    "beam_search",
    "encode",
    "extend",
    "generate",
    "init",
    "new_cache",
    "run",
    "specs",
    "stream",
]
