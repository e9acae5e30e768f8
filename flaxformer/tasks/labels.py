"""Classification of the rows of a table: texts with labels."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.data.tokenizer import token_dtype
from flaxformer.system.errors import UserError, did_you_mean, quote, shorten
from flaxformer.system.remembered import remembered
from flaxformer.system.wording import count_of
from flaxformer.tasks.base import token_problems
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.examples import ExampleSource, sample_evenly
from flaxformer.tasks.rows import Sides, TextRowTask

SHOWN_CLASSES = 12
"""Largest number of classes whose shares are listed."""
LONGEST_NUMBER = 20
"""Largest number of characters of a label that is an integer."""
FEW_CLASSES = 200
"""Largest number of classes whose names are compared."""


class ClassLabels(NamedTuple):
    """Names of the classes, sorted (by number, if all are integers), and the class of each row by side."""

    names: tuple[str, ...]
    classes: Mapping[str, np.ndarray]


def number_labels(sides: Sides, column: str) -> ClassLabels:
    """Number the labels of the training rows.

    Raises:
      UserError: there is one label, or more than one per two rows, or a held-out row has a label of its own.
    """
    rows = sides["training"]
    distinct = {row.values[column] for row in rows}
    if not 2 <= len(distinct) <= max(2, len(rows) // 2):
        examples = ", ".join(quote(label) for label in sorted(distinct)[:3])
        raise UserError(
            f"column '{column}' has {len(distinct)} different values in {len(rows):,} training rows ({examples}, …); "
            "expected at least 2 labels, and 2 rows per label"
        )
    is_number = all(label.removeprefix("-").isdecimal() and len(label) <= LONGEST_NUMBER for label in distinct)
    names = tuple(sorted(distinct, key=lambda label: (int(label) if is_number else 0, label)))
    ids = {name: number for number, name in enumerate(names)}
    for side, held_out in sides.items():
        for row in held_out:
            if row.values[column] not in ids:
                raise UserError(
                    f"{row.where}, for {side}: column '{column}' is {quote(row.values[column])}, a label that no "
                    f"training row has{did_you_mean(row.values[column], names)}"
                )
    return ClassLabels(
        names, {side: np.array([ids[row.values[column]] for row in rows], np.int32) for side, rows in sides.items()}
    )


def class_notes(labels: ClassLabels, source: Source) -> list[str]:
    """Return sentences on the share of each class per side, and on the accuracy of the most frequent one."""
    counts = {side: np.bincount(classes, minlength=len(labels.names)) for side, classes in labels.classes.items()}
    order = np.argsort(-counts["training"], kind="stable")
    listed = ", ".join(
        f"{shorten(labels.names[i])} {' / '.join(f'{count[i]:,}' for count in counts.values())}"
        for i in order[:SHOWN_CLASSES]
    )
    more = f", and {len(order) - SHOWN_CLASSES} more" if len(order) > SHOWN_CLASSES else ""
    majority = int(order[0])
    evaluated = {"validation": source.evaluation(), "test": source.test()}
    rates = [
        f"{mean(batch, np.asarray(batch.targets) == majority):.3f} in {side}"
        for side, batch in evaluated.items()
        if batch is not None
    ]
    return [
        f"{len(order)} classes (rows for {' / '.join(counts)}): {listed}{more}.",
        f"The answer '{shorten(labels.names[majority])}' to every row, which is the most frequent in training, has an "
        f"accuracy of {' and '.join(rates)}.",
        *_slips(labels.names, counts["training"]),
    ]


def _slips(names: tuple[str, ...], counts: np.ndarray) -> Iterator[str]:
    """Yield a sentence per label that is written almost like a label of 10 times its rows, or like any but for form.

    The form is the case of letters, and of a number its notation: 1 and 1.0.
    """
    for i, name in enumerate(names if len(names) <= FEW_CLASSES else ()):
        likely = {
            _without_form(other): other
            for j, other in enumerate(names)
            if counts[j] >= 10 * counts[i] or (j < i and _without_form(other) == _without_form(name))
        }
        for near in difflib.get_close_matches(_without_form(name), likely, n=1, cutoff=0.8):
            yield f"'{name}' ({count_of(int(counts[i]), 'row')}) is written almost like '{likely[near]}': is it a slip?"


def _without_form(name: str) -> str:
    try:
        return str(float(name))
    except ValueError:
        return name.casefold()


def class_references(labels: ClassLabels, source: Source) -> dict[str, float]:
    """Return the cross-entropy of the classes of the evaluation set under their shares in training."""
    counts = np.bincount(labels.classes["training"], minlength=len(labels.names))
    batch = source.evaluation()
    return {"class shares": mean(batch, -np.log(counts / counts.sum())[np.asarray(batch.targets)])}


def mean(batch: Batch, values: np.ndarray) -> float:
    """Return the mean of values of scored targets."""
    return float(np.average(values, weights=np.asarray(batch.weights)))


def classifier_problems(model: ModelConfig, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a message if a model does not predict these classes, one per sequence."""
    head = model.head
    if head.predicts != "classes" or head.outputs(0) < len(names) or head.pool == "none":
        listed = ", ".join(map(repr, names[:3])) + ", …" * (len(names) > 3)
        yield f"model.head is {head}; expected Classifier(classes={len(names)}), for the labels {listed}"


