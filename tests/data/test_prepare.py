"""Preparation of texts: every kind of source and tokenizer, the split, damage, and error messages."""

import hashlib
import json
import sys
import types

import numpy as np
import polars
import pytest

from flaxformer.data import documents, open_tokens, prepare, read_tokenizer, rows, verify
from flaxformer.data.corpus import read_text_files, split_by_file_name
from flaxformer.data.documents import Texts
from flaxformer.data.tokenizer import make_character_file
from flaxformer.system.digests import write_document
from flaxformer.system.errors import UserError

POEM = "Ä rose is a rose;\n" * 31
LINES = [f"line {i}: " + "abc"[i % 3] * (i % 7) for i in range(60)]


def held_out(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 10 < 2


def side(lines, validation):
    return [line for line in lines if held_out(line) == validation]


def cut(tokens, starts):
    """Return the documents of one side as text."""
    borders = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    return [tokens[a:b].tobytes().decode() for a, b in borders]


@pytest.fixture
def poem(tmp_path):
    (tmp_path / "poem.txt").write_text(POEM)
    return tmp_path / "poem.txt"


def rows_of(kind, tmp_path, monkeypatch):
    """Return a source of one kind with the lines as its rows."""
    if kind == "jsonl":
        file = tmp_path / "lines.jsonl"
        file.write_text("\n".join(json.dumps({"n": i, "body": line}) for i, line in enumerate(LINES)) + "\n\n")
        return str(file)
    if kind in ("csv", "tsv"):
        divider = {"csv": ",", "tsv": "\t"}[kind]
        (tmp_path / f"lines.{kind}").write_text(
            "\n".join(["n,body".replace(",", divider), *(f'{i}{divider}"{line}"' for i, line in enumerate(LINES))])
        )
        return str(tmp_path / f"lines.{kind}")
    if kind == "parquet":
        polars.DataFrame({"n": range(60), "body": LINES}).write_parquet(tmp_path / "lines.parquet", row_group_size=11)
        monkeypatch.setattr(rows, "ROWS", 7)
        return str(tmp_path / "lines.parquet")
    asked = []

    def load_dataset(name, subset, split, streaming):
        asked.append((name, subset, split, streaming))
        return ({"body": line} for line in LINES)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset, asked=asked))
    return "hf:someone/lines"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet", "hub"])
def test_rows_are_split_by_a_hash_of_their_text(tmp_path, monkeypatch, kind):
    source = rows_of(kind, tmp_path, monkeypatch)
    about = prepare(source, tmp_path / "out", field="body", drop="n", validation_tenths=2)
    found = open_tokens(str(tmp_path / "out"))
    assert cut(found.train, found.train_documents) == side(LINES, False)
    assert cut(found.validation, found.validation_documents) == side(LINES, True)
    assert about["documents"] == {"train": len(side(LINES, False)), "validation": len(side(LINES, True))}
    assert about["sources"] == [source if kind == "hub" else source.rpartition("/")[2]]
    if kind == "hub":
        assert sys.modules["datasets"].asked == [("someone/lines", None, "train", True)]


