"""Parameters + config -> functions: the same ones for every kind of model."""

from flaxformer.model.call import Given
from flaxformer.model.interface import apply, apply_with_intermediates, extend, init, new_cache, run, specs
from flaxformer.model.transformer import Intermediates, Transformer, encode

__all__ = [
    "Given",
    "Intermediates",
    "Transformer",
    "apply",
    "apply_with_intermediates",
    "encode",
    "extend",
    "init",
    "new_cache",
    "run",
    "specs",
]
