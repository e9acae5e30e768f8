"""Text to tokens: corpora, tokenizers, documents in several formats, and folders of prepared tokens."""

from flaxformer.data.prepare import prepare
from flaxformer.data.token_files import TokenFolder, open_tokens, verify
from flaxformer.data.tokenizer import Tokenizer, read_tokenizer

__all__ = ["TokenFolder", "Tokenizer", "open_tokens", "prepare", "read_tokenizer", "verify"]
