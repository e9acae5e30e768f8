"""Row: the results of one run, and the table of the columns that it is stored in.

On disk and in the report's `results.parquet`, a row is flat: the columns of `COLUMNS` (null where one does not apply),
a text column per axis of the study, a number per metric, and a list per curve.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

from flaxformer.system.wording import printable

RunStatus = Literal["done", "diverged", "stopped", "failed"]
PRECEDENCE: dict[RunStatus, int] = {"failed": 0, "diverged": 1, "done": 1, "stopped": 2}
"""Of several rows of a trial, one with the highest precedence counts, and of those the last.

A result counts before a failure, and the decision of a halving before the training to the end of a process that had
decided otherwise, before a failed run was trained again.
"""
CURVE, DIAGNOSTICS = "_curve", "diagnostics/"
RESERVED_PREFIXES = ("validation_", "test_", "initial_", "train_", "stopped_", DIAGNOSTICS)


def _about(meaning: str, unit: str = "") -> dict[str, str]:
    return {"meaning": meaning, "unit": unit}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Row(Mapping[str, Any]):
    """Results of one run: typed fields; and a mapping from the names of its flat columns, equal to any equal mapping.

    >>> row.status, row.labels["norm"], row.metrics["validation_loss"], row.curves["train_loss"][-1]
    >>> row["status"], row["norm"], row["validation_loss"], row["train_loss_curve"][-1]
    """

    trial: str = dataclasses.field(metadata=_about("name of the run: the labels of its arm and its seed"))
    group: str = dataclasses.field(metadata=_about("name of the compiled program that trained it"))
    seed: int = dataclasses.field(
        metadata=_about("seed of weights, batches and dropout, where Run.seeds gives none of their own")
    )
    status: RunStatus = dataclasses.field(
        metadata=_about("done, diverged, stopped (early, by a halving) or failed (an exception)")
    )
    fingerprint: str | None = dataclasses.field(default=None, metadata=_about("digest of recipe and seed"))
    declaration: str | None = dataclasses.field(
        default=None, metadata=_about("digest of the entry of declarations.jsonl under which it was trained")
    )
    diverged_at: int | None = dataclasses.field(
        default=None, metadata=_about("step whose loss or gradient was not finite; the weights are those before it")
    )
    stopped_at: int | None = dataclasses.field(default=None, metadata=_about("step after which a halving stopped it"))
    cause: str | None = dataclasses.field(default=None, metadata=_about("exception of a failed run, in one line"))
    error: str | None = dataclasses.field(default=None, metadata=_about("traceback of a failed run"))
    evaluated_at: Sequence[int] | None = dataclasses.field(
        default=None, metadata=_about("steps before each evaluation, for the curves of metrics and diagnostics")
    )
    seconds: float | None = dataclasses.field(
        default=None, metadata=_about("time of training and evaluation, shared with the runs trained together", "s")
    )
    tokens_per_second: float | None = dataclasses.field(
        default=None, metadata=_about("throughput of the runs trained together", "1/s")
    )
    group_size: int | None = dataclasses.field(default=None, metadata=_about("number of runs trained together"))
    chunk_steps: int | None = dataclasses.field(default=None, metadata=_about("steps per call of the compiled program"))
    device: str | None = dataclasses.field(default=None, metadata=_about("first device, and the number of others"))
    parameters: int | None = dataclasses.field(default=None, metadata=_about("number of parameters"))
    active_parameters: int | None = dataclasses.field(
        default=None, metadata=_about("number of parameters that one token uses")
    )
    parameters_without_embeddings: int | None = dataclasses.field(
        default=None, metadata=_about("number of parameters without the tables of tokens, token types and positions")
    )
    flops_per_step: float | None = dataclasses.field(
        default=None, metadata=_about("FLOPs of matrix products in a training step, counted in the traced program")
    )
    flops: float | None = dataclasses.field(default=None, metadata=_about("FLOPs of all training steps"))
    training_tokens: int | None = dataclasses.field(
        default=None, metadata=_about("tokens that all training steps read, including padding")
    )
    memory_bytes: int | None = dataclasses.field(
        default=None, metadata=_about("memory of the compiled program per device, shared as seconds are", "B")
    )
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Label of the arm on each axis; columns of the axes' names."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Numbers of the last evaluation, and of the first under initial_NAME; columns of their names."""
    curves: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    """Numbers of every evaluation, and the training loss of every step; columns NAME_curve."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Self:
        """The row with these flat columns: besides the fixed ones, texts are labels, numbers metrics, lists curves.

        Raises:
          ValueError: a required column is absent, or a value is of another type.
        """
        flat = {name: value for name, value in columns.items() if value is not None}
        flat |= {name: printable(flat[name]) for name in ("cause", "error") if isinstance(flat.get(name), str)}
        fixed = {column.name: flat.pop(column.name) for column in COLUMNS if column.name in flat}
        for column in COLUMNS:
            if column.is_required and column.name not in fixed:
                raise ValueError(f"{column.name} is absent")
            if column.name in fixed and not isinstance(fixed[column.name], column.accepted_types):
                raise ValueError(f"{column.name} is {fixed[column.name]!r}; expected {column.kind}")
        flat, fixed = ({name: _check(name, value) for name, value in mapping.items()} for mapping in (flat, fixed))
        if fixed["status"] not in get_args(RunStatus):
            raise ValueError(f"status is {fixed['status']!r}; expected one of {', '.join(get_args(RunStatus))}")
        return cls(
            **fixed,
            labels={name: value for name, value in flat.items() if isinstance(value, str)},
            metrics={name: value for name, value in flat.items() if isinstance(value, int | float)},
            curves={name.removesuffix(CURVE): value for name, value in flat.items() if isinstance(value, list)},
        )

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        """The flat columns."""
        fixed = {column.name: getattr(self, column.name) for column in COLUMNS}
        curves = {f"{name}{CURVE}": values for name, values in self.curves.items()}
        return fixed | dict(self.labels) | dict(self.metrics) | curves

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, changes: Mapping[str, Any]) -> "Row":
        """The row with other columns."""
        return Row.from_columns(self._columns | dict(changes))


class Column(NamedTuple):
    """A column that every table of results has."""

    name: str
    kind: str
    unit: str
    meaning: str
    is_required: bool

    @property
    def accepted_types(self) -> tuple[type, ...]:
        """Python types of its values."""
        return _ACCEPTED[self.kind]


_ACCEPTED: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "list of integers": (list,),
}
_TYPES = {str: "text", RunStatus: "text", int: "integer", float: "number", Sequence[int]: "list of integers"}


def _columns() -> Iterator[Column]:
    for field in dataclasses.fields(Row):
        if field.metadata:
            is_required = field.default is dataclasses.MISSING
            kind = field.type if is_required else get_args(field.type)[0]
            yield Column(field.name, _TYPES[kind], field.metadata["unit"], field.metadata["meaning"], is_required)


COLUMNS = tuple(_columns())
"""The columns of every row, in order; all others are labels, metrics and curves."""
INTEGER_LISTS = frozenset(column.name for column in COLUMNS if column.kind == "list of integers")
INTEGERS = range(-(2**63), 2**63)
"""Integers that a column of a table can hold."""


def _check(name: str, value: Any) -> Any:
    """Return a value as a column of this name in a table can hold it.

    Raises:
      ValueError: it can not.
    """
    if isinstance(value, list):
        return _check_list(name, value)
    if name.endswith(CURVE) and isinstance(value, str | int | float):
        raise ValueError(f"{name} is {value!r:.60}; expected a list of numbers")
    if isinstance(value, int) and value not in INTEGERS:
        raise ValueError(f"{name} is {value!r:.60}; expected an integer of 64 bits")
    return value


def _check_list(name: str, values: list[Any]) -> list[int | float | None]:
    """Return a list of integers alone, or else of floats; None may be in both."""
    kinds = {*map(type, values)} - {type(None)}
    integers = {kind for kind in kinds if issubclass(kind, int)}
    if bool in kinds or not all(issubclass(kind, int | float) for kind in kinds):
        raise ValueError(f"{name} is {values!r:.60}; expected a list of numbers")
    if integers != kinds and name in INTEGER_LISTS:
        raise ValueError(f"{name} is {values!r:.60}; expected list of integers")
    if integers and any(isinstance(value, int) and value not in INTEGERS for value in values):
        raise ValueError(f"{name} is {values!r:.60}; expected integers of 64 bits")
    if not integers or integers == kinds:
        return values
    return [None if value is None else float(value) for value in values]


def is_reserved(name: str) -> bool:
    """True if an axis or a measured quantity of this name would share a column with something else."""
    return name in {column.name for column in COLUMNS} or name.startswith(RESERVED_PREFIXES) or name.endswith(CURVE)


def difference(old: Row | None, new: Row) -> str:
    """Return how two results of a trial differ that should be the same bit for bit; "" if they do not.

    Runs are the same only if as many were trained together, on the same kind of device.
    """
    if old is None or {"failed", "stopped"} & {old.status, new.status} or old.fingerprint != new.fingerprint:
        return ""
    if (old.group_size, old.chunk_steps, old.device) != (new.group_size, new.chunk_steps, new.device):
        return ""
    names = [name for name, value in old.metrics.items() if repr(new.metrics.get(name)) != repr(value)]
    return ", ".join(f"{name} {old.metrics[name]} and {new.metrics.get(name)}" for name in names)


def is_finished(row: Row | None) -> bool:
    """True if a trial has a result; a failed run has none."""
    return row is not None and row.status != "failed"


def by_trial(rows: Iterable[Row], disagreements: dict[str, str]) -> dict[str, Row]:
    """Return the row of every trial that counts (`PRECEDENCE`); differing results go to `disagreements`."""
    last: dict[str, Row] = {}
    for row in rows:
        former = last.get(row.trial)
        if what := difference(former, row):
            disagreements.setdefault(row.trial, what)
        if former is None or PRECEDENCE[row.status] >= PRECEDENCE[former.status]:
            last[row.trial] = row
    return last
