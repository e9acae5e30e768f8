"""Records with random access: epochs of permutations, held-out records, and the data sources of grain."""

import jax
import numpy as np
import pytest
from study.tiny import BASELINE, run, tiny

from flaxformer.runner.execution import Execution
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError
from flaxformer.tasks import Batch, Records
from flaxformer.tasks.records import permuted
from flaxformer.training import start, train_step

KEY = jax.random.key(3)
TOKENS = np.random.default_rng(0).integers(0, 11, (97, 6))
TOKENS[:, 0] = np.arange(97) % 11
TOKENS[:, 1] = np.arange(97) // 11


class Sequences(Records):
    """Token ids of an array."""

    @property
    def vocabulary(self):
        return 11

    @property
    def sequence_length(self):
        return 5

    def records(self):
        return TOKENS

    def example(self, record):
        return Batch(inputs=record[:-1], targets=record[1:], weights=np.ones(5, np.float32))


def task_of(kind=Sequences, **fields):
    return kind(**({"batch_size": 7, "evaluation_batches": 2, "evaluation_batch_size": 2} | fields))


def numbers(batch):
    """The records in a batch, by their first two tokens."""
    inputs = np.asarray(batch.inputs)
    return (inputs[..., 0] + 11 * inputs[..., 1]).reshape(-1).tolist()


@pytest.mark.parametrize("count", [*range(1, 18), 64, 65, 1000])
def test_places_are_permuted(count):
    round_keys = np.asarray(jax.random.bits(KEY, (6,)))
    assert sorted(permuted(np.arange(count), count, round_keys)) == list(range(count))


def test_permutations_are_uniform_and_differ_by_key():
    drawn = [permuted(np.arange(4), 4, np.asarray(jax.random.bits(jax.random.key(seed), (6,)))) for seed in range(1200)]
    counts = np.unique([tuple(x) for x in drawn], axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 50) ** 2 / 50).sum() < 49.7, "χ² with 23 degrees of freedom, p = 0.001"
    many = permuted(np.arange(5000), 10**12, np.asarray(jax.random.bits(KEY, (6,))))
    assert len({*many.tolist()}) == 5000
    assert abs(many.mean() / 10**12 - 0.5) < 0.02


@pytest.mark.parametrize("tenths", [1, 3])
def test_every_training_record_occurs_once_per_epoch(tenths):
    task = task_of(validation_tenths=tenths)
    source = task.load()
    steps = [numbers(source.batch(KEY, step)) for step in range(2 * source.training_count)]
    drawn = np.array(steps).reshape(-1, source.training_count)
    training = [i for i in range(97) if i % 10 >= tenths]
    assert all(sorted(epoch) == training for epoch in drawn.tolist())
    assert len({tuple(epoch) for epoch in drawn.tolist()}) == len(drawn)
    assert numbers(task.load().batch(KEY, 5)) == steps[5]
    assert numbers(source.batch(jax.random.key(4), 5)) != steps[5]


@pytest.mark.parametrize(("tenths", "size"), [(1, 2), (1, 4), (3, 5), (1, 9)])
def test_held_out_records_are_in_the_evaluation_set_or_the_test_set(tenths, size):
    source = task_of(validation_tenths=tenths, evaluation_batch_size=size).load()
    held_out = {i for i in range(97) if i % 10 < tenths}
    evaluation, test = source.evaluation(), source.test()
    scored = [n for n, w in zip(numbers(evaluation), evaluation.weights[..., 0].reshape(-1), strict=True) if w]
    assert len({*scored}) == len(scored) == min(2 * size, len(held_out))
    assert evaluation.inputs.shape == (2, size, 5)
    assert {*scored} <= held_out
    tested = set() if test is None else {*numbers(test)}
    assert tested <= held_out - {*scored}
    assert (test is None) == ({*scored} == held_out)


def test_the_fingerprint_has_number_examples_and_version(monkeypatch):
    before = task_of(version="of May").fingerprint()
    assert before["records"] == 97
    assert before["version"] == "of May"
    monkeypatch.setitem(globals(), "TOKENS", (TOKENS + 1) % 11)
    after = task_of(version="of May").fingerprint()
    assert {name for name in before if before[name] != after[name]} == {"sample_sha256"}


def test_overlap_and_notes():
    assert task_of().overlap() == (4, 0, 16387)
    assert task_of().notes() == ["87 records for training and 10 (every tenth) for validation and test."]


@pytest.mark.long
def test_a_study_trains_on_the_batches(tmp_path):
    model = BASELINE.model.replace(vocabulary=11)
    study = tiny(baseline=BASELINE.replace(model=model, task=task_of()), axes=(), claims=(), seeds=[3, 5])
    for _ in run(study, Execution(output=tmp_path, devices=1, chunk_steps=2)):
        pass
    rows = Store(tmp_path).rows()
    for trial in study.trials():
        state, losses, step = start(trial.run), [], jax.jit(train_step)
        for i in range(6):
            state, metrics = step(state, trial.run, trial.run.task.load().batch(trial.run.data_key, i))
            losses.append(float(metrics["loss"]))
        np.testing.assert_allclose(rows[trial.name]["train_loss_curve"], losses, rtol=1e-5)
        assert "test_loss" in rows[trial.name]


class Few(Sequences):
    """One record."""

    def records(self):
        return TOKENS[:1]


class Iterated(Sequences):
    """Records without random access."""

    def records(self):
        return iter(TOKENS)


class Uneven(Sequences):
    """Records of different lengths."""

    def example(self, record):
        return super().example(record) if record[0] else Batch(record[:2], record[:2], np.ones(2))


class Pair(Sequences):
    """Examples that are no batches."""

    def example(self, record):
        return record[:-1], record[1:]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Few, r"Few.records\(\) has 1 records; expected more than 1"),
        (Iterated, r"Iterated.records\(\) is .*iterator.*; expected records with `len` and an index"),
        (Uneven, r"Uneven.example of records \d+ and \d+ differ: .*; expected equal shapes"),
        (Pair, r"Pair.example of record \d+ is tuple; expected a Batch of NumPy arrays"),
    ],
)
def test_unsuitable_records_are_refused(kind, message):
    with pytest.raises(UserError, match=message):
        [task_of(kind).load().batch(KEY, step) for step in range(13)]


def test_array_record_files_of_grain(tmp_path):
    grain = pytest.importorskip("grain")
    writing = pytest.importorskip("array_record.python.array_record_module")
    writer = writing.ArrayRecordWriter(str(tmp_path / "tokens.array_record"), "group_size:1")
    for row in TOKENS:
        writer.write(row.astype(np.uint16).tobytes())
    writer.close()

    class Filed(Sequences):
        """Token ids in a file."""

        def records(self):
            return grain.sources.ArrayRecordDataSource(str(tmp_path / "tokens.array_record"))

        def example(self, record):
            return super().example(np.frombuffer(record, np.uint16).astype(np.int64))

    filed, plain = task_of(Filed).load(), task_of().load()
    jax.tree.map(np.testing.assert_array_equal, filed.batch(KEY, 20), plain.batch(KEY, 20))
    jax.tree.map(np.testing.assert_array_equal, filed.evaluation(), plain.evaluation())
    assert task_of(Filed).fingerprint() == task_of().fingerprint()
