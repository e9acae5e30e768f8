"""Measurements of kept weights: numbers per trial that a user's function gave after training, without training again.

DIR/trial_measurements.jsonl holds a line per launch of a function, with the digest of its code, and a line per trial.
The current code and step of a function are those of its last launch. Lines of other code, of another step, of another
trial identity or of other weights stay in the file, and are not read as results.
"""

import dataclasses
from collections.abc import Mapping

from flaxformer.store import records
from flaxformer.store.line_forms import TRIAL_MEASUREMENTS, read_checked
from flaxformer.store.store import Store
from flaxformer.system.digests import JsonObject

NAME = TRIAL_MEASUREMENTS


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch of a function over the trials of a folder."""

    function: str
    """File and function, such as "sharpness.py: measure"."""
    measured_by: str
    """Digest of the function's code, and of all user code that it uses."""
    code: Mapping[str, str]
    """Digests of that code, by the name of the definition."""
    step: int | None
    """Step of the weights; None for the newest of each trial."""
    time: str

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Identity of the measurement, apart from the trial."""
        return self.function, self.measured_by, self.step


@dataclasses.dataclass(frozen=True)
class TrialMeasurement:
    """Numbers of one trial.

    fingerprint: identity of the trial.
    weights: digest of the kept weights.
    at: the step of the weights.
    """

    function: str
    measured_by: str
    step: int | None
    trial: str
    fingerprint: str
    weights: str
    at: int
    seconds: float
    values: Mapping[str, float]

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Identity of the measurement, apart from the trial."""
        return self.function, self.measured_by, self.step


def append(store: Store, entry: Launch | TrialMeasurement) -> None:
    """Add one line; it is on the disk when this returns."""
    kind = "launch" if isinstance(entry, Launch) else "trial"
    records.append_line(store.root / NAME, {"kind": kind} | dataclasses.asdict(entry))


def read(store: Store) -> tuple[list[Launch], list[TrialMeasurement]]:
    """Return the last launch of each function, and all lines of trials; damaged lines are noted in the store."""
    lines, wrong = read_checked(store.root / NAME)
    if wrong:
        store.corrupt_files.setdefault(NAME, wrong[0])
    launches: dict[str, Launch] = {}
    found = []
    for line in lines:
        if line.pop("kind") == "launch":
            launch = Launch(**line)
            launches.pop(launch.function, None)  # the last launch is the last one listed
            launches[launch.function] = launch
        else:
            found.append(TrialMeasurement(**line))
    return list(launches.values()), found


def current(store: Store, study: JsonObject) -> dict[str, dict[str, TrialMeasurement]]:
    """Return the measurements by function and trial: those of each function's last launch, for the declared trials."""
    launches, found = read(store)
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in study["trials"]}
    return {
        launch.function: {
            one.trial: one for one in found if one.key == launch.key and fingerprints.get(one.trial) == one.fingerprint
        }
        for launch in launches
    }
