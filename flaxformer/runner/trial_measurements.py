"""Measuring of kept weights: every trial whose measurement by a function is missing, without training again."""

import contextlib
import dataclasses
import datetime
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer.checkpoint.steps import leaf_digests, step_numbers
from flaxformer.checkpoint.weights import read_weights
from flaxformer.store import trial_measurements
from flaxformer.store.declaration import Declaration, DeclaredTrial
from flaxformer.store.line_forms import MeasuringLaunch, TrialMeasurement
from flaxformer.store.places import WEIGHTS, weights_folder
from flaxformer.store.rows import is_finished, is_reserved
from flaxformer.store.store import Store
from flaxformer.study.copied_code import load_run
from flaxformer.study.identity import measured_by
from flaxformer.study.load import load_module
from flaxformer.study.user_functions import numbers_of
from flaxformer.system import files
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import code_digests, read_records

MeasureWeights = Callable[..., Mapping[str, Any]]
"""Function `measure(params, run)` or `measure(params, run, data)` that returns named numbers."""


@dataclasses.dataclass(frozen=True)
class WithoutWeights:
    """Finished trials whose weights, or whose weights at the step, were not kept."""

    trials: list[str]


def load_function(file: Path, name: str) -> MeasureWeights:
    """Return the function of this name that a file defines, for `measure_trials`; run only files that you trust.

    Raises:
      UserError: there is none, or it does not take two or three arguments.
    """
    expected = f"defines {name}(params, run) or {name}(params, run, data)"
    module = load_module(file, expected)
    function = getattr(module, name, None)
    if function is None:
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        it_has = f"; it has: {', '.join(functions)} (--function NAME)" if functions else ""
        raise UserError(f"'{file}' has no function '{name}'{it_has}; expected a file that {expected}")
    if not inspect.isfunction(function):
        raise UserError(f"'{file}' has {name} = {function!r}; expected a file that {expected}")
    if _count_arguments(function) not in (2, 3):
        raise UserError(f"'{file}' has {name}{inspect.signature(function)}; expected a file that {expected}")
    return function


def measure_trials(
    store: Store, function: MeasureWeights, file: Path, step: int | None = None, trust_code: bool = False
) -> Iterator[TrialMeasurement | WithoutWeights]:
    """Measure the kept weights of every finished trial that lacks it; each result is on disk before it is yielded.

    The function gets the weights that evaluations use, the run, and where it takes a third argument, the run's data
    (`run.task.load()`). Its identity is the digest of its code and of all user code that it uses: after an edit, all
    trials are measured again, and earlier numbers stay in the folder without being shown. So they are after a change
    of a file, a folder or a variable that it has read.

    Args:
      store: the study's folder.
      function: what measures.
      file: the file of the function.
      step: step of the weights; None for the newest that were kept of each trial.
      trust_code: True to execute the folder's copy of the study's classes, if they are not imported.

    Raises:
      UserError: no weights were kept, another process measures, a column is taken, weights are damaged, or the function
        fails; trials that were measured before are kept.
    """
    study = store.declaration
    rows = store.rows()
    trials = [trial for trial in study.trials if is_finished(rows.get(trial.trial))]
    steps = {trial.trial: _step(store, trial.trial, step) for trial in trials}
    lacking = [name for name, kept_step in steps.items() if kept_step is None]
    if len(lacking) == len(trials):
        asked = "" if step is None else f" at step {step}"
        raise UserError(f"{store.root} has no kept weights{asked}; expected a study that was run with --keep")
    code = code_digests([function], file)
    name, time_now = f"{file.name}: {function.__name__}", datetime.datetime.now(datetime.UTC)
    read_by = store.root / read_records.FOLDER / files.digest_of(name.encode())
    with files.lock_folder(store.root / WEIGHTS, "measuring"), contextlib.ExitStack() as held:
        launches, measurements = trial_measurements.read(store)
        identity = _identity(name, code, launches, read_records.changed_reads(read_by, file), time_now.isoformat())
        time = time_now.isoformat(timespec="seconds")
        launch = MeasuringLaunch(function=name, measured_by=identity, code=code, step=step, time=time)
        read_records.accept(read_by, file)
        held.enter_context(read_records.recording(read_by, file))
        if launch.key not in {earlier.key for earlier in launches}:
            trial_measurements.append(store, launch)
        done = {(entry.trial, entry.fingerprint, entry.weights) for entry in measurements if entry.key == launch.key}
        taken = _taken_columns(store, study, rows, name)
        for trial in trials:
            at = steps[trial.trial]
            if at is None:
                continue
            folder = weights_folder(store.root, trial.trial)
            weights = _digest(folder, at)
            if (trial.trial, trial.fingerprint, weights) not in done:
                values, seconds = _measure(function, trial, folder, at, taken, trust_code)
                measurement = TrialMeasurement(
                    function=name,
                    measured_by=identity,
                    step=step,
                    trial=trial.trial,
                    fingerprint=trial.fingerprint,
                    weights=weights,
                    at=at,
                    seconds=seconds,
                    values=values,
                )
                trial_measurements.append(store, measurement)
                yield measurement
    if lacking:
        yield WithoutWeights(lacking)


