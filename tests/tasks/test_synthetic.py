"""Synthetic tasks: each sequence is compared with a plain definition."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.tasks import AssociativeRecall, Copy, Induction, ModularAddition, Reverse, ScaledIndex, Sort
from flaxformer.tasks import TwoTargetAverage as TwoTargets

ORDERS = {Copy: list, Reverse: lambda row: list(reversed(row)), Sort: sorted}


def batch_of(task):
    return jax.device_get(task.load().batch(jax.random.key(0), 3))


@pytest.mark.parametrize("kind", ORDERS, ids=lambda kind: kind.__name__)
def test_targets_are_the_source_in_the_task_order(kind):
    joined, paired = (batch_of(kind(symbols=5, length=7, form=form)) for form in ("joined", "paired"))
    separator = 5
    for i, source in enumerate(paired.source):
        target = ORDERS[kind](source.tolist())
        assert paired.inputs[i].tolist() == [separator, *target[:-1]]
        assert paired.targets[i].tolist() == target
        sequence = [*source.tolist(), separator, *target]
        assert joined.inputs[i].tolist() == sequence[:-1]
        assert joined.targets[i].tolist() == sequence[1:]
        assert joined.weights[i].tolist() == [0] * 7 + [1] * 7
        assert joined.inputs[i, : joined.prefix[i]].tolist() == [*source.tolist(), separator]
    assert (paired.weights == 1).all()
    assert joined.source is None


def test_sources_are_drawn_from_separate_keys():
    task, key = Copy(symbols=5, length=4, batch_size=3, evaluation_batches=2), jax.random.key(7)
    keys = jax.random.split(jax.random.fold_in(key, 11), 3)
    symbols = [jax.random.randint(own, (4,), 0, 5) for own in keys]
    np.testing.assert_array_equal(task.load().batch(key, 11).inputs[:, :4], symbols)
    keys = jax.random.split(jax.random.split(jax.random.key(2**31 - 1), 2)[1], 3)
    symbols = [jax.random.randint(own, (4,), 0, 5) for own in keys]
    np.testing.assert_array_equal(task.load().evaluation().inputs[1, :, :4], symbols)


def test_recall_answers_are_the_values_of_distinct_keys():
    task = AssociativeRecall(pairs=4, queries=3, keys=6, values=5)
    batch = batch_of(task)
    for inputs, targets, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
        memory = dict(zip(inputs[0:8:2], inputs[1:8:2], strict=True))
        assert len(memory) == 4
        asked = np.flatnonzero(weights)
        assert len(asked) == 3
        assert all(memory[inputs[place]] == targets[place] for place in asked)
        assert (targets[asked] >= task.keys).all()
        np.testing.assert_array_equal(inputs[1:], targets[:-1])


def test_induction_target_follows_the_only_earlier_place_of_the_last_symbol():
    batch = batch_of(Induction(symbols=5, length=7, batch_size=512))
    places, answers = set(), set()
    for inputs, targets, weights in zip(batch.inputs, batch.targets, batch.weights, strict=True):
        earlier = np.flatnonzero(inputs[:-1] == inputs[-1])
        assert len(earlier) == 1
        assert inputs[earlier[0] + 1] == targets[-1] != inputs[-1]
        assert weights.tolist() == [0] * 6 + [1]
        np.testing.assert_array_equal(inputs[1:], targets[:-1])
        places.add(int(earlier[0]))
        answers.add((int(inputs[-1]), int(targets[-1])))
    assert places == set(range(5))  # the pair may stand anywhere before the last token
    assert answers == set(itertools.permutations(range(5), 2))  # and be any two symbols


def test_modular_addition_splits_the_table_into_training_and_evaluation():
    task = ModularAddition(modulus=7, fraction=0.4, split_seed=3, batch_size=64, evaluation_batches=1)
    source = task.load()
    sides = []
    for batch in (source.train, source.held_out, source.batch(jax.random.key(0), 0), source.evaluation()):
        inputs, targets, weights = (np.asarray(part) for part in (batch.inputs, batch.targets, batch.weights))
        a, b, equals = np.moveaxis(inputs, -1, 0)
        assert (equals == 7).all()
        np.testing.assert_array_equal(targets[..., 2], (a + b) % 7)
        np.testing.assert_array_equal(targets[..., :2], inputs[..., 1:])
        assert (weights[..., :2] == 0).all()
        counted = weights[..., 2] > 0
        sides.append(sorted(zip(a[counted].tolist(), b[counted].tolist(), strict=True)))
    train, held_out, batch, evaluation = sides
    assert sorted(train + held_out) == list(itertools.product(range(7), repeat=2))
    assert len(train) == 20  # 0.4 of 49
    assert set(batch) == set(train)  # 64 draws of 20 pairs
    assert evaluation == held_out  # each once, though 64 are asked for
    other = task.replace(split_seed=4).load()
    assert not np.array_equal(other.train.inputs, source.train.inputs)


@pytest.mark.parametrize("normalise", [True, False])
def test_scaled_index_targets_are_multiples_of_the_inputs(normalise):
    batch = batch_of(ScaledIndex(length=5, width=3, normalise=normalise))
    for row in range(16):
        for n in range(5):
            expected = (n + 1) * batch.inputs[row, n] / (5 if normalise else 1)
            np.testing.assert_allclose(batch.targets[row, n], expected, rtol=1e-6)
    assert (batch.weights == np.ones((16, 5))).all()


@pytest.mark.parametrize("normalise", [True, False])
def test_position_blind_reference_is_the_loss_of_the_best_multiple_of_x(normalise):
    task = ScaledIndex(length=7, width=3, normalise=normalise, batch_size=8192)
    batch = batch_of(task)
    x, y = batch.inputs.astype(np.float64), batch.targets.astype(np.float64)
    slope = (x * y).sum() / (x * x).sum()
    assert task.references() == {"position-blind": pytest.approx(((y - slope * x) ** 2).mean(), rel=0.02)}
    numbers = [n / (7 if normalise else 1) for n in range(1, 8)]
    assert task.references()["position-blind"] == pytest.approx(np.var(numbers))


@pytest.mark.long
def test_targets_are_the_mean_of_two_values_selected_by_keys():
    task = TwoTargets(items=5, key_width=3, value_width=2, batch_size=64)
    batch = batch_of(task)
    found = set()
    for inputs, target in zip(batch.inputs, batch.targets, strict=True):
        keys, gap, values = np.split(inputs[:-1], [3, 6], axis=1)
        assert (gap == 0).all()
        assert (inputs[-1, 6:] == 0).all()
        places = [int(np.argmin(np.abs(keys - asked).sum(1))) for asked in (inputs[-1, :3], inputs[-1, 3:6])]
        np.testing.assert_array_equal(keys[places].ravel(), inputs[-1, :6])
        np.testing.assert_allclose(target, (values[places[0]] + values[places[1]]) / 2, rtol=1e-6)
        found.add(tuple(places))
    assert found == set(itertools.permutations(range(5), 2))
    assert batch.weights.shape == (64,)


def test_references_of_two_targets_equal_measured_losses():
    task = TwoTargets(items=5, key_width=3, value_width=2, batch_size=8192)
    batch = batch_of(task)
    keys, values, query = batch.inputs[:, :-1, :3], batch.inputs[:, :-1, 6:], batch.inputs[:, -1]
    first = np.take_along_axis(values, np.abs(keys - query[:, None, :3]).sum(-1).argmin(-1)[:, None, None], 1)[:, 0]
    answers = {"all values": values.mean(1), "one target": first / 2}
    losses = {name: ((answer - batch.targets) ** 2).mean() for name, answer in answers.items()}
    assert task.references() == {name: pytest.approx(loss, rel=0.03) for name, loss in losses.items()}


def test_symbols_are_uniform():
    batch = batch_of(Reverse(symbols=3, length=5, batch_size=4096, form="paired"))
    counts = np.bincount(batch.source.ravel(), minlength=3)
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 4 * math.sqrt(2 / 9 / counts.sum())
    assert jnp.issubdtype(batch.prefix.dtype, jnp.integer)
