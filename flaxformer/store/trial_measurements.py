"""Measurements of kept weights: numbers per trial that a user's function gave after training, without training again.

DIR/trial_measurements.jsonl holds a line per launch of a function, with the digest of its code, and a line per trial.
The current code and step of a function come from its last launch. Lines of other code, of another step, of another
trial identity or of other weights stay in the file, and are not read as results.
"""

from flaxformer.store import records
from flaxformer.store.declaration import Declaration
from flaxformer.store.line_forms import LINES, TRIAL_MEASUREMENTS, MeasuringLaunch, TrialMeasurement, read_checked
from flaxformer.store.store import Store
from flaxformer.system.typed_data import convert, plain

NAME = TRIAL_MEASUREMENTS


def append(store: Store, entry: MeasuringLaunch | TrialMeasurement) -> None:
    """Add one line; it is on the disk when this returns."""
    records.append_line(store.root / NAME, plain(entry))


def read(store: Store) -> tuple[list[MeasuringLaunch], list[TrialMeasurement]]:
    """Return the last launch of each function, and all lines of trials; damaged lines are noted in the store."""
    lines, wrong = read_checked(store.root / NAME)
    if wrong:
        store.corrupt_files.setdefault(NAME, wrong[0])
    launches: dict[str, MeasuringLaunch] = {}
    measurements = []
    for line in lines:
        entry = convert(line, LINES[NAME])
        if isinstance(entry, MeasuringLaunch):
            launches.pop(entry.function, None)  # the last launch is the last one listed
            launches[entry.function] = entry
        elif isinstance(entry, TrialMeasurement):
            measurements.append(entry)
    return list(launches.values()), measurements


def current(store: Store, study: Declaration) -> dict[str, dict[str, TrialMeasurement]]:
    """Return the measurements by function and trial: of each function's last launch, for the declared trials."""
    launches, measurements = read(store)
    trials = {trial.trial: trial for trial in study.trials}
    return {
        launch.function: {
            entry.trial: entry
            for entry in measurements
            if entry.key == launch.key and entry.trial in trials
            if entry.fingerprint in (trials[entry.trial].fingerprint, trials[entry.trial].kept)
        }
        for launch in launches
    }
