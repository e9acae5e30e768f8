"""Text into tokens: corpora, tokenizers, documents of many formats, and folders of prepared tokens."""

from flaxformer.data.prepare import prepare
from flaxformer.data.token_files import TokenFolder, open_tokens, verify
from flaxformer.data.tokenizer import Tokenizer, tokenizer

__all__ = ["TokenFolder", "Tokenizer", "open_tokens", "prepare", "tokenizer", "verify"]
