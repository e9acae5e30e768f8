"""Text tasks: windows, tokenizers, count models, fingerprints, and error messages."""

import sys

import jax
import numpy as np
import pytest
from tasks.every import TEXT, WORDS, word_tokenizer

from flaxformer.config import ModelConfig
from flaxformer.data.corpus import count_model_losses, split_by_file_name, standard_library
from flaxformer.data.library_tokenizer import PIECE
from flaxformer.data.tokenizer import read_tokenizer, token_dtype
from flaxformer.system.errors import UserError
from flaxformer.tasks import StandardLibrary, TextFiles
from flaxformer.training import Run

HERE = {"length": 11, "batch_size": 4, "evaluation_batches": 3}


def test_windows_are_from_one_side_of_the_text(files):
    task = TextFiles(path=str(files / "text.txt"), **HERE)
    corpus, source = task.corpus(), task.load()
    assert corpus.train.tobytes() + corpus.validation.tobytes() == TEXT
    for side, batch in ((corpus.train, source.batch(jax.random.key(0), 0)), (corpus.validation, source.evaluation())):
        assert float(batch.weights.min()) == 1
        for inputs, targets in zip(batch.inputs.reshape(-1, 11), batch.targets.reshape(-1, 11), strict=True):
            np.testing.assert_array_equal(inputs[1:], targets[:-1])
            window = bytes(np.append(inputs, targets[-1]).astype(np.uint8))
            assert window in side.tobytes()


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 8, 40])
def test_notes_say_that_evaluation_windows_overlap(files, batches):
    task = TextFiles(path=str(files / "text.txt"), length=11, batch_size=1, evaluation_batches=batches)
    size = task.corpus().validation.size
    starts = np.linspace(0, size - 12, batches).astype(int)
    scored = [target for start in starts for target in range(start + 1, start + 12)]
    notes = [note for note in task.notes() if "standard errors over windows are too small" in note]
    assert len(notes) == (len(set(scored)) < len(scored))


@pytest.mark.parametrize("tokenizer", [None, "one.json"])
def test_the_training_text_can_be_cut_and_the_evaluation_sets_stay(files, tokenizer):
    path = None if tokenizer is None else str(files / tokenizer)
    whole = TextFiles(path=str(files / "one"), tokenizer=path, **HERE)
    cut = whole.replace(training_size=29)
    train, validation = whole.tokens()
    np.testing.assert_array_equal(cut.tokens()[0], train[:29])
    np.testing.assert_array_equal(cut.tokens()[1], validation)
    starts = {bytes(window.astype(np.uint8)) for window in np.lib.stride_tricks.sliding_window_view(train[:29], 11)}
    for step in range(5):
        inputs = np.asarray(cut.load().batch(jax.random.key(0), step).inputs)
        assert {bytes(window.astype(np.uint8)) for window in inputs} <= starts
    np.testing.assert_array_equal(cut.load().evaluation().inputs, whole.load().evaluation().inputs)
    with pytest.raises(UserError, match=rf"training_size is {train.size + 1:,}; expected at most {train.size:,}"):
        whole.replace(training_size=train.size + 1).load()


def test_standard_library_is_split_by_file_and_has_a_fingerprint():
    corpus = standard_library()
    assert corpus.train.size > 4_000_000
    assert 0.03 < corpus.validation.size / corpus.train.size < 0.3
    for text in (b"def dataclass(", b"class OrderedDict("):
        assert (text in corpus.train.tobytes()) != (text in corpus.validation.tobytes())
    print_ = StandardLibrary().fingerprint()
    assert set(print_) == {"sha256", "files", "train_bytes", "validation_bytes"}
    assert len(print_["sha256"]) == 64


def test_folder_is_split_by_file_name_and_its_digest_covers_every_byte(tmp_path):
    for i in range(40):
        (tmp_path / f"{i}.txt").write_bytes(b"%d " % i * 50)
    files = sorted(tmp_path.glob("*.txt"))
    whole, fewer = split_by_file_name(tmp_path, files), split_by_file_name(tmp_path, files[:20])
    assert whole.train.size > whole.validation.size > 0
    for name, side in ((f.name, f.read_bytes()) for f in files[:20]):
        in_validation = side in whole.validation.tobytes()
        assert in_validation == (side in fewer.validation.tobytes()), name
    files[3].write_bytes(b"x" + files[3].read_bytes()[1:])
    assert split_by_file_name(tmp_path, files).digest != whole.digest


