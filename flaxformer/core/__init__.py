"""Configs as pytrees, declarations of weights, and points of a forward pass."""

from flaxformer.core.params import Parameters, Spec, param, subtree
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import Config, leaf, part, static

__all__ = ["Config", "Parameters", "Spec", "leaf", "param", "part", "replace_at", "static", "subtree"]