def _identity(
    name: str, code: Mapping[str, str], launches: Sequence[MeasuringLaunch], changed: Sequence[str], time_now: str
) -> str:
    """Return the identity of a function: another one after a change of its code, or of what it read.

    Args:
      launches: the last launch of each function.
      changed: what has changed of what the function read.
    """
    if changed:
        return measured_by({**code, **dict.fromkeys(changed, time_now)})
    last = next((launch for launch in launches if launch.function == name), None)
    return last.measured_by if last is not None and last.code == code else measured_by(code)


def _measure(
    function: MeasureWeights, trial: DeclaredTrial, folder: Path, at: int, taken: Mapping[str, str], trust_code: bool
) -> tuple[dict[str, float], float]:
    """Return the numbers of one trial by the weights of a step in a folder, and the seconds that they took."""
    run = load_run(folder, trust_code)
    params, began = read_weights(folder, run, at), time.perf_counter()
    arguments = (params, run, run.task.load())[: _count_arguments(function)]
    arm = ",".join(f"{axis}={level}" for axis, level in trial.labels.items())
    where = f"for {f'arm {arm}' if arm else 'the baseline'} at seed {trial.seed}"
    values = numbers_of(function, arguments, function.__name__, where)
    for column in values:
        if column in taken or is_reserved(column):
            owner = taken.get(column, "the results")
            raise UserError(f"{function.__name__} returns '{column}', a column of {owner}; expected another name")
    return values, time.perf_counter() - began


def _taken_columns(
    store: Store, study: Declaration, rows: Mapping[str, Mapping[str, Any]], function_name: str
) -> dict[str, str]:
    """The columns of the results, and of other functions' measurements, with their owners."""
    owners = dict.fromkeys((axis.name for axis in study.axes), "the axes")
    owners |= dict.fromkeys((name for row in rows.values() for name in row), "the results")
    for function, trials in trial_measurements.current(store, study).items():
        if function != function_name:
            owners |= dict.fromkeys((name for measurement in trials.values() for name in measurement.values), function)
    return owners


def _step(store: Store, trial: str, step: int | None) -> int | None:
    """The step whose weights are measured; None if they were not kept."""
    kept = step_numbers(weights_folder(store.root, trial), published=True)
    if step is None:
        return kept[-1] if kept else None
    return step if step in kept else None


def _digest(folder: Path, step: int) -> str:
    """The digest of kept weights, by the digests of their arrays."""
    return files.digest_of(json.dumps(leaf_digests(folder, step), sort_keys=True).encode())


def _count_arguments(function: MeasureWeights) -> int:
    return len(inspect.signature(function).parameters)