def test_file_is_split_between_two_characters_and_folder_by_file_name(tmp_path, poem, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 50)
    prepare(poem, tmp_path / "bytes")
    corpus = read_text_files(str(poem), "", 1)
    found = open_tokens(str(tmp_path / "bytes"))
    np.testing.assert_array_equal(found.train, corpus.train)
    np.testing.assert_array_equal(found.validation, corpus.validation)
    pieces = [piece for document in Texts(str(poem)) for piece in document.pieces()]
    assert b"".join(pieces) == POEM.encode()
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 2 * 50
    (tmp_path / "é.txt").write_text("é" * 15)  # nine tenths of the bytes end inside a character
    assert [len(b"".join(d.pieces())) for d in Texts(str(tmp_path / "é.txt"))] == [28, 2]
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for i in range(20):
        (folder / "inner" / f"{i}.txt").write_text(f"{i} " * i + "\n")
    about = prepare(folder, tmp_path / "all", validation_tenths=3)
    found, corpus = open_tokens(str(tmp_path / "all")), split_by_file_name(folder, sorted(folder.rglob("*.txt")), 3)
    assert "\n".join(cut(found.train, found.train_documents)) == corpus.train.tobytes().decode()
    assert about["sources"][0] == "inner/0.txt"
    assert str(tmp_path) not in (tmp_path / "all" / "data.json").read_text()


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe", "file"])
def test_every_tokenizer_decodes_to_the_original_text(tmp_path, poem, monkeypatch, kind):
    monkeypatch.setattr(documents, "PIECE", 40)
    asked = {"vocabulary": 262} if kind == "bpe" else {}
    if kind == "file":
        (tmp_path / "own.json").write_bytes(make_character_file([POEM, "zyx"]))
    about = prepare(poem, tmp_path / "out", tokenizer=str(tmp_path / "own.json") if kind == "file" else kind, **asked)
    found = open_tokens(str(tmp_path / "out"))
    reader = read_tokenizer(found.tokenizer_path)
    assert reader.decode(found.train) + reader.decode(found.validation) == POEM
    assert (
        about["vocabulary"]
        == {"bytes": 256, "characters": len(set(POEM)), "bpe": 262, "file": 3 + len(set(POEM))}[kind]
    )
    assert about["dtype"] == ("uint16" if kind == "bpe" else "uint8")
    assert found.train.max() < about["vocabulary"]
    np.testing.assert_array_equal(reader.encode(POEM.encode())[:20], found.train[:20])
    if kind == "bpe":
        assert found.train.size < 0.7 * len(POEM.encode()[: len(POEM) * 9 // 10])
    if kind == "characters":
        assert found.train.tolist()[:4] == [sorted(set(POEM)).index(c) for c in POEM[:4]]


def test_both_lines_of_a_pair_are_on_one_side(tmp_path):
    other = ["", *(line.upper() for line in LINES[1:])]
    (tmp_path / "a.en").write_text("\n".join(LINES))
    (tmp_path / "a.de").write_text("\r\n".join(other))
    about = prepare(tmp_path / "a.en", tmp_path / "out", target=tmp_path / "a.de", validation_tenths=2)
    found, both = open_tokens(str(tmp_path / "out")), [*zip(LINES, other, strict=True)]
    for tokens, starts, validation in (
        (found.train, found.train_documents, False),
        (found.validation, found.validation_documents, True),
    ):
        expected = [
            line.strip() for pair in both if held_out("\n".join(map(str.strip, pair))) == validation for line in pair
        ]
        assert cut(tokens, starts) == expected
    assert (about["pairs"], about["sources"]) == (True, ["a.en", "a.de"])
    assert prepare(tmp_path / "a.en", tmp_path / "out", target=tmp_path / "a.de", validation_tenths=2) == about
    (tmp_path / "a.de").write_text("\n".join(other[:-3]))
    with pytest.raises(UserError, match=r"a.en has a line 58 and .*a.de has not; expected equal numbers of lines"):
        prepare(tmp_path / "a.en", tmp_path / "new", target=tmp_path / "a.de")
    with pytest.raises(UserError, match=r"target is .*b.de', which is not a file"):
        prepare(tmp_path / "a.en", tmp_path / "new", target=tmp_path / "b.de")
    with pytest.raises(UserError, match="end is True; expected False for pairs"):
        prepare(tmp_path / "a.en", tmp_path / "new", target=tmp_path / "a.de", end=True)
    (tmp_path / "a.de").write_bytes(b"ok\n" * 59 + b"\xe9")
    with pytest.raises(UserError, match=r"a.de, line 60: byte 0xe9 at offset 0 is not UTF-8"):
        prepare(tmp_path / "a.en", tmp_path / "new", target=tmp_path / "a.de", tokenizer="characters")


def test_end_token_follows_every_document_that_is_not_empty(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in ["", *LINES, ""]))
    about = prepare(tmp_path / "rows.jsonl", tmp_path / "out", end=True, validation_tenths=2)
    found = open_tokens(str(tmp_path / "out"))
    assert (about["end"], about["vocabulary"], about["dtype"]) == (256, 257, "uint16")
    assert (found.train[found.train_documents[1:] - 1] == 256).all()
    assert (found.train == 256).sum() == len(side(LINES, False)) == len(found.train_documents) - 1
    assert read_tokenizer(None).decode(found.train) == "".join(side(LINES, False))


def test_folder_is_written_atomically_and_only_once(tmp_path, poem, monkeypatch):
    about = prepare(poem, tmp_path / "out")
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert prepare(poem, tmp_path / "out") == about
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before
    assert prepare(poem, tmp_path / "again") == about
    with pytest.raises(UserError, match=r"holds other data \(end is False, not True\); expected a new folder"):
        prepare(poem, tmp_path / "out", end=True)
    poem.write_text(POEM[1:])
    with pytest.raises(UserError, match=r"holds other data .the sources have changed.; expected a new folder"):
        prepare(poem, tmp_path / "out")
    poem.write_bytes(POEM.encode()[:-1] + b"\xff")
    with pytest.raises(UserError, match="is not UTF-8"):
        prepare(poem, tmp_path / "broken", tokenizer="characters")
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"which has no data.json"):
        prepare(poem, tmp_path / "mine")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again", "mine", "out", "poem.txt"]
    verify(str(tmp_path / "out"))


