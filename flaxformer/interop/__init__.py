"""Weights and modules of other libraries."""

from flaxformer.interop import torch_modules
from flaxformer.interop.huggingface import load, save

__all__ = ["load", "save", "torch_modules"]
