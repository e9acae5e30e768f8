"""Laws of dependence on later tokens, and on other sequences of the batch."""

import operator
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.laws.calls import random_key
from flaxformer.laws.inputs import Arguments, arguments_of, cut
from flaxformer.laws.law import (
    Finding,
    compare,
    difference,
    first_violated,
    law,
    not_applicable,
    violation,
)
from flaxformer.laws.subject import LONGER, Subject
from flaxformer.laws.where import View, locate
from flaxformer.tasks.batch import Batch

POSITIONS = 24
"""Largest number of places in a sequence after which the tokens are changed."""
SIZES = (1, 2, 3)
"""Numbers of sequences in the batches that are compared with one of more."""


@law(
    "causality",
    "no output depends on later tokens, in value or in gradient, at any length, also in training",
    "read only what context.mask.matrix(T, S) allows; a mean or a norm over tokens may include no later one",
)
def causality(subject: Subject) -> Finding:
    """Change all tokens after each token, take gradients by later tokens, and shorten the sequence."""
    if subject.reason_not_causal is not None:
        return not_applicable(subject.reason_not_causal)
    return first_violated(_check_causality(subject))


def _check_causality(subject: Subject) -> Iterator[Finding]:
    batch, arguments = subject.long_batch, arguments_of(subject.long_batch) | {"prefix": None}
    length = batch.inputs.shape[1]
    every = [int(place) for place in np.unique(np.linspace(0, max(0, length - 2), POSITIONS).astype(int))]
    few = sorted({0, length // 2, length - 2} - {-1})

    def evaluate(inputs: np.ndarray) -> Array:
        return subject.output(inputs, **arguments)

    def train(inputs: np.ndarray) -> Array:
        return subject.output(inputs, **arguments, key=random_key())

    yield from _change_later_tokens(subject, batch, every, evaluate, "", arguments)
    yield from _take_later_gradients(subject, every)
    if not subject.mixes_batch:
        training = arguments | {"key": random_key()}
        yield from _change_later_tokens(subject, batch, few, train, "in training, ", training)

    def enlarge(inputs: np.ndarray) -> Array:
        return subject.scaled_output(inputs, arguments)

    if subject.config.layers:
        yield from _change_later_tokens(subject, batch, few, enlarge, "with large activations, ", None)
    yield from _change_length(subject, arguments)


def _change_later_tokens(
    subject: Subject,
    batch: Batch,
    places: Iterable[int],
    call: Callable[[np.ndarray], Array],
    when: str,
    arguments: Arguments | None,
) -> Iterator[Finding]:
    """Change the tokens after each place, and compare the outputs up to it.

    Args:
      arguments: keyword arguments of the call, by which a difference can be located; None if it cannot.
    """
    inputs, other = np.asarray(batch.inputs), subject.other_inputs(batch=batch)
    expected = np.asarray(call(inputs))
    for last in places:
        up_to_last = operator.itemgetter((slice(None), slice(last + 1)))
        changed = np.concatenate([inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
        gap = difference(up_to_last(expected), up_to_last(np.asarray(call(changed))))
        if gap > subject.tolerance:
            finding = violation(f"{when}the outputs up to token {last} change by {gap:.2g} when later tokens do")
            if arguments is not None:
                before, after = ({"inputs": tokens, **arguments} for tokens in (inputs, changed))
                finding = locate(finding, subject, before, after, up_to_last)
            yield finding


def _take_later_gradients(subject: Subject, places: Iterable[int]) -> Iterator[Finding]:
    """Take the gradient of the outputs up to each token by the embeddings after it."""
    x, arguments = subject.long_vectors, arguments_of(subject.long_batch)
    rows, length = x.shape[:2]
    valid = np.ones((rows, length), bool)
    arguments = {name: value for name, value in arguments.items() if name not in ("valid", "prefix")}
    for last in places:
        counted = np.broadcast_to(np.arange(length) <= last, valid.shape)
        _, by_tokens, _ = subject.probe(x, subject.long_batch.inputs, valid, counted, **arguments)
        gradient = np.asarray(by_tokens)[:, last + 1 :]
        size = float(np.abs(gradient).max()) if np.all(np.isfinite(gradient)) else float("inf")
        if size > 1e-12:
            yield violation(f"the outputs up to token {last} have a gradient of {size:.2g} by later tokens")


def _change_length(subject: Subject, arguments: Arguments) -> Iterator[Finding]:
    """Compare the outputs of sequences with those of their beginnings."""
    batch = subject.long_batch
    length = batch.inputs.shape[1]
    expected = np.asarray(subject.output(batch.inputs, **arguments))
    for end in sorted({1, max(1, length - LONGER)} - {length}):
        beginning = cut(batch, end)
        output = subject.output(beginning.inputs, **arguments_of(beginning) | {"prefix": None})
        what = f"outputs of the first {end} of {length} tokens alone and within the sequence"
        yield compare(expected[:, :end], output, what, subject.tolerance)


@law(
    "batch",
    "the sequences of a batch do not influence each other, at any number of sequences",
    "take no mean or other statistic over the batch axes; x may have any number of them, also none",
)
def batch(subject: Subject) -> Finding:
    """Change one sequence, also to NaN, or leave some out, and compare the outputs for the others."""
    if len(subject.long_batch.inputs) < 2:
        return not_applicable("the batch has one sequence")
    return first_violated(_check_batch(subject))


def _check_batch(subject: Subject) -> Iterator[Finding]:
    batch = subject.long_batch
    arguments, count = arguments_of(batch), len(batch.inputs)
    yield from _change_one_sequence(subject, range(count), arguments, "outputs")
    yield from _divide_batch(subject, SIZES, None)
    if subject.reads_tokens:
        without_axis = jax.tree.map(lambda x: x[0], batch)
        alone = subject.output(without_axis.inputs, **arguments_of(without_axis))
        what = f"outputs of a sequence in a batch of {count} and without a batch axis"
        yield compare(np.asarray(subject.output(batch.inputs, **arguments))[0], alone, what, subject.tolerance)
    x = subject.long_vectors
    expected = np.asarray(subject.output(**subject.embedded_call(x, batch), **arguments))
    for first in (0, 1):  # NaN in every second sequence
        with_nan = x.copy()
        with_nan[first::2] = np.nan
        output = np.asarray(subject.output(**subject.embedded_call(with_nan, batch), **arguments))
        what = "outputs of a sequence beside another and beside NaN"
        yield compare(expected[1 - first :: 2], output[1 - first :: 2], what, subject.tolerance)
    if subject.mixes_batch:
        return
    yield from _change_one_sequence(subject, (0, count - 1), arguments | {"key": random_key()}, "outputs, in training,")
    if not subject.draws:
        yield from _divide_batch(subject, (1, 2), random_key())


def _change_one_sequence(subject: Subject, rows: Iterable[int], arguments: Arguments, what: str) -> Iterator[Finding]:
    """Change one sequence after another, and compare the outputs for all others."""
    inputs, other = subject.long_batch.inputs, subject.other_inputs(3, subject.long_batch)
    expected = np.asarray(subject.output(inputs, **arguments))
    for row in rows:
        changed = np.where((np.arange(len(inputs)) == row).reshape(-1, *(1,) * (inputs.ndim - 1)), other, inputs)
        select_others = _without(row)
        output = select_others(np.asarray(subject.output(changed, **arguments)))
        words = f"{what} of a sequence beside different others (sequence {row} of {len(inputs)} changes)"
        before, after = ({"inputs": tokens, **arguments} for tokens in (inputs, changed))
        finding = compare(select_others(expected), output, words, subject.tolerance)
        yield locate(finding, subject, before, after, select_others)


def _without(row: int) -> View:
    """Return the function that leaves out a row."""
    return lambda x: np.delete(x, row, axis=0)


def _divide_batch(subject: Subject, sizes: Iterable[int], key: Array | None) -> Iterator[Finding]:
    """Compare the outputs for a batch with those for parts of it.

    Args:
      sizes: numbers of sequences of the parts.
      key: random key of training; None evaluates.
    """
    batch, when = subject.long_batch, "" if key is None else "in training, "
    count = len(batch.inputs)
    expected = np.asarray(subject.output(batch.inputs, **arguments_of(batch), key=key))
    for size in sizes:
        for start in range(0, count - size + 1 if size < count else 0, size):
            rows = slice(start, start + size)
            part = jax.tree.map(operator.itemgetter(rows), batch)
            output = subject.output(part.inputs, **arguments_of(part), key=key)
            how = "alone" if size == 1 else f"in one of {size}"
            what = f"{when}outputs of a sequence in a batch of {count} and {how}"
            yield compare(expected[rows], output, what, subject.tolerance)
