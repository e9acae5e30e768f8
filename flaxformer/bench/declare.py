"""Declaration of a benchmark: its ways, its work, and what is compared. The standard library alone."""

import dataclasses
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Numbers = Mapping[str, Any]
"""Results of one way: numbers by name, and lists of numbers, which are kept and not shown."""
WorkPoint = Mapping[str, Any]
"""One value of each option."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Arguments of a way: one value of each option, `work["size"]`, and where it stands.

    Args:
      point: the options.
      scratch: a folder that lives as long as the command, and is the way's own: for caches and files.
      began: `time.monotonic()` when the process was started, before Python itself was.
    """

    point: WorkPoint
    scratch: Path
    began: float

    def __getitem__(self, name: str) -> Any:
        return self.point[name]

    def since_start(self) -> float:
        """Seconds since the process was started, imports included."""
        return time.monotonic() - self.began


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to do the work.

    Args:
      name: one word, for --only and the table.
      measure: called once in a process of its own; it imports what it needs inside.
      role: whether it is ours, a peer's, or a limit that the machine sets.
      needs: modules without which it is left out; how to `get` them is said then.
      path: the option that holds the path of what it needs; left out where that is empty.
      takes_part: at which points it is measured.
      rehearsals: unmeasured calls before the first round, which fill a cache.
    """

    name: str
    measure: Callable[[Work], Numbers]
    role: Literal["ours", "peer", "limit"] = "peer"
    needs: Sequence[str] = ()
    get: str = ""
    path: str = ""
    takes_part: Callable[[WorkPoint], bool] = lambda point: True
    rehearsals: int = 0

    def missing(self, options: Mapping[str, Sequence[Any]]) -> str | None:
        """Return why it is left out and how to install what is missing, or None."""
        if self.path and not options[self.path][0]:
            return f"{self.name} is left out: {self.path}=PATH is not given; {self.get}"
        absent = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"{self.name} is left out: no module {', '.join(absent)}; {self.get}" if absent else None


@dataclasses.dataclass(frozen=True)
class Limit:
    """Share that every way has of the `number` that one of them, `way`, reaches; `words` is the column's heading."""

    number: str
    way: str
    words: str = "of the limit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Ways to do the same work, and what is compared.

    Args:
      question: one line.
      ways: each is measured at every point.
      options: the values of each; points are their product. The user changes them by NAME=VALUE,VALUE.
      quick: values for a first look, instead of those.
      compared: the number that ratios are of.
      reference: the way that ratios are to; a ratio above 1 is faster than it.
      lower_is_better: the number is a time rather than a rate.
      columns: headings of the compared and of further numbers to show; names that end in _bytes are shown in MB, in
        flops_per_second in GFLOP/s.
      limit: what the share of a limit is of.
      along: the option on the figure's horizontal axis, where it has several values.
      rounds: how often each way is measured at each point.
      conclude: sentences from the medians: a list of (point, way name, {number: median}).
      name: the file's name, filled in when it is read.
    """

    question: str
    ways: Sequence[Way]
    options: Mapping[str, Sequence[Any]]
    compared: str
    reference: str
    quick: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    lower_is_better: bool = False
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit: Limit | None = None
    along: str = ""
    rounds: int = 5
    conclude: Callable[[Sequence[tuple[WorkPoint, str, Mapping[str, float]]]], Sequence[str]] = lambda medians: ()
    name: str = ""

    def __post_init__(self) -> None:
        names = [way.name for way in self.ways]
        for said, name in (("reference", self.reference), ("limit", self.limit.way if self.limit else names[0])):
            if name not in names:
                raise ValueError(f"{said} is '{name}'; expected one of the ways {names}")
        if len(set(names)) < len(names):
            raise ValueError(f"ways are named {names}; expected different names")
        if unknown := set(self.quick) - set(self.options):
            raise ValueError(f"quick has {sorted(unknown)}; expected names of options {list(self.options)}")

    def way(self, name: str) -> Way:
        """The way of this name."""
        return next(way for way in self.ways if way.name == name)

    def points(self) -> Iterator[WorkPoint]:
        """Every combination of the options' values."""
        for values in itertools.product(*self.options.values()):
            yield dict(zip(self.options, values, strict=True))

    @property
    def varied(self) -> list[str]:
        """Options of several values, which tell points apart."""
        return [name for name, values in self.options.items() if len(values) > 1]


def read(file: Path) -> Benchmark:
    """The `benchmark` of a file, as it stands; modules beside the file can be imported from then on.

    Raises:
      whatever the file raises; AttributeError where it has no `benchmark`.
    """
    spec = importlib.util.spec_from_file_location(f"benchmark_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"'{file}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    sys.path.append(str(file.resolve().parent))
    spec.loader.exec_module(module)
    found: Benchmark = module.benchmark
    return dataclasses.replace(found, name=file.stem)
