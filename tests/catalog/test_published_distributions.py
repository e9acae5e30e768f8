"""Examples of the catalog's tasks are distributed as those of the published generators, by counts of both.

`tests/golden/make_published_tasks_golden.py` writes the counts of the published ones.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from flaxformer.catalog import (
    Brevo,
    Compression,
    Depo,
    FuzzyRecall,
    InContextRecall,
    InContextRegression,
    Lano,
    Mano,
    Memorization,
    MultiQueryRecall,
    NeedleRetrieval,
    SelectiveCopying,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "published_tasks.json").read_text())
COUNT = 4000
LEAST = 1e-4
"""Least p-value: with about 35 tests and one fixed seed, a wrong alarm in 300 changes of a generator."""
CORRELATED = {
    **dict.fromkeys(("recall tokens", "noisy tokens"), 128),
    **dict.fromkeys(("fuzzy tokens", "fuzzy training tokens"), 32),
    **dict.fromkeys(("copying tokens", "compression tokens", "depo letters"), 8),
}
"""Tokens that occur together, as a value of the same key does: so many count as one draw."""


def drawn(task, *, training=False):
    return jax.device_get(
        jax.jit(lambda key: task.replace(batch_size=COUNT).draw(key, training=training))(jax.random.key(1))
    )


def recall(task, _):
    batch = drawn(task)
    places = np.nonzero(batch.weights)[1]
    yield "MQAR places", places, np.arange(8, 66, 2)
    yield "MQAR keys", batch.inputs[:, 0:8:2], np.linspace(1, 4096, 17)
    yield "MQAR values", batch.inputs[:, 1:8:2], np.linspace(4096, 8192, 17)


def in_context(task, name):
    batch = drawn(task)
    yield f"{name} scored", batch.weights.sum(1), np.arange(48, 60) if name == "recall" else np.arange(24, 60, 2)
    yield f"{name} tokens", batch.inputs, np.arange(task.symbols + 1)
    if task.noise:
        yield "noisy noise", (batch.inputs >= 16).sum(1), np.arange(0, 60, 2)


def fuzzy(task, _):
    batch, training = drawn(task), drawn(task, training=True)
    yield "fuzzy scored", batch.weights.sum(1), np.arange(14)
    yield "fuzzy padding", (batch.inputs == 15).sum(1), np.arange(18)
    yield "fuzzy tokens", batch.inputs, np.arange(17)
    yield "fuzzy training padding", (training.inputs == 15).sum(1), np.arange(18)
    yield "fuzzy training tokens", training.inputs, np.arange(17)


def copying(task, _):
    inputs = drawn(task).inputs
    places = np.nonzero(inputs < 14)[1].reshape(COUNT, 16)
    yield "copying first", places[:, 0], np.arange(0, 40, 3)
    yield "copying eighth", places[:, 7], np.arange(60, 180, 8)
    yield "copying tokens", inputs, np.arange(17)


def memorization(task, _):
    batch = drawn(task)
    yield "memorization keys", batch.inputs[:, ::2], np.arange(0, 129, 8)
    assert len(set(batch.targets[:, 1::2].reshape(-1))) == 127  # the table is another, and so are its counts


def compression(task, _):
    yield "compression tokens", drawn(task).inputs, np.arange(17)


def depo(task, _):
    batch = drawn(task, training=True)
    tokens, valid = batch.inputs, batch.valid
    steps = tokens[valid & (tokens >= 10) & (tokens < 18)] - 9
    yield "depo length", valid.sum(1) + 1, np.arange(10, 300, 12)
    yield "depo steps", steps, np.arange(1, 10)
    yield "depo scored", batch.weights.sum(1), np.arange(6, 46, 2)
    text = np.where(valid, tokens, 99)
    last = np.take_along_axis(batch.targets, valid.sum(1, keepdims=True) - 1, 1)
    yield "depo letters", np.concatenate([text[text < 10], last[last < 10]]) + 1, np.arange(1, 12)


def brevo(task, _):
    batch = drawn(task, training=True)
    yield "brevo edges", (batch.inputs == 41).argmax(1) // 2, np.arange(1, 60, 3)
    yield "brevo answer", batch.weights.sum(1) - 2, np.arange(2, 22)


def mano(task, _):
    batch = drawn(task, training=True)
    lengths = batch.valid.sum(1) + 1
    operations = batch.inputs[(batch.inputs >= 23) & (batch.inputs < 29)] - 23
    published = np.array([1, 5, 2, 6, 3, 7])[operations]
    results = np.take_along_axis(batch.targets, lengths[:, None] - 2, 1)
    yield "mano length", lengths, np.arange(6, 28, 2)
    yield "mano operations", published, np.arange(1, 9)
    yield "mano results", results, np.arange(24)
    yield "mano second", (batch.inputs[lengths > 7, 3] < 23).astype(int), np.arange(3)


def lano(task, _):
    assert [[[list(body) for body in each] for each in layer] for layer in task.bodies] == GOLDEN["lano bodies"]
    texts = [
        row[1:length] + 1 for row, length in zip(*(lambda b: (b.inputs, b.valid.sum(1)))(drawn(task)), strict=True)
    ]
    yield "lano length", [len(text) for text in texts], np.arange(120, 420, 15)
    yield "lano first", [9 * a + 3 * b + c - 13 for a, b, c, *_ in texts], np.arange(28)
    yield "lano last", [9 * text[-1] + 3 * text[-2] + text[-3] - 13 for text in texts], np.arange(28)


def regression(task, _):
    batch = drawn(task)
    x, y = batch.inputs[:, ::2], batch.targets[:, ::2, 0]
    yield "regression first y", y[:, 0], np.linspace(-15, 15, 17)
    yield "regression product", y[:, 1] * y[:, 0], np.linspace(-60, 60, 17)
    yield "regression x", x[:, 3], np.linspace(-3, 3, 17)


def needles(task, _):
    inputs = drawn(task).inputs
    said = np.nonzero(inputs == 10)[1].reshape(COUNT, 2) - [0, 2 + 7]
    yield "needle places", said // task.words, np.arange(17)
    targets = drawn(task).targets[:, -7:]
    yield "needle digits", np.stack([targets[:, 0], 10 + targets[:, 3]]), np.arange(21)


CASES = {
    "MQAR": (recall, MultiQueryRecall()),
    "recall": (in_context, InContextRecall()),
    "noisy": (in_context, InContextRecall(symbols=32, noise=16, rate=0.2)),
    "fuzzy": (fuzzy, FuzzyRecall()),
    "copying": (copying, SelectiveCopying()),
    "memorization": (memorization, Memorization()),
    "compression": (compression, Compression()),
    "depo": (depo, Depo(nodes=30, letters=5, shortest=1, longest=3, steps=8)),
    "brevo": (brevo, Brevo(nodes=20, letters=20)),
    "mano": (mano, Mano()),
    "lano": (lano, Lano()),
    "regression": (regression, InContextRegression()),
    "needles": (needles, NeedleRetrieval(needles=2, sentences=16)),
}
"""Task and the function that yields its counted numbers, with the settings of the published counts."""


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_published_generator(name):
    numbers, task = CASES[name]
    for label, values, edges in numbers(task, name):
        counts = np.array([np.histogram(np.asarray(values).reshape(-1), edges)[0], GOLDEN[label]])
        both = counts[:, counts.sum(0) > 0] / CORRELATED.get(label, 1)
        few = both.min(0) < 5
        both = np.column_stack([both[:, ~few], both[:, few].sum(1)]) if few.sum() else both
        both = both[:, both.sum(0) > 0]
        assert abs(np.log(counts[0].sum() / counts[1].sum())) < 0.05, label
        assert stats.chi2_contingency(both, correction=False).pvalue > LEAST, (label, counts.tolist())
