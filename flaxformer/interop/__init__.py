"""Interoperability with other libraries: weights of PyTorch and Hugging Face, and modules for Flax."""

from flaxformer.interop import torch_modules
from flaxformer.interop.huggingface import load, load_tokenizer, save

__all__ = ["load", "load_tokenizer", "save", "torch_modules"]
