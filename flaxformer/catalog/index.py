"""Index of the catalog: what each file says about its mechanism, read from its text without importing it.

The docstring of a file begins with "Name: one line.", and has the equation and these entries:

    Family: attention
    Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399, equation 2.
    Claim: what the source reports, and at which size.
    Cost: weights and FLOPs beside the baseline.
    Verified: the independent implementation to which it is equal.
"""

import ast
import dataclasses
import difflib
import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.json_reader import parse_json
from flaxformer.system.wording import signed

FOLDER = Path(__file__).parent
FAMILIES = (
    "attention",
    "positions",
    "token mixers",
    "feed-forward",
    "residuals and depth",
    "norms",
    "embeddings and heads",
    "objectives",
    "tasks",
    "optimizers",
    "schedules",
    "initialisation",
)
"""Families, in the order in which they are listed."""
EFFECTS = "effects.json"
"""File of measured effects by module."""
ENTRIES = ("Family", "Source", "Claim", "Cost", "Verified")
CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)
ALIKE = 0.85
"""Similarity of a misspelt name and the name of a class."""
CAPITALISED = re.compile(r"\b[A-Z]\w*")


@dataclasses.dataclass(frozen=True)
class MeasuredEffect:
    """Effect of an arm of a mechanism beside the baseline, as experiments/catalog/effects.py measured it.

    gain: of the test loss in nats, with its 95 % interval over paired seeds; positive where the arm is better.
    weights: number of weights of the baseline.
    """

    task: str
    weights: int
    arm: str
    gain: float
    low: float
    high: float
    verdict: str

    def __str__(self) -> str:
        """Gain, interval and verdict in words."""
        interval = f"[{signed(self.low)}, {signed(self.high)}]"
        size = f"{self.weights / 1e6:.1f} M weights"
        return f"{self.arm} {signed(self.gain)} {interval} nats, {self.verdict} ({self.task}, {size})"


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A mechanism of the catalog, as its file describes it.

    name: its name, such as "Scalable softmax".
    summary: one line on what it does.
    year: year of the source.
    classes: public classes of the file.
    """

    module: str
    name: str
    summary: str
    family: str
    source: str
    claim: str
    cost: str
    verified: str
    classes: tuple[str, ...]

    @property
    def year(self) -> int:
        return int(re.findall(r"\b(?:19|20)\d\d\b", self.source)[0])

    @property
    def path(self) -> Path:
        """Path of its file."""
        return FOLDER / f"{self.module}.py"

    @property
    def effects(self) -> tuple[MeasuredEffect, ...]:
        """Measured effects of its arms; empty for one that was not compared."""
        return _effects().get(self.module, ())

    @property
    def gains(self) -> str:
        """Measured gains of its arms on text, from the lowest to the highest; empty without any."""
        gains = sorted(effect.gain for effect in self.effects if effect.task == "text")
        return " to ".join(signed(gain) for gain in gains[:1] + gains[1:][-1:])


def read_mechanism(path: Path) -> Mechanism:
    """Return what a file of the catalog says about its mechanism.

    Raises:
      ValueError: the docstring lacks an entry.
    """
    text = path.read_text()
    title, *paragraphs = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")
    name, colon, summary = " ".join(title.split()).partition(": ")
    entries: dict[str, str] = {}
    for line in paragraphs[-1].splitlines() if paragraphs else ():
        label, separator, value = line.partition(": ")
        if separator and label in ENTRIES:
            entries[label] = value
        elif entries:
            entries[[*entries][-1]] += f" {line.strip()}"
    if not colon or tuple(entries) != ENTRIES:
        raise ValueError(f"{path.name}: docstring has {[name, *entries]}; expected 'Name: one line.' and {ENTRIES}")
    values = {label.lower(): value for label, value in entries.items()}
    return Mechanism(module=path.stem, name=name, summary=summary, classes=tuple(CLASS.findall(text)), **values)


@functools.cache
def _effects() -> dict[str, tuple[MeasuredEffect, ...]]:
    """The measured effects of each module, which experiments/catalog/page.py writes."""
    recorded = parse_json((FOLDER / EFFECTS).read_bytes())
    return {module: tuple(MeasuredEffect(**effect) for effect in effects) for module, effects in recorded.items()}


@functools.cache
def _classes() -> dict[str, str]:
    """Module of each public class of the catalog."""
    return {name: path.stem for path in _files() for name in CLASS.findall(path.read_text())}


def _files() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "index"))


@functools.cache
def mechanisms() -> Mapping[str, Mechanism]:
    """Return the mechanisms by the name of their file, family by family."""
    read = [read_mechanism(path) for path in _files()]
    ordered = sorted(read, key=lambda mechanism: (FAMILIES.index(mechanism.family), mechanism.name.lower()))
    return MappingProxyType({mechanism.module: mechanism for mechanism in ordered})


def module_of(name: str) -> str | None:
    """Return the name of the file that defines a class; None if none does."""
    return _classes().get(name)


def import_named(texts: Iterable[str]) -> None:
    """Import the files of those classes of the catalog that texts name, such as "model.attention=SinkAttention".

    The classes are then valid in overrides and in files of configs, as those of the package are. Classes with a name
    very much like one in the texts are imported too, so that the message on a misspelt name has them.
    """
    names = {name for text in texts for name in CAPITALISED.findall(text)}
    for near in {near for name in names for near in difflib.get_close_matches(name, _classes(), cutoff=ALIKE)}:
        importlib.import_module(f"flaxformer.catalog.{module_of(near)}")


def variants(name: str) -> dict[str, dict[str, object]]:
    """Return the arms of a mechanism: by label, the changes of a baseline that switch it on, with published settings.

    A class stands for the baseline's component as that class. `Points("attention", {"softmax": {}} | variants(name))`
    is an axis of a study.

    Raises:
      UserError: no such mechanism.
    """
    if name not in mechanisms():
        raise UserError(f"mechanism is '{name}'{did_you_mean(name, list(mechanisms()))}")
    return dict(importlib.import_module(f"flaxformer.catalog.{name}").VARIANTS)