def test_invalid_utf8_raises_an_error_with_file_and_offset(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)
    data = POEM.encode()[:200] + b"\xe9t\xe9" + POEM.encode()[200:]
    (tmp_path / "latin.txt").write_bytes(data)
    with pytest.raises(UserError, match=r"latin.txt, line 11: byte 0xe9 at offset 200 is not UTF-8; expected UTF-8"):
        prepare(tmp_path / "latin.txt", tmp_path / "out", tokenizer="characters")
    assert prepare(tmp_path / "latin.txt", tmp_path / "out")["tokens"]["train"] == len(data) * 9 // 10


@pytest.mark.parametrize(
    ("name", "data", "asked", "message"),
    [
        ("none.txt", None, {}, "none.txt', which is neither a file nor a folder; expected text"),
        ("empty.txt", b"", {}, "empty.txt is empty; expected text to learn from"),
        ("one.jsonl", b'{"text": "a"}\n\n{"body": "b", "n": 1}\n', {}, "line 3 has no field 'text'; it has: body, n"),
        ("two.jsonl", b'{"text": "a"}\n{"text": \n', {}, "two.jsonl, line 2: expected a JSON object, but"),
        ("three.jsonl", b'{"text": "a"}\n{"text": 7}\n', {}, "line 2: field 'text' is '7'; expected text"),
        ("one.csv", b"text,label\na,b\n", {}, "one.csv, line 2 has 'label' beside the text .*--drop label.*TextLabels"),
        ("two.csv", b"body,n\na,1\n", {}, "has no column 'text'; it has: body, n; .*--field NAME"),
        ("three.csv", b"text\n", {}, "the train side has no text; expected more documents"),
        ("four.csv", b"", {}, "four.csv is empty; expected text to learn from"),
        ("five.csv", b"text\na\xff\n", {}, "five.csv, line 2: byte 0xff at offset 6 is not UTF-8"),
        ("four.jsonl", b'["a"]\n', {}, "line 1 is .*; expected a JSON object"),
        ("five.jsonl", b'{"text": "a\xff"}\n', {}, "five.jsonl, line 1: expected a JSON object, but"),
        ("six.parquet", b"PAR1 not so", {}, "six.parquet: expected a Parquet file, but"),
        ("alone.jsonl", b'{"text": "a"}\n', {}, "the (train|validation) side has no text; expected more documents"),
        ("a.txt", b"abc " * 9, {"tokenizer": "bpe"}, "vocabulary is None; expected a number for tokenizer='bpe'"),
        (
            "a.txt",
            b"abc " * 9,
            {"vocabulary": 300},
            "vocabulary is 300; expected a number for tokenizer='bpe', such as",
        ),
        ("a.txt", b"abc " * 9, {"tokenizer": "bpe", "vocabulary": 256}, "256; expected more than the 256 bytes"),
        ("a.txt", b"abc " * 9, {"tokenizer": "nowhere"}, "tokenizer is 'nowhere', which is not a file"),
        (
            "a.txt",
            b"abc " * 9,
            {"field": "body"},
            "field is 'body', and source '.*a.txt' is a text file, which has none",
        ),
        ("a.txt", b"abc " * 9, {"drop": "*"}, r"drop is \('\*',\), and source '.*a.txt' is a text file"),
        ("a.txt", b"abc " * 9, {"pattern": "*.md"}, "pattern is '\\*.md', and source '.*a.txt' is a text file"),
        ("a.csv", b"text\na\nb\n", {"pattern": "*.md"}, "pattern is '\\*.md', and source '.*a.csv' is a table"),
        ("a.csv", b"text\na\nb\n", {"split": "test"}, "split is 'test', and source '.*a.csv' is a table"),
        ("*.txt", b"abc " * 9, {"subset": "en"}, "subset is 'en', and source"),
        (
            "a.txt",
            b"abc " * 9,
            {"target": __file__, "field": "x"},
            "field is 'x', and source '.*a.txt' is two text files",
        ),
        (
            ".",
            None,
            {"split": "test"},
            "split is 'test', and source '.*' is a folder, which has none; expected no split",
        ),
        ("a.txt", b"abc " * 9, {"validation_tenths": 0}, "validation_tenths is 0; expected a number at least 1"),
    ],
)
def test_invalid_arguments_and_sources_raise_a_user_error(tmp_path, name, data, asked, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / name, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_missing_column_or_library_raises_a_user_error(tmp_path, monkeypatch):
    polars.DataFrame({"body": LINES, "n": range(60)}).write_parquet(tmp_path / "lines.parquet")
    with pytest.raises(UserError, match="has no column 'text'; it has: body, n"):
        prepare(tmp_path / "lines.parquet", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs datasets .*pip install 'flaxformer\[datasets\]'"):
        prepare("hf:someone/lines", tmp_path / "out")


def test_unknown_characters_raise_an_error_that_names_them(tmp_path):
    (tmp_path / "ab.json").write_bytes(make_character_file(["ab\n"]))
    reader = read_tokenizer(str(tmp_path / "ab.json"))
    assert reader.encode(b"ba\n").tolist() == [2, 1, 0]
    assert reader.decode([2, 1, 0, 3]) == "ba\n"
    with pytest.raises(UserError, match=r"the text has 'c' \(U\+0063\), 'é' \(U\+00E9\); expected the 3 characters of"):
        reader.encode("abécc".encode())
    (tmp_path / "order.json").write_text(json.dumps({"format": "flaxformer characters", "characters": ["b", "c", "a"]}))
    assert read_tokenizer(str(tmp_path / "order.json")).encode(b"abc").tolist() == [2, 0, 1]
    (tmp_path / "twice.json").write_text(json.dumps({"format": "flaxformer characters", "characters": ["a", "a"]}))
    with pytest.raises(UserError, match="expected a list of distinct characters"):
        read_tokenizer(str(tmp_path / "twice.json"))


def edited(about, **changes):
    def write(file):
        write_document(file, about | changes)

    return write


@pytest.mark.parametrize("fully", [True, False])
def test_damage_is_detected_by_size_and_digest(tmp_path, poem, monkeypatch, fully):
    """Small files are checked byte by byte, large ones by size and samples."""
    from flaxformer.data import token_files

    if not fully:
        monkeypatch.setattr(token_files, "FULLY_CHECKED", 10)
        monkeypatch.setattr(token_files, "SAMPLE", 9)
    root = tmp_path / "out"
    about = prepare(poem, root)
    again = open_tokens.__wrapped__
    assert again(str(root)).description == about
    good = (root / "train.bin").read_bytes()
    (root / "train.bin").write_bytes(good[:-1])
    with pytest.raises(
        UserError, match=r"train.bin has \d+ bytes; expected \d+: it is damaged, prepare the data again"
    ):
        again(str(root))
    (root / "train.bin").write_bytes(bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(UserError, match=r"train.bin has another digest than in data.json"):
        again(str(root))
    (root / "train.bin").write_bytes(good[:20] + bytes([good[20] ^ 1]) + good[21:])  # between two samples
    if not fully:
        assert again(str(root)).train.size == len(good)
    with pytest.raises(UserError, match=r"train.bin has another digest than in data.json"):
        verify(str(root))
    (root / "train.bin").unlink()
    with pytest.raises(UserError, match=r"train.bin is missing; data.json names it"):
        again(str(root))
    (root / "train.bin").write_bytes(good)
    for write, message in [
        (lambda file: file.write_text("{"), r"data.json is damaged \(.*\); expected format 'flaxformer tokens 2'"),
        (lambda file: file.write_text("[]"), "data.json is damaged"),
        (lambda file: file.write_text(json.dumps(about)), "data.json is damaged .it has no digest"),
        (
            lambda file: file.write_text(json.dumps(about | {"end": 7, "digest": "0" * 16})),
            "data.json is damaged .its digest differs",
        ),
        (edited(about, format="other"), "data.json is damaged .format is 'other'"),
        (edited(about, dtype="float32"), "dtype is 'float32'"),
        (edited(about, files={}), "data.json is damaged"),
        (edited(about, vocabulary=195), "bin has the token 195; expected ids below vocabulary 195"),
        (
            edited(about, tokens=about["tokens"] | {"train": 3}),
            r"train.bin has \d+ tokens; expected 3, as",
        ),
    ]:
        write(root / "data.json")
        with pytest.raises(UserError, match=message):
            again(str(root))
