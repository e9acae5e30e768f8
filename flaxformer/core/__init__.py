"""Configs as pytrees, declarations of weights, and points of a forward pass."""

from flaxformer.core.params import Parameters, Spec, param, subtree
from flaxformer.core.struct import Config, leaf, part, replace_at, static

__all__ = ["Config", "Parameters", "Spec", "leaf", "param", "part", "replace_at", "static", "subtree"]
