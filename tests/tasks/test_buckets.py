"""Buckets by length: equal pairs, loss and gradient, with less padding."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, BatchNorm, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.params import fold_in_name
from flaxformer.core.paths import replace_at
from flaxformer.diagnostics import diagnose
from flaxformer.system.errors import UserError
from flaxformer.tasks import PairedFiles, PairedTokens
from flaxformer.tasks.batch import concat_parts
from flaxformer.training import Run, Training, start, train_chunk
from flaxformer.training.loss import loss, summed_loss
from flaxformer.training.step import backward

BUCKETS = 3


def bucketed(files, form="paired", **changes):
    """Return a run on pairs of words."""
    fields = {"max_length": 5, "tokenizer": str(files / "one.json"), "batch_size": 6, "evaluation_batches": 2}
    paths = {"source_path": str(files / "one.en"), "target_path": str(files / "two.en")}
    task = PairedFiles(**(paths | fields | {"form": form, "buckets": BUCKETS} | changes))
    model = ModelConfig(
        vocabulary=17,
        layers=1,
        d_model=6,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=5),
        mask_pattern="prefix",
    )
    return Run(model=model.with_encoder() if form == "paired" else model, task=task, training=Training(steps=2))


def rows(table):
    """Return source, inputs and scored targets of every example, without padding."""
    table = jax.device_get(table)
    sources = [()] * len(table.inputs) if table.source is None else map(np.extract, table.source_valid, table.source)
    read = [tuple(np.extract(*both)) for both in zip(table.valid, table.inputs, strict=True)]
    scored = [tuple(np.extract(*both)) for both in zip(table.weights, table.targets, strict=True)]
    return list(zip(map(tuple, sources), read, scored, strict=True))


def lengths(row, form):
    """Return the key by which pairs are sorted; scored targets include the end, inputs include the start."""
    source, read, scored = row
    both = (len(source), len(scored) - 1)
    return (max(both), min(both)) if form == "paired" else (len(read) - 1,)


@pytest.mark.parametrize("form", ["paired", "joined"])
def test_pairs_are_sorted_into_buckets_by_length(files, form):
    run = bucketed(files, form)
    source, alone = run.task.load(), replace_at(run, {"task.buckets": 1})
    tables = [rows(table) for table in source.buckets]
    whole = alone.task.load()
    assert collections.Counter(row for table in tables for row in table) == collections.Counter(rows(whole.train))
    counts = [len(table) for table in tables]
    assert max(counts) - min(counts) <= 1
    found = [[lengths(row, form) for row in table] for table in tables]
    in_order = list(itertools.chain(*found))
    assert in_order == sorted(in_order)
    assert found[0][0] < found[1][0] < found[2][-1]
    for table in source.buckets:
        columns = [table.valid, *([] if table.source is None else [table.source_valid])]
        assert all(column.any(0).all() for column in columns)
    jax.tree.map(np.testing.assert_array_equal, source.evaluation(), whole.evaluation())
    shapes = [part.inputs.shape[1] + (0 if part.source is None else part.source.shape[1]) for part in source.buckets]
    assert run.tokens_per_step == 2 * sum(shapes) < alone.tokens_per_step == 6 * 11


def test_batches_have_equal_numbers_of_rows_from_every_bucket(files):
    source = bucketed(files).task.load()
    draw = jax.jit(lambda step: source.batch(jax.random.key(0), step))
    drawn = [jax.tree.map(np.asarray, draw(step)) for step in range(80)]
    for i, table in enumerate(source.buckets):
        assert {part.inputs.shape for part in (parts[i] for parts in drawn)} == {(2, table.inputs.shape[1])}
        assert {row for parts in drawn for row in rows(parts[i])} == set(rows(table))
    same = [np.array_equal(a.inputs, b.inputs) for a, b in zip(drawn[0], drawn[1], strict=True)]
    assert not all(same)


def test_concat_parts_returns_the_rows_of_all_parts(files):
    parts = bucketed(files).task.load().batch(jax.random.key(0), 0)
    assert rows(concat_parts(parts)) == [row for part in parts for row in rows(part)]
    assert concat_parts(parts[0]) is parts[0]


def padded(parts):
    """Return the rows of all parts in one batch, with arbitrary contents of padding."""
    longest = {name: max(getattr(part, name).shape[1] for part in parts) for name in ("inputs", "source")}
    found = {}
    for name in ("inputs", "targets", "weights", "valid", "source", "source_valid"):
        length = longest["source" if name.startswith("source") else "inputs"]
        filler = 0 if name in ("weights", "valid", "source_valid") else 3
        own = [np.asarray(getattr(part, name)) for part in parts]
        found[name] = jnp.asarray(
            np.concatenate([np.pad(x, ((0, 0), (0, length - x.shape[1])), constant_values=filler) for x in own])
        )
    return parts[0].replace(**found, prefix=jnp.concatenate([part.prefix for part in parts]))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["paired", "joined"])
def test_loss_and_gradient_of_parts_equal_those_of_one_batch(files, form):
    run = replace_at(bucketed(files, form, batch_size=12), {"training.label_smoothing": 0.1})
    split = replace_at(run, {"training.micro_batches": 2})
    state, parts = jax.jit(start)(run), run.task.load().batch(jax.random.key(0), 0)
    assert len({part.inputs.shape for part in parts}) > 1
    if form == "joined":
        empty = [jnp.zeros((4, part.inputs.shape[1]), int) for part in parts]
        together = padded([part.replace(source=x, source_valid=x > 0) for part, x in zip(parts, empty, strict=True)])
        together = together.replace(source=None, source_valid=None)
    else:
        together = padded(parts)

    @jax.jit
    def found(state, parts, together):
        (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, run, together, None)
        ways = [(run, False)] if form == "joined" else [(run, False), (split, False), (run, True)]
        return (value, gradient), [backward(state, way, parts, keep)[:2] for way, keep in ways]

    one, others = found(state, parts, together)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(one)) > 0.01
    close = lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6)  # noqa: E731
    for other in others:
        jax.tree.map(close, one, other)


def test_each_part_draws_its_own_dropout(files):
    run = replace_at(bucketed(files, "joined"), {"model.dropout": 0.5})
    state, part = jax.jit(start)(run), run.task.load().batch(jax.random.key(0), 0)[-1]

    @jax.jit
    def values(state, part):
        alone = jax.vmap(lambda key: loss(state.params, run, part, key)[0])(jax.random.split(jax.random.key(3)))
        total, (count, _) = summed_loss(state.params, run, (part, part), jax.random.key(3))
        return total / count, alone

    together, alone = values(state, part)
    np.testing.assert_allclose(together, alone.mean(), rtol=1e-5)
    assert abs(float(alone[0] - alone[1])) > 1e-3


@pytest.mark.slow
def test_run_with_buckets_is_trained_and_diagnosed(files):
    run = bucketed(files)
    source, state = run.task.load(), jax.jit(start)(run)
    after, metrics = jax.jit(train_chunk, static_argnums=3)(state, run, source, 2)
    assert int(after.diverged_at) == -1
    assert not np.array_equal(after.params.head.matrix, state.params.head.matrix)
    found = diagnose(state, run, source.batch(fold_in_name(jax.random.key(0), "data"), 0))
    np.testing.assert_allclose(found.loss, metrics["loss"][0], rtol=1e-5)


def test_invalid_bucket_counts_are_refused(files):
    with pytest.raises(UserError, match=r"buckets is 3; expected a divisor of batch_size 8"):
        PairedTokens(path="nowhere", buckets=3, batch_size=8)
    with pytest.raises(UserError, match=r"buckets is 64; expected at most the number of training pairs, 5\d"):
        bucketed(files, buckets=64, batch_size=64).task.load()
    run = bucketed(files, batch_size=6)
    with pytest.raises(
        UserError, match=r"micro_batches is 4; expected a divisor of task.batch_size 6 / task.buckets 3"
    ):
        replace_at(run, {"training.micro_batches": 4})
    with pytest.raises(UserError, match=r"task.buckets is 3 with BatchNorm, which needs the whole batch; expected 1"):
        replace_at(run, {"model.norm_kind": BatchNorm()})
