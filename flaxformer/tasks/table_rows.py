"""Classification or regression from the columns of a table, each of which is a token.

Column j of a row x becomes the vector x_j w_j + b_j if it is a number, and a row of a table of vectors if it is a
category (the feature tokenizer of FT-Transformer, Gorishniy et al. 2021, section 3.3). Here the model's input
`Vectors(width)` has all w_j, b_j and category vectors as the rows of its matrix, and the task writes x_j, 1, or the
one-hot category into the places of its column.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.components import Regressor, Vectors
from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.data.rows import Cells
from flaxformer.system.errors import UserError, quote, shorten
from flaxformer.system.remembered import remembered
from flaxformer.system.wording import count_of
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.examples import ExampleSource, sample_evenly
from flaxformer.tasks.labels import ClassLabels, class_notes, class_references, classifier_problems, mean, number_labels
from flaxformer.tasks.regression import vector_problems
from flaxformer.tasks.rows import RowTask

MOST_BYTES = 2**31
"""Largest size of the vectors of all rows."""


class TableRows(RowTask):
    """Prediction of one column of a table from others, each of which is a token without a position.

    Numbers, also a `target`, are standardised with mean and standard deviation of the training rows, so that the loss
    of the constant mean is about 1. A category that no training row has is read as a vector of zeros. The columns are
    told apart by their vectors: a model needs no positions, and bidirectional attention suits it.

    numbers, categories: columns that the model reads.
    label: column of classes to predict; or
    target: column of numbers to predict.
    """

    targets_in_inputs: ClassVar[bool] = False
    equal_inputs_stay_together: ClassVar[bool] = False

    numbers: tuple[str, ...] = static(())
    categories: tuple[str, ...] = static(())
    label: str | None = static(None)
    target: str | None = static(None)

    def problems(self) -> Iterator[str]:
        if not self.input_columns:
            yield "TableRows.numbers and TableRows.categories are empty; expected the names of columns to read"
        if (self.label is None) == (self.target is None):
            yield f"TableRows.label is {self.label!r} and target {self.target!r}; expected one of them, the other None"
        else:
            yield from super().problems()

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (*self.numbers, *self.categories)

    @property
    def target_column(self) -> str:
        return self.label or self.target or ""

    @property
    def vocabulary(self) -> int:
        return 0

    @property
    def sequence_length(self) -> int:
        return len(self.input_columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in their order; empty with a `target`."""
        return () if self.label is None else self._labels().names

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @property
    def inputs(self) -> Vectors:
        """Inputs of a model for this task: two entries per number, and one per category of a column."""
        return Vectors(width=2 * len(self.numbers) + sum(map(len, self._category_ids())))

    @remembered  # a config is small, and equal ones share an entry
    def _labels(self) -> ClassLabels:
        return number_labels(self.row_sides(), self.target_column)

    @remembered
    def _category_ids(self) -> tuple[dict[str, int], ...]:
        """Return the number of each category of the training rows, per column."""
        rows = self.row_sides()["training"]
        return tuple(
            {value: i for i, value in enumerate(sorted({row.values[column] for row in rows}))}
            for column in self.categories
        )

    def _standardised(self, column: str, rows: tuple[Cells, ...]) -> np.ndarray:
        """Return a column of numbers in float32, from which the mean is subtracted, in standard deviations.

        Raises:
          UserError: a cell is too far from the training rows for float32.
        """
        mean, deviation = self._moments(column)
        with np.errstate(over="ignore"):
            values = ((_numbers(rows, column) - mean) / deviation).astype(np.float32)
        for row, value in zip(rows, values, strict=True):
            if not np.isfinite(value):
                raise UserError(
                    f"{row.where}: column '{column}' is {quote(row.values[column])}; expected a number nearer to those "
                    f"of the training rows, {mean:.4g} ± {deviation:.4g}"
                )
        return values

    @remembered
    def _moments(self, column: str) -> tuple[float, float]:
        """Return mean and standard deviation of a column of numbers over the training rows; 1 if they are equal."""
        values = _numbers(self.row_sides()["training"], column)
        if values.min() == values.max():  # whose computed deviation can be a rounding error
            return float(values[0]), 1.0
        exponent = int(np.frexp(np.abs(values).max())[1])  # squares of scaled numbers are within the range of floats
        scaled = np.ldexp(values, -exponent)
        return float(np.ldexp(scaled.mean(), exponent)), float(np.ldexp(scaled.std(), exponent))

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        if self.label is None:
            yield from vector_problems(model, self.inputs, Regressor(pool="mean"))
        else:
            yield from vector_problems(model, self.inputs)
            yield from classifier_problems(model, self.labels)
        yield from self.length_problems(model)
        yield from self.source_problems(model)

    def load(self) -> ExampleSource:
        train, held_out, tested = (self._examples(rows) for rows in self.row_sides().values())
        return ExampleSource(train, held_out, self, tested if len(tested.inputs) else None)

    def _examples(self, rows: tuple[Cells, ...]) -> Batch:
        width = self.inputs.width
        if (size := 4 * len(rows) * self.sequence_length * width) > MOST_BYTES:
            raise UserError(
                f"path is '{self.path}', whose {len(rows):,} rows of {self.sequence_length} columns have "
                f"{size / 2**30:.1f} GiB as vectors of {width} entries; expected at most {MOST_BYTES >> 30} "
                "(fewer categories)"
            )
        x = np.zeros((len(rows), self.sequence_length, width), np.float32)
        for j, column in enumerate(self.numbers):
            x[:, j, 2 * j], x[:, j, 2 * j + 1] = self._standardised(column, rows), 1
        place = 2 * len(self.numbers)
        for j, (column, ids) in enumerate(zip(self.categories, self._category_ids(), strict=True), len(self.numbers)):
            for i, row in enumerate(rows):
                if row.values[column] in ids:
                    x[i, j, place + ids[row.values[column]]] = 1
            place += len(ids)
        weights = jnp.ones(len(rows), jnp.float32)
        return Batch(inputs=jnp.asarray(x), targets=jnp.asarray(self._targets(rows)), weights=weights)

    def _targets(self, rows: tuple[Cells, ...]) -> np.ndarray:
        if self.label is None:
            training = _numbers(self.row_sides()["training"], self.target_column)
            if training.min() == training.max():
                raise UserError(
                    f"column '{self.target}' is {training[0]:g} in all {len(training):,} training rows of "
                    f"'{self.path}'; expected a target with different values"
                )
            return self._standardised(self.target_column, rows)[:, None]
        ids = {name: number for number, name in enumerate(self.labels)}
        return np.array([ids[row.values[self.label]] for row in rows], np.int32)

    def notes(self) -> list[str]:
        sides = self.row_sides()
        unknown = sum(
            row.values[column] not in ids
            for column, ids in zip(self.categories, self._category_ids(), strict=True)
            for rows in sides.values()
            for row in rows
        )
        ends = [f"{count_of(unknown, 'cell')} for validation and test have a category that no training row has."]
        if self.label is None:
            mean, deviation = self._moments(self.target_column)
            ends.append(f"A loss of 1 in '{self.target}' is {deviation:.4g}² ({mean:.4g} on average in training).")
        else:
            ends += class_notes(self._labels(), self.load())
        return [*super().notes(), *ends]

    def preview(self, rows: int = 3) -> list[str]:
        train, lines = jax.device_get(self.load().train), []
        for i in sample_evenly(len(train.targets), rows)[0]:
            where, values = self.row_sides()["training"][i]
            cells = [
                f"{name} {train.inputs[i, j, 2 * j]:.2f} (from {values[name]})" for j, name in enumerate(self.numbers)
            ]
            cells += [f"{name} {shorten(values[name])!r}" for name in self.categories]
            number = f"{train.targets[i].item():.2f}" if self.label is None else f"{train.targets[i]}"
            lines.append(f"{where}: {', '.join(cells)}; target {number}, from {shorten(values[self.target_column])!r}")
        return lines

    def references(self) -> dict[str, float]:
        source = self.load()
        if self.label is not None:
            return class_references(self._labels(), source)
        batch = source.evaluation()
        return {"training mean": mean(batch, np.square(np.asarray(batch.targets)[..., 0]))}


def _numbers(rows: tuple[Cells, ...], column: str) -> np.ndarray:
    """Return a column of numbers.

    Raises:
      UserError: a cell is not a finite number.
    """
    values = []
    for row in rows:
        try:
            values.append(float(row.values[column]))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            raise UserError(f"{row.where}: column '{column}' is {quote(row.values[column])}; expected a finite number")
    return np.array(values)
