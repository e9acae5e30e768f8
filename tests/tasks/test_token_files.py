"""Prepared tokens: equal batches from the device and from the file, and separate documents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import GRU, Attention, Dense, LearnedPositions
from flaxformer.config import Block, ModelConfig, recurrent_model
from flaxformer.core.params import fold_in_name
from flaxformer.data import open_tokens, prepare
from flaxformer.system.errors import UserError
from flaxformer.tasks import MaskedTokens, TextFiles, TokenFiles, token_files
from flaxformer.tasks.host import gather_batches, prefetch
from flaxformer.tasks.text import TextSource, random_starts
from flaxformer.training import AdamW, Run, Training, start, train_chunk

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def path(files, tmp_path_factory):
    """Folder with short documents, each with an end token."""
    folder = tmp_path_factory.mktemp("documents")
    for i in range(60):
        (folder / f"{i}.txt").write_text(chr(97 + i % 26) * (3 + i % 11))
    prepare(folder, folder / "tokens", end=True)
    return str(folder / "tokens")


def task_of(path, **changes):
    return TokenFiles(path=path, **({"length": 29, "batch_size": 7, "evaluation_batches": 2} | changes))


def gather(task, key=KEY):
    """Function that gathers the batches of steps on the host."""
    return functools.partial(gather_batches, task.load(), key)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("pack", ["none", "documents"])
def test_device_and_host_batches_are_equal(path, monkeypatch, pack):
    task = task_of(path, pack=pack)
    near = task.load()
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    far = task.load()
    assert (type(near), type(far)) == (TextSource, token_files.MappedText)
    for one, other in [
        (near.batch(KEY, 5), far.batch(KEY, 5)),
        (near.batch(KEY, 6), far.batch(KEY, 6)),
        (near.evaluation(), far.evaluation()),
    ]:
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_windows_are_parts_of_the_text(files):
    tokens = TokenFiles(path=str(files / "one.tokens"), length=11)
    text = TextFiles(path=str(files / "one"), length=11)
    prepared, joined = tokens.tokens()[0].tobytes(), text.tokens()[0].tobytes()
    assert sorted(joined.split(b"\n")) == sorted(prepared[a:b] for a, b in documents(tokens.folder.train_documents))
    batch = tokens.load().batch(KEY, 0)
    assert all(bytes(row.astype(np.uint8)) in prepared for row in np.asarray(batch.inputs))


def documents(starts):
    return list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))


def test_packed_windows_equal_a_plain_loop(path):
    task = task_of(path, pack="documents")
    folder = open_tokens(path)
    starts = np.asarray(jax.random.randint(jax.random.fold_in(KEY, 5), (7,), 0, folder.train.size - 29))
    batch = jax.device_get(task.load().batch(KEY, 5))
    of = [i for i, (a, b) in enumerate(documents(folder.train_documents)) for _ in range(a, b)]
    for row, begin in enumerate(starts.tolist()):
        place = 0
        for t in range(29):
            at = begin + t
            place = place + 1 if t and of[at] == of[at - 1] else 0
            assert batch.inputs[row, t] == folder.train[at]
            assert batch.targets[row, t] == folder.train[at + 1]
            assert batch.weights[row, t] == (of[at] == of[at + 1])
            assert batch.segments[row, t] == of[at] - of[begin]
            assert batch.positions[row, t] == place
    assert batch.weights.min() == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("mask_pattern", ["causal", "bidirectional"])
def test_documents_in_a_window_do_not_influence_each_other(path, mask_pattern):
    config = ModelConfig(
        vocabulary=257,
        layers=2,
        d_model=12,
        attention=Attention(heads=3),
        feed_forward=Dense(d_ff=7),
        mask_pattern=mask_pattern,
    )
    config = config.replace(positions=LearnedPositions(max_length=29))
    batch = task_of(path, pack="documents").load().batch(KEY, 5)
    params = model.init(jax.random.key(0), config)
    changed = np.asarray(batch.segments == 1)
    other = batch.replace(inputs=jnp.where(changed, 99, batch.inputs))
    before, after = (np.asarray(APPLY(params, config, given)) for given in (batch, other))
    np.testing.assert_array_equal(before[~changed], after[~changed])
    assert not np.array_equal(before[changed], after[changed])
    # And its place in the window is nothing to it: alone, it is what it was.
    inputs, valid = np.zeros((7, 29), np.int32), np.zeros((7, 29), bool)
    mine = [np.nonzero(np.asarray(batch.segments[row]) == 2)[0] for row in range(7)]
    for row, places in enumerate(mine):
        inputs[row, : len(places)] = batch.inputs[row][places]
        valid[row, : len(places)] = True
    alone = np.asarray(APPLY(params, config, batch.replace(inputs=inputs, valid=valid, segments=None, positions=None)))
    for row, places in enumerate(mine):
        np.testing.assert_allclose(alone[row, : len(places)], before[row, places], atol=2e-6)


APPLY = jax.jit(lambda params, config, batch: model.apply(params, config, batch.inputs, **batch.arguments))


@pytest.mark.slow
def test_training_on_prefetched_chunks_equals_training_on_the_device(path, monkeypatch):
    task = task_of(path, pack="documents", batch_size=3)
    run = Run(
        model=ModelConfig(
            vocabulary=257, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=7)
        ),
        task=task,
        optimizer=AdamW(learning_rate=1e-2),
        training=Training(steps=4),
    )
    run = jax.tree.map(jnp.asarray, run)
    train = jax.jit(train_chunk, static_argnames="steps")
    state, expected = start(run), []
    for _ in range(2):
        state, metrics = train(state, run, task.load(), steps=2)
        expected.append(metrics["loss"])
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    other, found = start(run), []
    for chunk, steps in prefetch(gather(task, fold_in_name(jax.random.key(0), "data")), 0, 4, 2):
        other, metrics = train(other, run, chunk, steps=steps)
        found.append(metrics["loss"])
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_last_chunk_may_be_shorter(path, monkeypatch):
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    source = task_of(path).load()
    chunks = list(prefetch(gather(task_of(path)), 3, 8, 2))
    assert [(int(chunk.first), steps) for chunk, steps in chunks] == [(3, 2), (5, 2), (7, 1)]
    for chunk, steps in chunks:
        for step in range(int(chunk.first), int(chunk.first) + steps):
            np.testing.assert_array_equal(chunk.batch(KEY, step).inputs, source.batch(KEY, step).inputs)
    assert list(prefetch(gather(task_of(path)), 8, 8, 2)) == []


@pytest.mark.long
def test_masked_tokens_are_equal_on_device_and_host(path, monkeypatch):
    task = MaskedTokens(text=TokenFiles(path=path, length=29, pack="documents"), batch_size=3)
    near, plain = task.load().batch(KEY, 2), task.text.replace(batch_size=3).load().batch(KEY, 2)
    np.testing.assert_array_equal(near.targets, plain.inputs)
    np.testing.assert_array_equal(near.segments, plain.segments)
    np.testing.assert_array_equal(near.positions, plain.positions)
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    (chunk, _), *_ = prefetch(gather(task), 2, 4, 2)
    jax.tree.map(np.testing.assert_array_equal, chunk.batch(KEY, 2), near)


def test_host_source_is_refused_inside_a_compiled_function(path, monkeypatch):
    monkeypatch.setattr(token_files, "RESIDENT", 100)
    source = task_of(path).load()
    with pytest.raises(
        UserError, match="TokenFiles: the data stay on the host, where compiled functions cannot read them"
    ):
        jax.jit(lambda source: source.batch(KEY, jnp.int32(0)))(source)


@pytest.mark.parametrize("size", [2**24 + 29 + 5, 2**30 + 3, 5 * 2**32 + 3])
def test_window_starts_are_uniform_in_long_texts(size):
    task = TokenFiles(path="", length=29, batch_size=4001)
    starts = random_starts(np, KEY, 0, task, size)
    assert starts.dtype == np.int64
    assert 0 <= starts.min() < starts.max() < size - 29
    assert np.abs(np.bincount(starts * 4 // (size - 29), minlength=4) / 4001 - 0.25).max() < 0.03
    assert np.bincount(starts % 2, minlength=2).min() > 0.45 * 4001
    if size < 2**31:
        np.testing.assert_array_equal(random_starts(jnp, KEY, 0, task, size), starts)


def test_references_are_means_over_scored_targets(path):
    task = task_of(path, pack="documents")
    found, every = task.references(), task_of(path).references()
    assert found["bigram"] < every["bigram"]
    assert set(found) == {"unigram", "bigram"}


def test_fingerprint_has_the_digests_of_the_files(path):
    found = task_of(path).fingerprint()
    assert found["train.bin_sha256"] == open_tokens(path).description["files"]["train.bin"]["sha256"]
    assert found["train_tokens"] == open_tokens(path).train.size


def test_invalid_settings_are_refused(path):
    with pytest.raises(UserError, match=r"the training text has \d+ tokens; expected more than length 4000"):
        task_of(path, length=4000).load()
    with pytest.raises(UserError, match=r"which has no data.json; expected a folder that `prepare` wrote"):
        task_of("nowhere").load()


def test_packed_documents_need_a_mixer_that_reads_the_mask(path):
    recurrent = recurrent_model(GRU(), vocabulary=258, d_model=8)
    hybrid = ModelConfig(vocabulary=258, layers=2, d_model=8, pattern=(Block(), Block(attention=GRU())))
    packed = task_of(path, pack="documents")
    for task in (packed, MaskedTokens(text=TokenFiles(path=path, pack="documents", length=29))):
        for config, field in ((recurrent, "attention"), (hybrid, "pattern.1.attention")):
            with pytest.raises(UserError, match=f"model.{field} is GRU, which reads no mask; expected a mixer"):
                Run(model=config, task=task)
    assert Run(model=recurrent, task=task_of(path)).task.vocabulary == 257
