"""Text that is decoded token by token is that of all tokens."""

import json

import pytest

from flaxformer.data.tokenizer import BYTES, decode_stream, make_tokenizer, train_bpe

TEXTS = ["Ünïcödé naïve", "東京 🙂🙂 emoji", "plain words, isn't it?", "a 東 b 京 c"]


def byte_fallback():
    """A tokenizer as Llama's, whose characters without a token are bytes: here all but "a" and the space."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["▁", "a"]], "byte_fallback": True, "unk_token": None}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    data = empty | {"normalizer": replace, "pre_tokenizer": None, "model": model}
    return make_tokenizer("fallback", json.dumps(data | {"decoder": {"type": "Sequence", "decoders": steps}}).encode())


TOKENIZERS = {
    "bytes": lambda: BYTES,
    "byte-level BPE": lambda: make_tokenizer("bpe", train_bpe(TEXTS, 270)),
    "byte fallback": byte_fallback,
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_streamed_text_is_the_text_of_all_tokens(kind, size):
    pytest.importorskip("tokenizers")
    tokenizer = TOKENIZERS[kind]()
    for text in TEXTS:
        ids = tokenizer.encode(text.encode()).tolist()
        pieces = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
        assert "".join(decode_stream(tokenizer.decode, pieces)) == tokenizer.decode(ids) == text


def test_text_that_was_shown_is_not_shown_again():
    """Bytes that are not UTF-8 are read as a whole by this decoder; each character is shown once all the same."""
    pytest.importorskip("tokenizers")
    tokenizer = byte_fallback()
    ids = [ord("b"), 0xC3, 0x9C, ord("c"), 0xC3, ord("d"), 257]
    shown = "".join(decode_stream(tokenizer.decode, [[token] for token in ids]))
    assert shown.count("b") == shown.count("Ü") == shown.count("c") == 1
    assert shown.endswith("a")
