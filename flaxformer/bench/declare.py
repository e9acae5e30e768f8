"""Declaration of a benchmark: its ways, its work and the number compared. Imports the standard library only."""

import dataclasses
import importlib.util
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, quote, shorten

MOST_MEASUREMENTS = 100_000
"""Largest number of measurements of a benchmark: of its points, ways and rounds."""
Numbers = Mapping[str, float | Sequence[float]]
"""Results of one way: numbers by name, and lists of numbers, which are stored but not shown."""
WorkPoint = Mapping[str, Any]
"""One value per option."""
OptionValues = Mapping[str, Sequence[Any]]
"""Values of each option."""


class Unavailable(Exception):  # noqa: N818 (not an error: the way is left out)
    """Raised by a way that this machine cannot measure; the message says why, and the way counts as left out."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Argument of a way: one value per option, such as `work["size"]`, a scratch folder, and the start time.

    Args:
      point: value of each option.
      scratch: folder of this way alone, for caches and files; it is removed when the command ends.
      began: `time.monotonic()` just before the process was started.
    """

    point: WorkPoint
    scratch: Path
    began: float

    def __getitem__(self, name: str) -> Any:
        return self.point[name]

    def code(self, is_other: bool) -> Path:
        """Folder of the code that a process runs, for PYTHONPATH: of `checkout`, or else of the package that runs."""
        return Path(self["checkout"]).resolve() if is_other else Path(__file__).resolve().parents[2]

    def since_start(self) -> float:
        """Seconds since the process was started, with imports."""
        return time.monotonic() - self.began


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do the work.

    Args:
      name: one word, for --only and the table.
      measure: function that is called once in a process of its own and imports what it needs.
      role: this package's ("ours"), another library's ("peer"), or a limit of the machine ("limit").
      needs: modules that must be installed; otherwise the way is left out.
      get: how to install what is missing, for the message.
      path: name of the option that holds a path that the way needs; without it the way is left out.
      takes_part: predicate of the points at which the way is measured.
      rehearsals: unmeasured processes before the first round, for example to fill a cache.
    """

    name: str
    measure: Callable[[Work], Numbers]
    role: Literal["ours", "peer", "limit"] = "peer"
    needs: Sequence[str] = ()
    get: str = ""
    path: str = ""
    takes_part: Callable[[WorkPoint], bool] = lambda point: True
    rehearsals: int = 0

    def __post_init__(self) -> None:
        check_arguments(self)

    def missing(self, options: OptionValues) -> str | None:
        """Return why it is left out and how to install what is missing, or None."""
        if self.path and not options[self.path][0]:
            return f"{self.name} is left out: {self.path}=PATH is not given; {self.get}"
        absent = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"{self.name} is left out: no module {', '.join(absent)}; {self.get}" if absent else None


@dataclasses.dataclass(frozen=True)
class Limit:
    """Reference value: each way is shown as a share of the `number` of `way`, in a column headed `words`."""

    number: str
    way: str
    words: str = "of the limit"

    def __post_init__(self) -> None:
        check_arguments(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Several ways to do the same work, and the number that compares them.

    Args:
      question: the question in one line.
      ways: the ways; each is measured at every point.
      options: values per option; the points are their product. NAME=VALUE,VALUE on the command line changes them.
      quick: values for --quick, in place of those.
      choices: the valid values of options that are texts; of others, any text is passed on. Numbers are above 0.
      compared: name of the number that is compared.
      reference: name of the way in the denominator of ratios; above 1 is faster than it.
      lower_is_better: true where the number is a time rather than a rate.
      columns: headings of the compared number and of further ones to show; names that end in _bytes are shown in MB,
        in flops_per_second in GFLOP/s.
      limit: reference value of which shares are shown, if any.
      along: option on the horizontal axis of the figure, if it has several values.
      rounds: how often each way is measured at each point.
      conclude: function from the medians, a list of (point, name of the way, {number: median}), to sentences.
      name: name of the file, filled in when it is read.
    """

    question: str
    ways: Sequence[Way]
    options: OptionValues
    compared: str
    reference: str
    quick: OptionValues = dataclasses.field(default_factory=dict)
    choices: OptionValues = dataclasses.field(default_factory=dict)
    lower_is_better: bool = False
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit: Limit | None = None
    along: str = ""
    rounds: int = 5
    conclude: Callable[[Sequence[tuple[WorkPoint, str, Mapping[str, float]]]], Sequence[str]] = lambda medians: ()
    name: str = ""

    def __post_init__(self) -> None:
        check_arguments(self)
        names = [way.name for way in self.ways]
        if not names:
            raise UserError("Benchmark: ways is (); expected at least one Way")
        for said, name in (("reference", self.reference), ("limit", self.limit.way if self.limit else names[0])):
            if name not in names:
                raise UserError(f"{said} is {quote(name)}; expected one of the ways {names}")
        if len(set(names)) < len(names):
            raise UserError(f"ways are named {names}; expected different names")
        if unknown := set(self.quick) - set(self.options):
            raise UserError(f"quick has {sorted(unknown)}; expected names of options {list(self.options)}")
        for values in (self.options, {**self.options, **self.quick}):
            self._check_number(values)

    def _check_number(self, options: OptionValues) -> None:
        """Check the number of measurements before any point is made.

        Raises:
          UserError: an option has no value, or there are more measurements than `MOST_MEASUREMENTS`.
        """
        numbers = {name: len(values) for name, values in options.items()}
        if empty := [name for name, n in numbers.items() if not n]:
            raise UserError(f"Benchmark: options[{empty[0]!r}] has no values; expected at least one")
        if self.rounds < 1:
            raise UserError(f"Benchmark: rounds is {self.rounds}; expected at least 1")
        count = math.prod(numbers.values()) * len(self.ways) * self.rounds
        if count > MOST_MEASUREMENTS:
            counts = shorten(", ".join(f"{name} {n:,}" for name, n in numbers.items()))
            raise UserError(
                f"Benchmark: options have {counts} values, ways are {len(self.ways)} and rounds are {self.rounds:,}, "
                f"which are {count:,} measurements; expected at most {MOST_MEASUREMENTS:,}: fewer values or rounds"
            )

    def way(self, name: str) -> Way:
        """Return the way of this name."""
        return next(way for way in self.ways if way.name == name)

    def points(self) -> Iterator[WorkPoint]:
        """Yield every combination of the values of the options."""
        for values in itertools.product(*self.options.values()):
            yield dict(zip(self.options, values, strict=True))

    @property
    def varied_options(self) -> list[str]:
        """Options with several values, which distinguish points."""
        return [name for name, values in self.options.items() if len(values) > 1]
