"""Rows of tables as examples: their division into training, validation and test, and what repeats among them."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from flaxformer.core.struct import static
from flaxformer.data.rows import Cells, read_cells, table_digest
from flaxformer.data.tokenizer import Tokenizer, make_tokenizer, read_tokenizer, train_bpe
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.system.wording import count_of
from flaxformer.tasks.base import Task

Sides = dict[str, tuple[Cells, ...]]
"""Rows for "training", "validation" and "test"."""


class RowTask(Task):
    """Base of tasks on the rows of tables: CSV, TSV, JSON lines or Parquet (`data.rows` has the rules).

    path: the file, or hf://datasets/OWNER/NAME/FILE. Where `validation_path` and `test_path` are given, these have the
      validation and the test rows.
    validation_tenths: tenths of the rows of `path` for validation, without `validation_path`.
    test_tenths: tenths of the rows of `path` for the test set, if neither `validation_path` nor `test_path` is given.
      Without test rows, the test set are the validation rows that are not in the evaluation set, if there are any.
    group: column, such as an author, whose values are divided, so that no value is on two sides. By default the
      different inputs are divided, so that equal ones are on one side (of `TableRows`, the rows). They are put into the
      order of their hashes; the first tenths are for validation, the next for the test set, and each has at least one.
    """

    is_abstract: ClassVar[bool] = True
    equal_inputs_stay_together: ClassVar[bool] = True
    """True to put rows with equal inputs on one side."""

    path: str = static()
    validation_path: str | None = static(None)
    test_path: str | None = static(None)
    validation_tenths: int = static(1, at_least=1, at_most=8)
    test_tenths: int = static(1, at_least=0, at_most=8)
    group: str | None = static(None)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.validation_tenths + self.test_tenths > 9:
            tenths = f"validation_tenths is {self.validation_tenths} and test_tenths {self.test_tenths}"
            yield f"{tenths}; expected at most 9 together, which leaves a tenth for training"
        names = [*self.input_columns, self.target_column]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield f"{type(self).__name__} reads column '{name}' {names.count(name)} times; expected it once"

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns that the model reads."""
        raise NotImplementedError(f"{type(self).__name__} does not define `input_columns`")

    @property
    def target_column(self) -> str:
        """Column that the model predicts."""
        raise NotImplementedError(f"{type(self).__name__} does not define `target_column`")

    @property
    def files(self) -> dict[str, str]:
        """Path of each file, by the name of its field."""
        paths = {"path": self.path, "validation_path": self.validation_path, "test_path": self.test_path}
        return {name: path for name, path in paths.items() if path is not None}

    @remembered  # a config is small, and equal ones share an entry
    def row_sides(self) -> Sides:
        """Return the rows of each side, in the order of their file.

        Raises:
          UserError: a file is missing or damaged, has no such column, or an empty cell; or no row is left for training.
        """
        names = dict.fromkeys((*self.input_columns, self.target_column, *filter(None, [self.group])))
        tables = {name: read_cells(path, tuple(names), name) for name, path in self.files.items()}
        shares = (
            0 if self.validation_path else self.validation_tenths,
            0 if self.validation_path or self.test_path else self.test_tenths,
        )
        keys = [self._key(number, row) for number, row in enumerate(tables["path"])]
        order = sorted({*keys}, key=lambda key: hashlib.sha256(key.encode()).digest())
        held_out, tested = (share and max(1, round(len(order) * share / 10)) for share in shares)
        places = {key: place for place, key in enumerate(order)}
        sides: dict[str, list[Cells]] = {"training": [], "validation": [], "test": []}
        for key, row in zip(keys, tables["path"], strict=True):
            place = places[key]
            side = "validation" if place < held_out else "test" if place < held_out + tested else "training"
            sides[side].append(row)
        sides["validation"] += tables.get("validation_path", ())
        sides["test"] += tables.get("test_path", ())
        if not sides["training"]:
            columns = ", ".join(self.input_columns if self.group is None else [self.group])
            raise UserError(
                f"path is '{self.path}', whose {count_of(len(keys), 'row')} have {len(order)} different values of "
                f"{columns}, none of which is left for training; expected more, or files for validation_path and "
                "test_path"
            )
        return {side: tuple(rows) for side, rows in sides.items()}

    def _key(self, number: int, row: Cells) -> str:
        """Return what decides the side of a row."""
        if self.group is not None:
            return row.values[self.group]
        return "\0".join(self.contents(row)) if self.equal_inputs_stay_together else str(number)

    def contents(self, row: Cells) -> tuple[str, ...]:
        """Return the cells of a row that the model reads."""
        return tuple(row.values[column] for column in self.input_columns)

    def fingerprint(self) -> dict[str, object]:
        digests: dict[str, object] = {
            name.replace("path", "sha256"): table_digest(path, name) for name, path in self.files.items()
        }
        return digests | {f"{side}_rows": len(rows) for side, rows in self.row_sides().items()}

    def notes(self) -> list[str]:
        sides = self.row_sides()
        counts = ", ".join(f"{len(rows):,} for {side}" for side, rows in sides.items())
        rule = (
            "a file each"
            if len(self.files) > 2
            else f"by a hash of {'the inputs' if self.group is None else self.group}"
        )
        return [f"{count_of(sum(map(len, sides.values())), 'row')}: {counts} ({rule}).", self._repeats()]

    def _repeats(self) -> str:
        """Sentence on rows whose inputs occur again, on the same side or on another, and on groups on two sides."""
        targets: dict[tuple[str, ...], set[str]] = defaultdict(set)
        places: dict[tuple[str, ...], set[str]] = defaultdict(set)
        groups: dict[str, set[str]] = defaultdict(set)
        sides, repeated = self.row_sides(), 0
        for side, row in ((side, row) for side, rows in sides.items() for row in rows):
            contents = self.contents(row)
            repeated += side in places[contents]
            places[contents].add(side)
            targets[contents].add(row.values[self.target_column])
            if self.group is not None:
                groups[row.values[self.group]].add(side)
        in_training = {
            side: sum("training" in places[self.contents(row)] for row in sides[side])
            for side in ("validation", "test")
        }
        shared = " and ".join(f"{count:,} {side}" for side, count in in_training.items())
        conflicts = sum(len(values) > 1 for values in targets.values())
        text = f"{repeated:,} rows have the inputs of an earlier row of their side; {shared} rows have those of a "
        text += f"training row; {conflicts:,} inputs have more than one '{self.target_column}'"
        if self.group is not None:
            both = sum(len(sides) > 1 for sides in groups.values())
            text += f"; {both:,} of {len(groups):,} values of '{self.group}' are on two sides"
        return f"{text}."


