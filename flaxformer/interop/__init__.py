"""Interoperability with other libraries: weights of PyTorch and Hugging Face, and modules for Flax."""

from flaxformer.interop import torch_modules
from flaxformer.interop.huggingface import load, save

__all__ = ["load", "save", "torch_modules"]
