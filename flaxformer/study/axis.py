"""Axes: the factors of a study, with a value of the run's fields for each level."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from flaxformer.core.canonical import canonical_parts
from flaxformer.core.paths import replace_at
from flaxformer.store.declaration import QUANTITY
from flaxformer.store.rows import is_reserved
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import is_storable
from flaxformer.system.wording import check_text
from flaxformer.training.run import Run

Number = int | float


@dataclasses.dataclass(frozen=True)
class Axis:
    """A factor of the study: `Axis("optimizer.warmup_steps", {"none": 0, "100": 100}, name="warmup")`.

    Args:
      path: path of a field of the `Run`, or several that take the same value, such as
        ("model.norm", "model.encoder.norm").
      levels: value of each level by its label.
      name: name of the axis; by default the last part of the first path.
    """

    path: str | Sequence[str]
    levels: Mapping[str, object]
    name: str = ""

    def __post_init__(self) -> None:
        check_arguments(self)
        if not all(self.paths) or not self.paths:
            raise UserError(f"Axis: path is {self.path!r}; expected the path of a field, such as 'model.norm'")
        object.__setattr__(self, "name", self.name or self.paths[0].rpartition(".")[2])
        object.__setattr__(self, "levels", dict(self.levels))
        check_text("axis name", self.name)
        if not self.levels:
            raise UserError(f"axis '{self.name}' has no levels; expected at least one label and value")
        for label in self.levels:
            check_text(f"label of axis '{self.name}'", label)
            if not label or set(label) & set(",="):
                raise UserError(f"axis '{self.name}' has the label {label!r}; expected text without ',' and '='")
            check_level(f"axis '{self.name}' has the level '{label}'", self.levels[label])
        if is_reserved(self.name) or self.name == QUANTITY or set(self.name) & set(",="):
            raise UserError(f"axis name '{self.name}' is taken by a column of the results; give it another with name=")

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the fields that the axis changes."""
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def changes(self, label: str) -> dict[str, object]:
        """Return the value at each path for one level."""
        return dict.fromkeys(self.paths, self.levels[label])

    def coordinates(self) -> dict[str, dict[str, Number | str]]:
        """Return the number of each level by label, under the axis' name; empty if a level is not a number."""
        numbers: dict[str, Number | str] = {label: value for label, value in self.levels.items() if is_number(value)}
        return {self.name: numbers} if len(numbers) == len(self.levels) else {}

    def baseline_label(self, baseline: Run) -> str | None:
        """Return the label of the level that leaves the baseline as it is; None if no level does."""
        known: dict[int, tuple[object, str]] = {}
        parts = canonical_parts(baseline, known)
        for label in self.levels:
            if canonical_parts(replace_at(baseline, self.changes(label)), known) == parts:
                return label
        return None


def check_level(what: str, value: object) -> None:
    """Check that a number can be stored; `what` begins the message.

    Raises:
      UserError: it is not finite, or an integer of more than 64 bits.
    """
    if is_number(value) and not is_storable(value):
        shown = f"{value!r}" if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
        raise UserError(f"{what} = {shown}; expected a finite number, of at most 64 bits if it is an integer")


def is_number(value: object) -> TypeGuard[Number]:
    """True for a real number; a truth value is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
