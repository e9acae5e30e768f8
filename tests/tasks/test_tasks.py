"""Tasks: pure batches, disjoint sides, and what each sequence must look like."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.struct import UserError
from flaxformer.tasks import AssociativeRecall, Copy, StandardLibrary, TextFiles
from flaxformer.tasks.corpus import by_file_name, count_model_losses, standard_library

TEXT = b"the quick brown fox jumps over the lazy dog; " * 40


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


def tasks(file):
    return [
        StandardLibrary(length=11, batch_size=3, evaluation_batches=2),
        TextFiles(path=str(file), length=11, batch_size=3, evaluation_batches=2),
        Copy(symbols=5, length=4, batch_size=3, evaluation_batches=2),
        AssociativeRecall(pairs=3, queries=2, keys=5, values=7, batch_size=3, evaluation_batches=2),
    ]


def test_batches_are_pure_functions_of_key_and_step(file):
    for task in tasks(file):
        source, key = task.load(), jax.random.key(0)
        one = source.batch(key, 5)
        jax.tree.map(np.testing.assert_array_equal, one, jax.jit(lambda s, k: s.batch(k, 5))(source, key))
        for other in (source.batch(key, 6), source.batch(jax.random.key(1), 5)):
            assert not np.array_equal(one.inputs, other.inputs)


def test_shapes_ranges_and_alignment(file):
    for task in tasks(file):
        source = task.load()
        batch, evaluation = source.batch(jax.random.key(0), 0), source.evaluation()
        assert batch.inputs.shape == batch.targets.shape == batch.weights.shape == (3, task.sequence_length)
        assert evaluation.inputs.shape == (2, 3, task.sequence_length)
        for part in (batch, evaluation):
            assert int(part.inputs.min()) >= 0
            assert int(jnp.maximum(part.inputs, part.targets).max()) < task.vocabulary
            np.testing.assert_array_equal(part.inputs[..., 1:], part.targets[..., :-1])
            assert float(part.weights.sum()) > 0


def test_copy_asks_for_the_first_half_again():
    task = Copy(symbols=5, length=4)
    batch = task.load().batch(jax.random.key(0), 0)
    scored = np.asarray(batch.weights) > 0
    np.testing.assert_array_equal(np.asarray(batch.targets)[scored].reshape(-1, 4), batch.inputs[:, :4])
    assert (np.asarray(batch.inputs)[:, 4] == task.symbols).all()


def test_recall_answers_are_the_values_of_distinct_keys():
    task = AssociativeRecall(pairs=4, queries=3, keys=6, values=5)
    batch = jax.device_get(task.load().batch(jax.random.key(0), 0))
    for inputs, targets, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
        memory = dict(zip(inputs[0:8:2], inputs[1:8:2], strict=True))
        assert len(memory) == 4
        asked = np.flatnonzero(weights)
        assert len(asked) == 3
        assert all(memory[inputs[place]] == targets[place] for place in asked)
        assert (targets[asked] >= task.keys).all()


def test_text_windows_come_from_their_own_side(file):
    task = TextFiles(path=str(file), length=11, batch_size=4, evaluation_batches=3)
    corpus, source = task.corpus(), task.load()
    assert corpus.train.tobytes() + corpus.validation.tobytes() == TEXT
    for side, batch in ((corpus.train, source.batch(jax.random.key(0), 0)), (corpus.validation, source.evaluation())):
        for inputs, targets in zip(batch.inputs.reshape(-1, 11), batch.targets.reshape(-1, 11), strict=True):
            window = bytes(np.append(inputs, targets[-1]).astype(np.uint8))
            assert window in side.tobytes()


def test_the_standard_library_is_real_text_split_by_file_with_a_fingerprint():
    corpus = standard_library()
    assert corpus.train.size > 4_000_000
    assert 0.03 < corpus.validation.size / corpus.train.size < 0.3
    for text in (b"def dataclass(", b"class OrderedDict("):
        assert (text in corpus.train.tobytes()) != (text in corpus.validation.tobytes())
    print_ = corpus.fingerprint()
    assert set(print_) == {"sha256", "files", "train_bytes", "validation_bytes"}
    assert len(print_["sha256"]) == 64


def test_a_folder_is_split_by_name_and_the_fingerprint_sees_every_byte(tmp_path):
    for i in range(40):
        (tmp_path / f"{i}.txt").write_bytes(b"%d " % i * 50)
    files = sorted(tmp_path.glob("*.txt"))
    whole, fewer = by_file_name(tmp_path, files), by_file_name(tmp_path, files[:20])
    assert whole.train.size > whole.validation.size > 0
    for name, side in ((f.name, f.read_bytes()) for f in files[:20]):
        in_validation = side in whole.validation.tobytes()
        assert in_validation == (side in fewer.validation.tobytes()), name
    files[3].write_bytes(b"x" + files[3].read_bytes()[1:])
    assert by_file_name(tmp_path, files).digest != whole.digest


def test_count_models_against_a_plain_loop():
    rng = np.random.default_rng(0)
    train, tokens = rng.integers(97, 105, 500).astype(np.uint8), rng.integers(97, 107, 40)
    inputs, targets = tokens[:-1], tokens[1:]
    singles = [list(train).count(b) + 1 for b in range(256)]
    pairs = list(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    unigram = -np.mean([np.log(singles[t] / sum(singles)) for t in targets])
    bigram = -np.mean(
        [
            np.log((pairs.count((i, t)) + 1) / (sum(p[0] == i for p in pairs) + 256))
            for i, t in zip(inputs, targets, strict=True)
        ]
    )
    losses = count_model_losses(train, inputs, targets)
    assert losses["unigram"] == pytest.approx(unigram)
    assert losses["bigram"] == pytest.approx(bigram)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: TextFiles(path=str(p / "missing")).load(), "missing.*neither a file nor a folder"),
        (lambda p: TextFiles(path=str(p), pattern="*.rst").load(), r"no file matching '\*\.rst'"),
        (
            lambda p: TextFiles(path=str(p / "text.txt"), length=4000).load(),
            "1620 bytes; expected more than length 4000",
        ),
        (lambda p: AssociativeRecall(pairs=9, keys=8), "pairs is 9; expected at most.*8"),
    ],
)
def test_mistakes_are_named(file, make, message):
    with pytest.raises(UserError, match=message):
        make(file.parent)


def everything(task):
    """All that a task gives a training run."""
    source = task.load()
    return jax.tree.leaves((source.batch(jax.random.key(0), 0), source.evaluation(), source.train, source.validation))


@pytest.mark.parametrize(
    "change",
    [
        {"path": "other"},
        {"pattern": "**/*.md"},
        {"validation_tenths": 5},
        {"length": 13},
        {"batch_size": 4},
        {"evaluation_batches": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_of_a_text_task_changes_what_it_gives(tmp_path, change):
    for folder, number in (("texts", 0), ("other", 1)):
        (tmp_path / folder).mkdir()
        for i in range(30):
            (tmp_path / folder / f"{i}.txt").write_text(f"{folder} {i * 7 + number}; " * 20)
            (tmp_path / folder / f"{i}.md").write_text(f"# {folder} {i * 7 + number}\n" * 20)
    base = TextFiles(path=str(tmp_path / "texts"), length=11, batch_size=3, evaluation_batches=2)
    if "path" in change:
        change = {"path": str(tmp_path / "other")}
    before, after = everything(base), everything(base.replace(**change))
    assert any(x.shape != y.shape or not np.array_equal(x, y) for x, y in zip(before, after, strict=True))


def test_the_fields_of_text_tasks_are_those_that_are_tested():
    own = {"length", "batch_size", "evaluation_batches"}
    assert {field.name for field in dataclasses.fields(StandardLibrary)} == own
    assert {field.name for field in dataclasses.fields(TextFiles)} == own | {"path", "pattern", "validation_tenths"}