@pytest.mark.parametrize("vocabulary", [256, 70_001])
def test_count_model_losses_equal_a_plain_loop(vocabulary):
    rng = np.random.default_rng(0)
    train = rng.integers(vocabulary - 8, vocabulary, 500).astype(token_dtype(vocabulary))
    tokens = rng.integers(vocabulary - 10, vocabulary, 40)
    inputs, targets = tokens[:-1], tokens[1:]
    counts, pairs = train.tolist(), list(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    unigram = -np.mean([np.log((counts.count(t) + 1) / (500 + vocabulary)) for t in targets])
    bigram = -np.mean(
        [
            np.log((pairs.count((i, t)) + 1) / (sum(p[0] == i for p in pairs) + vocabulary))
            for i, t in zip(inputs, targets, strict=True)
        ]
    )
    losses = count_model_losses(train, inputs, targets, vocabulary)
    assert losses["unigram"] == pytest.approx(unigram)
    assert losses["bigram"] == pytest.approx(bigram)


def test_text_is_encoded_by_the_tokenizer(files):
    task = TextFiles(path=str(files / "text.txt"), tokenizer=str(files / "one.json"), **HERE)
    ids = {word: 1 + i for i, word in enumerate(WORDS)}
    expected = [ids.get(word, 0) for word in TEXT.decode().split()]
    cut = len(TEXT) * 9 // 10  # the text is cut before it is tokenised
    train, validation = task.tokens()
    assert train.tolist() == expected[: len(train)]
    assert train.tolist() == [ids.get(word, 0) for word in TEXT[:cut].decode().split()]
    assert validation.tolist() == [ids.get(word, 0) for word in TEXT[cut:].decode().split()]
    assert task.vocabulary == len(WORDS) + 1
    assert Run(task=task, model=ModelConfig(vocabulary=len(WORDS) + 1)).task is task
    with pytest.raises(UserError, match=r"model.vocabulary is 13; expected at least the task's 14 tokens"):
        Run(task=task, model=ModelConfig(vocabulary=13))


def test_fingerprint_and_references_depend_on_the_tokenizer(files):
    bytes_, one, two = (
        TextFiles(path=str(files / "one"), tokenizer=path and str(files / path), **HERE)
        for path in (None, "one.json", "two.json")
    )
    fingerprints = [task.fingerprint() for task in (bytes_, one, two)]
    assert fingerprints[0].items() <= fingerprints[1].items()
    assert len({fingerprints[1]["tokenizer_sha256"], fingerprints[2]["tokenizer_sha256"]}) == 2
    assert fingerprints[1]["train_tokens"] == one.tokens()[0].size < fingerprints[1]["train_bytes"]
    evaluation = jax.device_get(one.load().evaluation())
    assert one.references() == count_model_losses(one.tokens()[0], evaluation.inputs, evaluation.targets, 14)
    assert one.references()["bigram"] < one.references()["unigram"] < np.log(14)


def test_tokenizer_with_gaps_in_its_ids_encodes_long_texts(tmp_path):
    path = tmp_path / "gaps.json"
    path.write_text(word_tokenizer(WORDS, gap=60_000))
    gaps = read_tokenizer(str(path))
    assert gaps.vocabulary == 60_000 + len(WORDS) + 1
    assert gaps.encode(b"the we").tolist() == [1, 60_000 + len(WORDS)]
    assert gaps.encode(b"the we").dtype == np.uint16
    assert token_dtype(256) == np.uint8
    assert token_dtype(257) == np.uint16
    assert token_dtype(65_537) == np.uint32
    line = b"the quick brown fox\n"
    assert gaps.encode(line * (PIECE // 10)).tolist() == gaps.encode(line).tolist() * (PIECE // 10)
    with pytest.raises(UserError, match=r"the text, line 2: byte 0xff at offset 8 is not UTF-8"):
        gaps.encode(b"the we\n \xff fox")
    assert gaps.encode(b"").tolist() == []


def test_invalid_settings_are_refused(files, tmp_path, monkeypatch):
    text = str(files / "text.txt")
    (tmp_path / "bad.json").write_text('{"model": 3}')
    mistakes = {
        "missing.*neither a file nor a folder": TextFiles(path=str(files / "missing")),
        r"no file matching '\*\.rst'": TextFiles(path=str(files), pattern="*.rst"),
        "training text has 1620 bytes; expected more than length 4000": TextFiles(path=text, length=4000),
        "training text has 324 tokens; expected more than length 4000": TextFiles(
            path=text, length=4000, tokenizer=str(files / "one.json")
        ),
        "tokenizer is 'nowhere.json', which is not a file": TextFiles(path=text, tokenizer="nowhere.json"),
        "tokenizer is .*bad.json'; expected a tokenizer.json, but": TextFiles(
            path=text, tokenizer=str(tmp_path / "bad.json")
        ),
    }
    for message, task in mistakes.items():
        with pytest.raises(UserError, match=message):
            task.load()
    (tmp_path / "other.json").write_bytes((files / "one.json").read_bytes())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs tokenizers .*pip install 'flaxformer\[text\]'"):
        TextFiles(path=text, tokenizer=str(tmp_path / "other.json")).load()
