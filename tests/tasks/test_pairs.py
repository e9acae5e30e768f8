"""Paired files: rows, the split, dropped pairs, and padding."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks.every import WORDS

from flaxformer import model
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.data.pairs import Pair
from flaxformer.system.errors import UserError
from flaxformer.tasks import PairedFiles, PairedTokens, TextPair, TokenFiles
from flaxformer.tasks.examples import take_rows


def paired(files, **changes):
    paths = {"source_path": str(files / "one.en"), "target_path": str(files / "one.de")}
    return PairedFiles(**(paths | {"max_length": 19, "batch_size": 4, "evaluation_batches": 3} | changes))


def lines(files):
    """Return every pair of lines with its tenth."""
    texts = [(files / name).read_text().split("\n") for name in ("one.en", "one.de")]
    tenth = lambda pair: int(hashlib.sha256("\n".join(pair).encode()).hexdigest()[:8], 16) % 10  # noqa: E731
    return [(*pair, tenth(pair)) for pair in zip(*texts, strict=True)]


def row(batch, i, padding):
    """Return inputs, scored targets and source of a row, without padding."""
    valid, scored = np.asarray(batch.valid[i]), np.asarray(batch.weights[i]) > 0
    assert (np.asarray(batch.inputs[i])[~valid] == padding).all()
    source = None if batch.source is None else batch.source[i][batch.source_valid[i]].tolist()
    return batch.inputs[i][valid].tolist(), batch.targets[i][scored].tolist(), source


@pytest.mark.parametrize("form", ["paired", "joined"])
def test_rows_are_the_lines_in_order(files, form):
    task, start, end, padding = paired(files, form=form, validation_tenths=3), 256, 257, 258
    source = task.load()
    short = [(s.encode(), t.encode(), tenth < 3) for s, t, tenth in lines(files) if max(len(s), len(t)) <= 19]
    sides = {
        name: [(s, t) for s, t, held_out in short if held_out == side]
        for name, side in (("train", False), ("held_out", True))
    }
    for name, expected in sides.items():
        batch = jax.device_get(getattr(source, name))
        assert len(batch.inputs) == len(expected) > 5
        for i, (s, t) in enumerate(expected):
            prompt = [*s, start] if form == "joined" else [start]
            read, said, given = row(batch, i, padding)
            assert read == [*prompt, *t]
            assert said == [*t, end]
            assert given == (None if form == "joined" else list(s))
            assert batch.prefix[i] == len(prompt)
            assert batch.targets[i, batch.prefix[i] - 1] == (*t, end)[0]
    assert not {*sides["train"]} & {*sides["held_out"]}


def test_batches_have_rows_of_one_side(files):
    task = paired(files)
    source = task.load()
    for side, batch in ((source.train, source.batch(jax.random.key(0), 0)), (source.held_out, source.evaluation())):
        known = {bytes(np.asarray(targets)) for targets in side.targets.astype(jnp.int32)}
        assert {bytes(np.asarray(targets)) for targets in batch.targets.reshape(-1, task.sequence_length)} <= known


@pytest.mark.parametrize("buckets", [1, 2])
def test_validation_files_are_held_out(files, buckets):
    paths = {"source_path": str(files / "two.en"), "target_path": str(files / "two.de")}
    task, other = paired(files, validation=TextPair(**paths), buckets=buckets), paired(files, **paths)
    found, own, theirs = task.load(), paired(files).load(), other.load()

    def count(source):
        return len(source.train.inputs) + len(source.held_out.inputs)

    trained = found.buckets if buckets > 1 else [found.train]
    assert sum(len(table.inputs) for table in trained) == count(own)
    assert len(found.held_out.inputs) == count(theirs)
    texts = {bytes(row) for side in (theirs.train, theirs.held_out) for row in np.asarray(side.source, np.uint16)}
    assert {bytes(row) for row in np.asarray(found.held_out.source, np.uint16)} == texts
    digest = hashlib.sha256((files / "two.de").read_bytes()).hexdigest()
    assert task.fingerprint()["validation_target_sha256"] == digest
    assert task.fingerprint()["pairs"] == count(own) + count(theirs)


def test_validation_files_are_checked(files, tmp_path):
    (tmp_path / "short").write_text("one line")
    for name, message in (("none", "which is not a file"), ("short", "expected equal numbers")):
        pair = TextPair(source_path=str(tmp_path / name), target_path=str(files / "two.de"))
        with pytest.raises(UserError, match=message):
            paired(files, validation=pair).load()


@pytest.mark.parametrize("form", ["paired", "joined"])
def test_prepared_pairs_equal_those_of_the_files(files, form):
    task, own = PairedTokens(path=str(files / "one.pairs"), max_length=19, form=form), paired(files, form=form)
    own = own.replace(validation_tenths=2)
    assert task.vocabulary == own.vocabulary
    one, other = task.load(), own.load()
    jax.tree.map(np.testing.assert_array_equal, (one.train, one.held_out), (other.train, other.held_out))
    shared = {"pairs", "dropped_empty", "dropped_long"}
    assert {n: task.fingerprint()[n] for n in shared} == {n: own.fingerprint()[n] for n in shared}


def test_prepared_folder_of_another_kind_is_refused(files):
    with pytest.raises(UserError, match=r"one.tokens', which holds a text, which TokenFiles reads; expected pairs"):
        PairedTokens(path=str(files / "one.tokens")).load()
    with pytest.raises(UserError, match=r"one.pairs', which holds pairs, which PairedTokens reads; expected a text"):
        TokenFiles(path=str(files / "one.pairs")).load()


def test_pairs_are_encoded_by_a_tokenizer(files):
    task = paired(files, tokenizer=str(files / "one.json"), max_length=3, target_path=str(files / "one.en"))
    ids = {word: 1 + i for i, word in enumerate(WORDS)}
    assert (task.start, task.end, task.padding, task.vocabulary) == (14, 15, 16, 17)
    batch = jax.device_get(task.load().train)
    expected = [[ids[word] for word in s.split()] for s, *_ in lines(files)]
    found = [row(batch, i, 16) for i in range(len(batch.inputs))]
    assert all(given in expected and said == [*given, 15] for _, said, given in found)
    assert max(len(given) for *_, given in found) == 3


def test_empty_and_long_lines_are_dropped_and_counted(files, tmp_path):
    kinds = [("bb", ""), ("", "B"), ("cccc", "C"), ("d", "DDDD"), (" ", "E")]
    source, target = zip(*(kind for i in range(20) for kind in [*kinds, (f"x{i}", f"{i}")]), strict=True)
    (tmp_path / "a").write_text("\n".join(source) + "\n")
    (tmp_path / "b").write_text("\r\n".join(target))
    task = PairedFiles(source_path=str(tmp_path / "a"), target_path=str(tmp_path / "b"), max_length=3)
    found = task.fingerprint()
    assert {name: found[name] for name in ("pairs", "dropped_empty", "dropped_long")} == {
        "pairs": 20,
        "dropped_empty": 60,
        "dropped_long": 40,
    }
    assert found["source_sha256"] == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    source = task.load()
    assert len(source.train.inputs) + len(source.held_out.inputs) == 20


@pytest.mark.long
@pytest.mark.parametrize("form", ["paired", pytest.param("joined", marks=pytest.mark.slow)])
def test_padding_does_not_change_the_loss(files, form):
    tokens = {"tokenizer": str(files / "one.json"), "target_path": str(files / "one.en"), "form": form}
    config = ModelConfig(
        vocabulary=17,
        layers=1,
        d_model=12,
        attention=Attention(heads=3),
        feed_forward=Dense(d_ff=7),
        mask_pattern="prefix",
    )
    config = config.with_encoder() if form == "paired" else config
    params = model.init(jax.random.key(0), config)

    def loss(max_length):
        task = paired(files, max_length=max_length, **tokens)
        batch = take_rows(task.load().train, jnp.arange(5))
        output = jax.jit(model.apply)(params, config, batch.inputs, **batch.arguments)
        total, count = config.head.loss(output, batch.targets, batch.weights)
        return float(total), float(count)

    assert loss(4) == pytest.approx(loss(7), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_path": "nowhere"}, "source_path is 'nowhere', which is not a file"),
        ({"target_path": "nowhere"}, "target_path is 'nowhere', which is not a file"),
        (
            {"max_length": 1},
            r"0 of 1 pairs of lines of 1 to 1 tokens are on the validation side; .* \(\d+ pairs are left out",
        ),
        ({"tokenizer": "nowhere"}, "tokenizer is 'nowhere', which is not a file"),
    ],
)
def test_invalid_settings_are_refused(files, changes, message):
    with pytest.raises(UserError, match=message):
        paired(files, **changes).load()


def test_files_with_different_numbers_of_lines_are_refused(files):
    with pytest.raises(UserError, match=r"one.en has a line 2 and .*text.txt has not; expected equal numbers of lines"):
        paired(files, target_path=str(files / "text.txt")).load()


@pytest.mark.parametrize("form", ["paired", "joined"])
def test_the_id_of_padding_in_a_line_is_a_token(files, form):
    task = paired(files, form=form, max_length=4)
    padding = task.padding
    sources = [np.array([7, padding]), np.array([padding, padding, 3]), np.array([5])]
    prompts = task.prompts(sources)
    valid = np.asarray(prompts["valid" if form == "joined" else "source_valid"])
    extra = form == "joined"  # the start
    assert valid.sum(-1).tolist() == [len(source) + extra for source in sources]
    pairs = [Pair(source, np.array([padding, 9]), 5) for source in sources]
    batch = task._examples(pairs, task.source_length, task.sequence_length)
    assert np.asarray(batch.weights).sum(-1).tolist() == [3, 3, 3]  # the target, and its end
    if form == "paired":
        assert np.asarray(batch.source_valid).sum(-1).tolist() == [2, 3, 1]
    else:
        assert np.asarray(batch.prefix).tolist() == [3, 4, 2]
