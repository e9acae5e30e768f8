"""Evaluation and test data of every task: one for all batch sizes, apart from each other, compared with training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks.every import every_task, same

from flaxformer.tasks import (
    Batch,
    Copy,
    Digits,
    MaskedTokens,
    ModularAddition,
    Overlap,
    PairedFiles,
    Source,
    StandardLibrary,
    SyntheticTask,
    Task,
    TextFiles,
    TextPair,
    next_token,
)
from flaxformer.tasks.corrupted import Corrupted
from flaxformer.tasks.examples import ExampleSource
from flaxformer.tasks.overlap import evaluation_digest, example_keys, merge_batches, windows_in_text
from flaxformer.tasks.text import TokenTask

NUMBERS = range(36)


@pytest.fixture(scope="module")
def tasks(files):
    return list(every_task(files))


def keys_of(batches):
    return list(example_keys(merge_batches(batches)))


@pytest.mark.every(6)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_batch_size_does_not_change_the_evaluation_examples(tasks, number):
    task = tasks[number].replace(evaluation_batch_size=3)
    other = task.replace(batch_size=6)
    for name in ("evaluation", "test"):
        one, two = (getattr(own.load(), name)() for own in (task, other))
        assert same(one, two)
    assert same(task.load().evaluation(), tasks[number].load().evaluation())


@pytest.mark.every(6)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_digest_is_that_of_the_examples_in_any_division(tasks, number):
    task = tasks[number]
    digest = evaluation_digest(task.load())
    assert evaluation_digest(task.replace(batch_size=6, evaluation_batch_size=3).load()) == digest
    assert evaluation_digest(task.replace(evaluation_batches=1).load()) != digest
    if not isinstance(task, SyntheticTask | Corrupted):  # these draw random numbers batch by batch
        assert evaluation_digest(task.replace(evaluation_batches=1, evaluation_batch_size=6).load()) == digest


@pytest.mark.every(6)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_test_set_has_the_shape_of_the_evaluation_set_and_other_examples(tasks, number):
    task = tasks[number]
    source = task.load()
    evaluation, test = source.evaluation(), source.test()
    if test is None:
        assert isinstance(source, ExampleSource)
        assert len(source.held_out.inputs) <= 6
        return
    shapes = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(own)] for own in (evaluation, test)]
    assert shapes[0] == shapes[1]
    assert same(test, source.test())
    assert np.asarray(test.weights).any()
    assert not same(evaluation.inputs, test.inputs)
    if isinstance(source, ExampleSource):
        rows = [keys_of(own) for own in (evaluation, test)]
        held_out = [key for table in (source.held_out, source.tested) if table for key in example_keys(table)]
        assert len(rows[0]) + len(rows[1]) <= len(held_out)
        assert {*rows[0], *rows[1]} <= {*held_out}


def test_windows_of_the_test_set_share_no_token_with_the_evaluation_set(files):
    text = np.arange(2000, dtype=np.uint16)  # every token names its place

    class Places(TokenTask):
        @property
        def vocabulary(self):
            return 2000

        def tokens(self):
            return text, text

    for batches in (2, 7, 20, 40, 90):
        source = Places(length=11, batch_size=2, evaluation_batches=batches).load()
        evaluation, test = source.evaluation(), source.test()
        if test is None:
            assert batches == 90
            continue
        scored = np.asarray(test.weights) > 0
        assert scored.any() or batches == 40
        used = {int(t) for part in (evaluation.inputs, evaluation.targets) for t in np.asarray(part).ravel()}
        assert not used & {int(t) for part in (test.inputs, test.targets) for t in np.asarray(part)[scored]}


def test_a_table_that_validation_uses_whole_has_no_test_set():
    assert Digits(evaluation_batches=16).load().test().weights.sum() == 359 - 256
    assert Digits(evaluation_batches=32).load().test() is None


def test_buckets_do_not_change_the_test_set(files):
    task = PairedFiles(source_path=str(files / "one.en"), target_path=str(files / "one.de"), batch_size=4)
    task = task.replace(evaluation_batches=1)
    assert same(task.load().test(), task.replace(buckets=2).load().test())


def test_overlap_of_a_table_counts_equal_examples(files):
    one = str(files / "one.en"), str(files / "one.de")
    task = PairedFiles(source_path=one[0], target_path=one[1], batch_size=4, evaluation_batches=2)
    pairs = task.sides()
    held_out = [b"".join(map(bytes, pair[:2])) for pair in pairs["validation"]]
    rows = np.linspace(0, len(held_out) - 1, 8).astype(int) if len(held_out) >= 8 else np.arange(len(held_out))
    training = {b"".join(map(bytes, pair[:2])) for pair in pairs["training"]}
    expected = Overlap(len(rows), sum(held_out[row] in training for row in rows))
    assert task.overlap() == task.replace(buckets=2).overlap() == expected


def test_overlap_is_whole_where_validation_is_the_training_file(files):
    paths = {"source_path": str(files / "one.en"), "target_path": str(files / "one.de")}
    task = PairedFiles(**paths, validation=TextPair(**paths), batch_size=4, evaluation_batches=2)
    assert task.overlap() == task.replace(form="joined").overlap() == task.replace(buckets=4).overlap() == Overlap(8, 8)


def test_overlap_of_windows_is_that_of_a_search_in_the_text(files):
    for task in (StandardLibrary(length=24, batch_size=8), TextFiles(path=str(files / "text.txt"), length=11)):
        train, validation = task.tokens()
        starts = np.linspace(0, validation.size - task.length - 1, 16 * task.batch_size).astype(int)
        found = [validation[at : at + task.length + 1].tobytes() in train.tobytes() for at in starts]
        assert task.overlap() == Overlap(len(starts), sum(found))
        corrupted = MaskedTokens(text=task.replace(batch_size=16), batch_size=task.batch_size)
        assert corrupted.overlap() == task.overlap()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("symbols", [1, 2, 5])
def test_windows_are_found_where_a_plain_search_finds_them(monkeypatch, n, symbols):
    monkeypatch.setattr("flaxformer.tasks.overlap.PIECE", 50)
    rng = np.random.default_rng(n)
    text, windows = rng.integers(0, symbols, 400, np.uint8), rng.integers(0, symbols, (20, n), np.uint8)
    windows[3], windows[4] = text[:n], text[len(text) - n :]
    expected = [window.tobytes() in text.tobytes() for window in windows]
    np.testing.assert_array_equal(windows_in_text(windows, text), expected)


def test_a_window_that_is_longer_than_the_text_is_not_in_it():
    assert not windows_in_text(np.zeros((2, 9), np.uint8), np.zeros(8, np.uint8)).any()


def test_overlap_of_drawn_examples_is_that_of_the_possible_ones():
    assert Copy(symbols=4, length=4).overlap() == Overlap(256, 256, 2**14)
    assert Copy(symbols=16, length=16).overlap().in_training == 0
    few = Copy(symbols=2, length=3, form="paired", batch_size=5, evaluation_batches=2)
    assert few.overlap(sample=1000) == Overlap(10, 10, 1000)
    some = Copy(symbols=6, length=5)  # 7,776 sequences
    drawn = some.overlap(sample=8000)
    assert 0.5 < drawn.fraction < 0.8  # 1 − exp(−8,000 / 7,776)


def test_a_split_table_has_no_overlap():
    assert ModularAddition(modulus=11).overlap() == Overlap(61, 0)


class Shared(SyntheticTask):
    """A task of a user: two of four possible sequences are the same in training and evaluation."""

    vocabulary = property(lambda self: 4)
    sequence_length = property(lambda self: 2)

    def example(self, key):
        first = jax.random.randint(key, (), 0, 4)
        return next_token(jnp.array([first, 1, 2]), jnp.array([False, True, True]))


class Table(Task):
    """A task of a user with a source of its own."""

    vocabulary = property(lambda self: 9)
    sequence_length = property(lambda self: 2)

    def load(self):
        return TableSource()


class TableSource(Source):
    """Batches of two examples; evaluation has one of them."""

    def batch(self, key, step):
        return rows([[1, 2, 3], [4, 5, 6]])

    def evaluation(self):
        return jax.tree.map(lambda leaf: leaf[None], rows([[1, 2, 3], [1, 2, 4], [7, 8, 9]]))


def rows(tokens):
    tokens = np.array(tokens)
    return Batch(inputs=tokens[:, :2], targets=tokens[:, 1:], weights=np.ones((len(tokens), 2), np.float32))


def test_a_task_of_a_user_is_compared_by_drawn_batches():
    assert Shared(batch_size=4, evaluation_batches=2).overlap() == Overlap(8, 8, 2**14)
    assert Table().overlap(sample=10) == Overlap(3, 1, 10)
    assert Table().load().test() is None
    assert Shared().load().test() is not None


def test_what_is_not_scored_or_padding_does_not_count():
    batch = rows([[1, 2, 3], [1, 2, 3]])
    weights, valid = np.array([[1, 0], [1, 0]], np.float32), np.array([[True, False], [True, False]])
    one, other = example_keys(
        batch.replace(
            weights=weights, valid=valid, inputs=np.array([[1, 5], [1, 6]]), targets=np.array([[2, 7], [2, 8]])
        )
    )
    assert one == other
    assert len(list(example_keys(batch.replace(weights=np.array([[1, 1], [0, 0]], np.float32))))) == 1