class TextRowTask(RowTask):
    """Base of tasks on rows with texts.

    tokenizer: path of a tokenizer.json, or of a file of characters; None for bytes.
    bpe_vocabulary: number of tokens of a byte-level BPE that is trained on the texts of the training rows, in place of
      a `tokenizer`.
    """

    is_abstract: ClassVar[bool] = True

    tokenizer: str | None = static(None)
    bpe_vocabulary: int | None = static(None, above=256)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.tokenizer is not None and self.bpe_vocabulary is not None:
            yield f"tokenizer is '{self.tokenizer}' and bpe_vocabulary {self.bpe_vocabulary}; expected one of them"

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns whose texts become tokens."""
        return self.input_columns

    @property
    def encoding(self) -> Tokenizer:
        """Tokenizer of the texts."""
        return read_tokenizer(self.tokenizer) if self.bpe_vocabulary is None else self._trained()

    @remembered
    def _trained(self) -> Tokenizer:
        rows = self.row_sides()["training"]
        texts = (row.values[column] for row in rows for column in self.text_columns)
        return make_tokenizer("the training texts", train_bpe(texts, self.bpe_vocabulary or 0))

    def encode(self, row: Cells, column: str) -> np.ndarray:
        """Return the tokens of a text.

        Raises:
          UserError: the tokenizer has no token for a character.
        """
        try:
            return self.encoding.encode(row.values[column].encode())
        except UserError as error:
            raise UserError(f"{row.where}: column '{column}': {error}") from None

    def spell(self, tokens: np.ndarray) -> str:
        """Return tokens as text, divided by | if they are not bytes."""
        if not self.encoding.is_text:
            return self.encoding.decode(tokens)
        return "|".join(self.encoding.decode([token]) for token in tokens)
