"""Forms of the lines in a study's folder, by the name of their file: a line of another file has another form."""

import shlex
from pathlib import Path
from typing import cast

from flaxformer.system import digests
from flaxformer.system.digests import FormError, JsonObject
from flaxformer.system.typed_data import FiniteNumber, Int64, Record, convert

DISAGREEMENTS = "disagreements.jsonl"
LAUNCHES = "launches.jsonl"
MEASUREMENTS = "measurements.jsonl"
SUGGESTIONS = "suggestions.jsonl"
TRIAL_MEASUREMENTS = "trial_measurements.jsonl"


class Disagreement(Record, frozen=True, kw_only=True):
    """A trial that was trained again with another result."""

    trial: str
    what: str


class LaunchLine(Record, frozen=True, kw_only=True):
    """The fields of a launch that are read; a line has the fields of `store.provenance`."""

    launched: str
    file: str | None = None
    command: str | None = None
    code: str | None = None


class SeedMeasurement(Record, frozen=True, kw_only=True):
    """Numbers of a probe, or derived from runs, at one seed."""

    measured_by: str
    seed: Int64
    values: dict[str, float]
    declaration: str | None = None


class Suggestions(Record, frozen=True, kw_only=True):
    """Points of one round of a search."""

    round: Int64
    paths: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]


class MeasuringLaunch(Record, frozen=True, kw_only=True, tag_field="kind", tag="launch"):
    """A launch of a function over the trials of a folder, by `measure`."""

    function: str
    """File and function, such as "sharpness.py: measure"."""
    measured_by: str
    """Digest of the function's code, and of all user code that it uses."""
    code: dict[str, str]
    """Digests of that code, by the name of the definition."""
    step: Int64 | None
    """Step of the weights; None for the newest of each trial."""
    time: str

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Identity of the measurement, apart from the trial."""
        return self.function, self.measured_by, self.step


class TrialMeasurement(Record, frozen=True, kw_only=True, tag_field="kind", tag="trial"):
    """Numbers that a function gave from the kept weights of a trial."""

    function: str
    measured_by: str
    step: Int64 | None
    trial: str
    fingerprint: str
    """Identity of the trial."""
    weights: str
    """Digest of the kept weights."""
    at: Int64
    """Step of the weights."""
    seconds: FiniteNumber
    values: dict[str, float]

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Identity of the measurement, apart from the trial."""
        return self.function, self.measured_by, self.step


LINES: dict[str, type[Record]] = {
    DISAGREEMENTS: Disagreement,
    LAUNCHES: LaunchLine,
    MEASUREMENTS: SeedMeasurement,
    SUGGESTIONS: Suggestions,
    TRIAL_MEASUREMENTS: cast(type[Record], MeasuringLaunch | TrialMeasurement),
}
"""Type of a file's lines; a line may have further fields."""


def read_checked(path: Path) -> tuple[list[JsonObject], list[str]]:
    """Return the lines of a file that have the form of its name in `LINES`, and what is wrong with the others."""
    lines, wrong = digests.lines(path)
    if path.name not in LINES:
        return lines, wrong
    checked = []
    for row in lines:
        try:
            convert(row, LINES[path.name])
        except FormError as error:
            wrong.append(f"a line is not of {path.name}: {error}")
        else:
            checked.append(row)
    return checked, wrong


def command_words(command: str) -> list[str]:
    """The words of a recorded command; of a text that is not a command line, those between white space."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