class TextLabels(TextRowTask):
    """Classification of texts, from a table with a column of texts and one of labels.

    The classes are the labels of the training rows, in the order of `labels`. A text is read up to its first
    `max_length` tokens and padded to as many. Bidirectional attention suits it: no target is among the inputs.
    """

    targets_in_inputs: ClassVar[bool] = False

    text: str = static()
    label: str = static()
    max_length: int = static(128, at_least=1)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.text,)

    @property
    def target_column(self) -> str:
        return self.label

    @property
    def vocabulary(self) -> int:
        return self.encoding.vocabulary

    @property
    def sequence_length(self) -> int:
        return self.max_length

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in their order."""
        return self._labels().names

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @remembered  # a config is small, and equal ones share an entry
    def _labels(self) -> ClassLabels:
        return number_labels(self.row_sides(), self.label)

    @remembered
    def _tokens(self) -> dict[str, list[np.ndarray]]:
        return {side: [self.encode(row, self.text) for row in rows] for side, rows in self.row_sides().items()}

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from token_problems("model", model, self.vocabulary)
        yield from classifier_problems(model, self.labels)
        yield from self.length_problems(model)
        yield from self.source_problems(model)

    def load(self) -> ExampleSource:
        train, held_out, tested = (
            self._examples(self._tokens()[side], self._labels().classes[side])
            for side in ("training", "validation", "test")
        )
        return ExampleSource(train, held_out, self, tested if len(tested.inputs) else None)

    def read(self, texts: Sequence[str]) -> Batch:
        """Return other texts as the model reads them; they have no labels, and count 0 in a loss."""
        tokens = [self.encoding.encode(text.encode()) for text in texts]
        batch = self._examples(tokens, np.zeros(len(texts), np.int32))
        return batch.replace(inputs=batch.inputs.astype(jnp.int32), weights=jnp.zeros_like(batch.weights))

    def _examples(self, texts: Sequence[np.ndarray], classes: np.ndarray) -> Batch:
        lengths = np.array([len(tokens) for tokens in texts], int)
        inputs = np.zeros((len(texts), self.max_length), token_dtype(self.vocabulary))
        for row, tokens in zip(inputs, texts, strict=True):
            row[: len(tokens)] = tokens[: self.max_length]
        return Batch(
            inputs=jnp.asarray(inputs),
            targets=jnp.asarray(classes),
            weights=jnp.ones(len(texts), jnp.float32),
            valid=jnp.asarray(np.arange(self.max_length) < lengths[:, None]),
            padding_is_behind=True,
        )

    def fingerprint(self) -> dict[str, object]:
        return super().fingerprint() | self.encoding.fingerprint | {"labels": list(self.labels)}

    def notes(self) -> list[str]:
        lengths = np.array([len(tokens) for side in self._tokens().values() for tokens in side])
        padding = 1 - np.minimum(lengths, self.max_length).mean() / self.max_length
        return [
            *super().notes(),
            f"Texts have {lengths.min():,} to {lengths.max():,} tokens, the median {int(np.median(lengths)):,}; "
            f"{count_of(int((lengths > self.max_length).sum()), 'text')} cut to max_length {self.max_length:,}; "
            f"{padding:.0%} of what the model reads is padding.",
            *class_notes(self._labels(), self.load()),
        ]

    def preview(self, rows: int = 3) -> list[str]:
        train, lines = jax.device_get(self.load().train), []
        for i in sample_evenly(len(train.targets), rows)[0]:
            tokens, valid, target = train.inputs[i], train.valid[i], train.targets[i]
            lines.append(
                f"{self.row_sides()['training'][i].where}: {shorten(self.spell(tokens[valid]))!r}, {valid.sum()} "
                f"tokens and {(~valid).sum()} of padding; target {target}, '{shorten(self.labels[target])}'"
            )
        return lines

    def references(self) -> dict[str, float]:
        return class_references(self._labels(), self.load())
