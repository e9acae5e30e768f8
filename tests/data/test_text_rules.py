"""Lines, encodings and tokenizers: every reader refuses, or reads exactly, the same texts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from flaxformer.data import library_tokenizer, prepare
from flaxformer.data.lines import character_boundary, parse_json_object, text_field
from flaxformer.data.token_files import open_tokens
from flaxformer.data.tokenizer import read_tokenizer, train_bpe
from flaxformer.system.errors import UserError
from flaxformer.tasks import PairedFiles, PairedTokens, TextFiles

LINES = [f"Grüße {i} – naïve café ☕" for i in range(60)]
TEXT = "\n".join(LINES) + "\n"
ENCODINGS = {
    "utf-8": TEXT.encode(),
    "mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "windows": TEXT.replace("\n", "\r\n").encode(),
    "old mac": TEXT.replace("\n", "\r").encode(),
    "separators": TEXT.replace("\n", "\u2028").encode(),
    "nul": TEXT.encode() + b"\0\0" + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "latin-1": TEXT.replace("–", "-").replace("☕", "").encode("latin-1"),
    "cut": TEXT.encode() + b"\xe2\x98",
}


@pytest.fixture
def byte_level(tmp_path):
    file = tmp_path / "byte_level.json"
    file.write_bytes(train_bpe([TEXT], 300))
    return str(file)


def text_of(tokenizer, *sides):
    decode = read_tokenizer(tokenizer).decode
    return "".join(decode(side) for side in sides)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_file_is_read_exactly_or_refused_with_its_place(encoding, tmp_path, byte_level):
    data, file = ENCODINGS[encoding], tmp_path / "text.txt"
    file.write_bytes(data)

    def by_task():
        return text_of(byte_level, *TextFiles(path=str(file), tokenizer=byte_level, length=4, batch_size=2).tokens())

    def prepared(tokenizer, **arguments):
        folder = tmp_path / "prepared"
        prepare(file, folder, tokenizer=tokenizer, **arguments)
        tokens = open_tokens.__wrapped__(str(folder))
        return text_of(tokens.tokenizer_path, tokens.train, tokens.validation)

    readers = [by_task, lambda: prepared(byte_level)]
    if encoding in ("utf-16", "latin-1", "cut"):
        for reader in readers:
            with pytest.raises(UserError, match=r"text\.txt, line \d+: byte 0x[0-9a-f]{2} at offset \d+ is not UTF-8"):
                reader()
    else:
        for reader in readers:
            assert reader().encode() == data.removeprefix(b"\xef\xbb\xbf")


@pytest.mark.parametrize("break_", ["\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("tokenizer", [False, True])
def test_pairs_of_lines_stay_together(break_, tokenizer, tmp_path, byte_level):
    """A line of each file has what other programs take for a line's end: within the line, and at its end."""
    sources, targets = [f"quelle {i}" for i in range(40)], [f"ziel {i}" for i in range(40)]
    inner, last = ("/", "\r") if break_ == "\r\n" else (break_, break_ if break_ in "\r\x0b\x0c" else "")
    sources[10], targets[30] = f"quelle{inner}10", f"ziel{inner}30{last}"
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file, lines in zip(files, (sources, targets), strict=True):
        file.write_bytes(("\n".join(lines) + "\n").encode())
    path = byte_level if tokenizer else None
    tasks = [PairedFiles(source_path=str(files[0]), target_path=str(files[1]), max_length=64, tokenizer=path)]
    prepare(files[0], tmp_path / "pairs", target=files[1], tokenizer=path or "bytes")
    tasks.append(PairedTokens(path=str(tmp_path / "pairs"), max_length=64))
    for task in tasks:
        pairs = [
            (text_of(path, pair.source), text_of(path, pair.target)) for side in task.sides().values() for pair in side
        ]
        expected = [tuple(line.strip(" \r\x0b\x0c") for line in pair) for pair in zip(sources, targets, strict=True)]
        assert sorted(pairs) == sorted(expected)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    data, mark = TEXT.encode(), b"\xef\xbb\xbf"
    counts = []
    for place, head in enumerate((b"", mark)):
        folder = tmp_path / str(place)
        for name in ("texts/a.txt", "texts/b.txt", "texts/c.txt", "texts/f.txt", "source.txt", "target.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(head + data)
        files = PairedFiles(source_path=f"{folder}/source.txt", target_path=f"{folder}/target.txt", max_length=99)
        pairs = [pair for side in files.sides().values() for pair in side]
        whole = prepare(folder / "texts", folder / "whole", validation_tenths=5)["tokens"]
        file = prepare(folder / "source.txt", folder / "file")["tokens"]
        both = prepare(folder / "source.txt", folder / "both", target=folder / "target.txt")["tokens"]
        counts.append([whole, file, both, sum(len(pair.source) + len(pair.target) for pair in pairs)])
    assert counts[0] == counts[1]


def test_pairs_that_are_not_utf8_are_refused_where_characters_are_read(tmp_path, byte_level):
    (tmp_path / "a.txt").write_bytes("eins\nzwei\ndrei für\n".encode("latin-1"))
    (tmp_path / "b.txt").write_bytes(b"one\ntwo\nthree for\n")
    paths = {"source_path": str(tmp_path / "a.txt"), "target_path": str(tmp_path / "b.txt"), "max_length": 20}
    with pytest.raises(UserError, match=r"a\.txt, line 3: byte 0xfc at offset \d+ is not UTF-8"):
        PairedFiles(**paths, tokenizer=byte_level).sides()
    assert sum(map(len, PairedFiles(**paths).sides().values())) == 3


@given(st.text(min_size=1, max_size=12), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_a_text_is_cut_between_characters(text, place):
    data = text.encode()
    cut = min(place, len(data))
    cut += character_boundary(data[cut : cut + 4])
    assert data[:cut].decode() + data[cut:].decode() == text


def metaspace(scheme, model=None, normalizer=None):
    tokenizer = Tokenizer(model or models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(prepend_scheme=scheme), decoders.Metaspace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


WORDS = "alpha beta gamma de la\nalpha gamma\n" * 20
BPE = {"vocab_size": 70, "special_tokens": ["<unk>"], "show_progress": False}
LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
LONG = {
    "prefix always": lambda: (metaspace("always"), trainers.BpeTrainer(**BPE)),
    "prefix first": lambda: (metaspace("first"), trainers.BpeTrainer(**BPE)),
    "prefix by normalizer": lambda: (metaspace("never", normalizer=LLAMA), trainers.BpeTrainer(**BPE)),
    "unigram": lambda: (
        metaspace("always", models.Unigram()),
        trainers.UnigramTrainer(vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False),
    ),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("piece", [37, 150])
def test_pieces_of_a_text_have_the_tokens_of_the_whole(kind, piece, tmp_path, monkeypatch):
    tokenizer, trainer = LONG[kind]()
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.save(str(tmp_path / "t.json"))
    text = " ".join(WORDS.split(" ")[::-1]) + " delta beta\n\n ala" + WORDS[:301]
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    monkeypatch.setattr(library_tokenizer, "PIECE", piece)
    monkeypatch.setattr(library_tokenizer, "OVERLAP", 80)
    read = read_tokenizer.__wrapped__(str(tmp_path / "t.json"))
    assert read.encode(text.encode()).tolist() == expected
    pieces = [text[start : start + 53].encode() for start in range(0, len(text), 53)]
    streamed = list(read.encode_pieces(iter(pieces)))
    assert [i for ids in streamed for i in ids.tolist()] == expected
    assert len(streamed) > 2


def without_unknown(kind):
    model = {"bpe": models.BPE, "wordlevel": models.WordLevel, "unigram": models.Unigram, "wordpiece": models.WordPiece}
    trainer = {
        "bpe": lambda: trainers.BpeTrainer(vocab_size=40, show_progress=False),
        "wordlevel": lambda: trainers.WordLevelTrainer(show_progress=False),
        "unigram": lambda: trainers.UnigramTrainer(vocab_size=30, show_progress=False),
        "wordpiece": lambda: trainers.WordPieceTrainer(vocab_size=40, show_progress=False),
    }
    tokenizer = Tokenizer(model[kind]())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace() if kind.startswith("word") else pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(["hug pug pun bun hugs " * 50], trainer[kind]())
    return tokenizer


@pytest.mark.parametrize("kind", ["bpe", "wordlevel", "unigram", "wordpiece"])
@pytest.mark.parametrize("text", ["hug mug pug", "hug ÄÖ", "pug\nhug zzz", "hug\u0301"])
def test_no_tokenizer_drops_a_character_in_silence(kind, text, tmp_path):
    without_unknown(kind).save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"t\.json' (has no token for|cannot encode the text)"):
        read_tokenizer(str(tmp_path / "t.json")).encode(text.encode())


def test_the_characters_without_a_token_are_named(tmp_path):
    without_unknown("bpe").save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"has no token for 'm' \(U\+006D\), 'Ä' \(U\+00C4\), '\\n' \(U\+000A\), and"):
        read_tokenizer(str(tmp_path / "t.json")).encode("hug mug Äpug\n".encode())


@pytest.mark.parametrize("kind", ["bpe", "wordlevel"])
def test_what_a_tokenizer_removes_by_its_own_rule_is_not_a_fault(kind, tmp_path):
    tokenizer = without_unknown(kind)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("!", ""), normalizers.Lowercase()])
    tokenizer.save(str(tmp_path / "t.json"))
    read = read_tokenizer(str(tmp_path / "t.json"))
    assert read.encode(b"HUG! pug").tolist() == read.encode(b"hug pug").tolist()


