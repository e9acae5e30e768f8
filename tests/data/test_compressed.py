"""Compressed text is read as the text that it holds; damage and a missing library are named."""

import bz2
import gzip
import importlib
import json
import lzma
import sys

import pytest

from flaxformer.data import compressed, prepare
from flaxformer.data.corpus import read_text_files
from flaxformer.system.errors import UserError

TEXT = "".join(f"line {i}: Ä rose is a rose\n" for i in range(4000)).encode()


def write(path, data):
    """Write a file, compressed as its suffix says, in two parts one after the other."""
    half = len(data) // 2
    if path.suffix == ".zst":
        try:
            compress = importlib.import_module("compression.zstd").compress
        except ImportError:
            compress = pytest.importorskip("backports.zstd").compress
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(compress(data[:half]) + compress(data[half:]))


SUFFIXES = pytest.mark.parametrize("suffix", compressed.SUFFIXES)


@SUFFIXES
def test_a_compressed_text_is_read_as_the_text(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(compressed, "PIECE", 1000)
    write(tmp_path / "text.txt", TEXT)
    write(tmp_path / f"text.txt{suffix}", TEXT)
    plain, packed = (read_text_files(str(tmp_path / f"text.txt{end}"), "", 1) for end in ("", suffix))
    assert packed.train.tobytes() == plain.train.tobytes()
    assert packed.validation.tobytes() == plain.validation.tobytes()
    assert plain.train.size + plain.validation.size == len(TEXT)
    prepare(tmp_path / "text.txt", tmp_path / "plain")
    prepare(tmp_path / f"text.txt{suffix}", tmp_path / "packed")
    for name in ("train.bin", "validation.bin"):
        assert (tmp_path / "packed" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@SUFFIXES
def test_files_of_a_folder_match_the_pattern_compressed_or_not(tmp_path, suffix):
    for i in range(10):
        write(tmp_path / "texts" / (f"{i}.txt" + (suffix if i % 2 else "")), b"%d " % i * 50)
    write(tmp_path / "texts" / "other.md", b"no")
    corpus = read_text_files(str(tmp_path / "texts"), "**/*.txt", 3)
    text = corpus.train.tobytes() + corpus.validation.tobytes()
    assert all(b"%d " % i * 50 in text for i in range(10))
    assert b"no" not in text
    prepare(tmp_path / "texts", tmp_path / "out", validation_tenths=3)
    assert len(json.loads((tmp_path / "out" / "data.json").read_text())["sources"]) == 10


@SUFFIXES
def test_rows_and_pairs_may_be_compressed(tmp_path, suffix):
    lines = [f"line {i}" for i in range(60)]
    rows = "\n".join(json.dumps({"text": line}) for line in lines).encode()
    for end in ("", suffix):
        write(tmp_path / f"rows.jsonl{end}", rows)
        write(tmp_path / f"lines.de{end}", "\n".join(lines).encode())
        prepare(tmp_path / f"rows.jsonl{end}", tmp_path / f"rows{end}")
        prepare(tmp_path / f"lines.de{end}", tmp_path / f"pairs{end}", target=tmp_path / f"lines.de{end}")
    for name in ("rows", "pairs"):
        packed, plain = (tmp_path / f"{name}{end}" / "train.bin" for end in (suffix, ""))
        assert packed.read_bytes() == plain.read_bytes() != b""


@SUFFIXES
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"no compressed data"], ids=["cut", "other"])
def test_damaged_data_is_named(tmp_path, suffix, damage):
    write(tmp_path / f"text{suffix}", TEXT)
    file = tmp_path / f"text{suffix}"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(
        UserError, match=rf"text\{suffix} cannot be decompressed .*; expected a complete \{suffix} file"
    ):
        read_text_files(str(file), "", 1)


def test_the_missing_library_for_zst_is_named(tmp_path, monkeypatch):
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "text.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(UserError, match=r"text.zst' needs backports .*pip install 'flaxformer\[zstd\]'"):
        read_text_files(str(tmp_path / "text.zst"), "", 1)