@pytest.mark.parametrize("special", [True, False])
def test_a_special_token_in_a_text_is_that_token_and_is_decoded(special, tmp_path):
    text = "The token <|end|> ends a text.\n" * 3
    tokenizer = Tokenizer.from_str(train_bpe([text], 280).decode())
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(["<|end|>"])
    tokenizer.save(str(tmp_path / "t.json"))
    read = read_tokenizer(str(tmp_path / "t.json"))
    ids = read.encode(text.encode())
    assert (ids == tokenizer.token_to_id("<|end|>")).sum() == 3
    assert read.decode(ids) == text


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_half_of_a_surrogate_pair_is_refused_with_its_line(tokenizer, tmp_path):
    rows = [json.dumps({"text": f"row {i}"}) for i in range(30)]
    rows[20] = '{"text": "broken \\ud83d emoji"}'
    (tmp_path / "x.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match=r"x\.jsonl, line 21: field 'text' has half of a surrogate pair, \\ud83d, at"):
        prepare(
            tmp_path / "x.jsonl", tmp_path / "o", tokenizer=tokenizer, vocabulary=260 if tokenizer == "bpe" else None
        )
    assert parse_json_object(b'{"text": "\\ud83d\\ude00"}', "here") == {"text": "😀"}


def test_fields_that_would_be_lost_are_refused(tmp_path):
    rows = "\n".join(json.dumps({"text": f"row {i} of some", "label": i % 2, "url": "u"}) for i in range(60))
    (tmp_path / "x.jsonl").write_text(rows + "\n")
    with pytest.raises(UserError, match=r"line 1 has 'label', 'url' beside the text in 'text'; .* --drop label,url"):
        prepare(tmp_path / "x.jsonl", tmp_path / "o")
    with pytest.raises(UserError, match=r"line 1 has 'url' beside .* --drop label,url"):
        prepare(tmp_path / "x.jsonl", tmp_path / "o", drop="label")
    one, two = (prepare(tmp_path / "x.jsonl", tmp_path / name, drop=name) for name in ("label,url", "*"))
    assert one["tokens"] == two["tokens"]
    assert text_field({"text": "a"}, "text", "here", ()) == "a"


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "parquet", "csv.gz", "CSV"])
def test_tables_are_not_read_as_text(suffix, tmp_path):
    file = tmp_path / f"reviews.{suffix}"
    file.write_text("text,label\ngood,1\n")
    message = r"is (a table|JSON) by its name; expected text"
    with pytest.raises(UserError, match=message):
        TextFiles(path=str(file), length=4, batch_size=2).tokens()
    expected = {"json": message, "parquet": "expected a Parquet file, but", "csv.gz": "cannot be decompressed"}
    with pytest.raises(UserError, match=expected.get(suffix, "'label' beside the text .*|no column 'text'")):
        prepare(file, tmp_path / "o")
    with pytest.raises(UserError, match=message):
        prepare(file, tmp_path / "o", target=file)
    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder" / file.name)
    with pytest.raises(UserError, match=message):
        TextFiles(path=str(tmp_path / "folder"), pattern="*", length=4, batch_size=2).tokens()


def test_rows_that_are_nested_too_deeply_are_refused(tmp_path):
    (tmp_path / "deep.jsonl").write_text('{"text":' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(UserError, match=r"deep\.jsonl, line 1: expected a JSON object, but: its values are nested"):
        prepare(tmp_path / "deep.jsonl", tmp_path / "o")


@pytest.mark.parametrize("vocabulary", [-1, 0, 256, 2**24 + 1, 10**12])
def test_impossible_vocabularies_are_refused_before_training(vocabulary):
    with pytest.raises(UserError, match=rf"vocabulary is {vocabulary}; expected more than the 256 bytes"):
        train_bpe([TEXT], vocabulary)
