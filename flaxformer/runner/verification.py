"""Verification: finished trials are trained again, and their results are compared bit by bit.

Training is reproducible, so a row that was changed after its training, also one with a right digest, differs from the
trial that is trained again.
"""

import dataclasses
import math
import random
import re
import struct
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence

from flaxformer.runner.events import Event, Finished
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import derive_numbers
from flaxformer.store.declaration import Declaration
from flaxformer.store.rows import DIAGNOSTICS, Row, is_finished
from flaxformer.store.store import Store
from flaxformer.study.arm import Trial
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError
from flaxformer.system.wording import first_of, join_words

NUMBERS = (
    *("seed", "diverged_at", "parameters", "active_parameters", "parameters_without_embeddings"),
    *("flops_per_step", "flops", "training_tokens"),
)
"""Fixed columns of a row that its recipe determines; columns of time, memory and device are not among them."""
MOST_NAMED = 4
"""Largest number of differing columns that are named."""


@dataclasses.dataclass(frozen=True)
class TrialSample:
    """Trials that can be verified, and those that are."""

    finished: int
    """Number of finished trials of the study."""
    trials: list[str]
    """Names of the trials that are trained again."""
    not_verified: dict[str, str]
    """Reason for which a finished trial is not verified, by its name: another recipe, code or kind of device."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of training trials again."""

    different: dict[str, str] = dataclasses.field(default_factory=dict)
    """Differences, by trial."""
    not_verified: dict[str, str] = dataclasses.field(default_factory=dict)
    """Reason for which a trial that was trained again cannot be compared, by its name."""
    again: dict[str, Row] = dataclasses.field(default_factory=dict)
    """The rows of the trials that were trained again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SameStack(Execution):
    """Settings by which `group_size` runs are trained together, as before; a short batch is filled with its last run.

    A run has the same bits in every stack of the same size, and not in one of another size.
    """

    def runs_together(self, size: int, sharing: int) -> int:
        """Number of runs of a group to train together, however few are trained again."""
        return self.group_size or 1


def choose(
    declared: Declaration, rows: Mapping[str, Row], number: int, seed: int, executions: Sequence[Execution]
) -> TrialSample:
    """Choose finished trials at random, among those that can be verified here.

    Args:
      declared: the declaration of the study's file.
      rows: rows of the folder by trial.
      number: number of trials to choose, at most.
      seed: seed of the choice.
      executions: the settings by which the folder's trials may have been trained.
    """
    fingerprints = {trial.trial: trial.fingerprint for trial in declared.trials}
    finished = sorted(name for name in fingerprints if is_finished(rows.get(name)))
    devices = [kind for kind in map(_device_kind_of, executions) if kind]
    reasons = {}
    for name in finished:
        if rows[name].fingerprint != fingerprints[name]:
            reasons[name] = "of another recipe or code"
        elif (kind := _device_kind(rows[name].device)) and kind not in devices:
            reasons[name] = (
                f"trained on {rows[name].device}, and here is {join_words(dict.fromkeys(devices)) or 'nothing'}"
            )
        elif (rows[name].group_size or 1) > len(rows):
            reasons[name] = f"trained in a group of {rows[name].group_size}, and the folder has {len(rows)} rows"
    left = [name for name in finished if name not in reasons]
    return TrialSample(len(finished), random.Random(seed).sample(left, min(number, len(left))), reasons)


def _device_kind(device: str | None) -> str:
    """The device of a row without the number of the first one, such as "cuda and 3 more"; "" if it is not known."""
    return re.sub(r"[_:]\d+(?=$| and )", "", device or "")


def _device_kind_of(execution: Execution) -> str:
    """The kind of the devices of each run; "" if this machine has too few for the mesh."""
    try:
        return _device_kind(str(execution.device_groups()[0]))
    except UserError:
        return ""


def train_again(
    plan: StudyPlan, rows: Sequence[Row], executions: Sequence[Execution]
) -> Generator[Event, None, Outcome]:
    """Train trials again, with as many runs together as their rows say, and return what differs, by trial.

    A row does not hold the layout of layers and the mesh by which it was trained, so a trial that differs is trained by
    the next settings on the same devices: it is verified if it has the same bits by some of them.

    Args:
      plan: the study.
      rows: the rows of the trials to train.
      executions: the settings of the first training, but for those that the rows hold; at least one.
    """
    outcome = Outcome({row.trial: reason for row in rows if (reason := _reason_against(plan.study, row))})
    left = [row for row in rows if row.trial not in outcome.different]
    for number, execution in enumerate(executions):
        kind, different = _device_kind_of(execution), []
        for row in (suited := [row for row in left if _device_kind(row.device) in ("", kind)]):
            outcome.different.pop(row.trial, None)
            outcome.not_verified.pop(row.trial, None)
        for event in _train(plan, suited, execution):
            if isinstance(event, Finished):
                stored = next(row for row in suited if row.trial == event.row.trial)
                outcome.again[stored.trial] = event.row
                if what := differences(stored, event.row):
                    different.append(stored)
                    is_same_stack = event.row.group_size in (None, stored.group_size or 1)
                    reason = f"{stored.group_size} runs together, as before, do not fit the memory"
                    by_trial = outcome.different if is_same_stack else outcome.not_verified
                    by_trial[stored.trial] = what if is_same_stack else reason
            if number == 0:
                yield event
        equal = {row.trial for row in suited} - {row.trial for row in different}
        left = [row for row in left if row.trial not in equal]
    return outcome


def _reason_against(study: Study, row: Row) -> str:
    """Return a property of a row that no training of its study gives, in words; empty for a row that one can give."""
    run = next(trial.run for trial in study.trials() if trial.name == row.trial)
    rungs = study.halving.rungs(run.training.steps) if study.halving else []
    if row.stopped_at is not None and row.stopped_at not in rungs:
        rungs_of_study = f"rungs {join_words(map(str, rungs))}" if rungs else "no rung"
        return f"stopped_at {row.stopped_at}, where the study has {rungs_of_study}"
    if row.chunk_steps is not None and (row.chunk_steps < 1 or run.training.interval % row.chunk_steps):
        return f"chunk_steps {row.chunk_steps}, where evaluations are {run.training.interval} steps apart"
    if row.group_size is not None and row.group_size < 1:
        return f"group_size {row.group_size}"
    return ""


def _train(plan: StudyPlan, rows: Sequence[Row], execution: Execution) -> Iterator[Event]:
    """Train trials by the settings that their rows hold, and yield the events."""
    by_setting: dict[tuple[int, int, int | None], list[Row]] = defaultdict(list)
    for row in rows:
        by_setting[row.group_size or 1, row.chunk_steps or execution.chunk_steps, row.stopped_at].append(row)
    fields = {field.name: getattr(execution, field.name) for field in dataclasses.fields(Execution)}
    for (group_size, chunk_steps, until), setting_rows in by_setting.items():
        has_diagnostics = any(name.startswith(DIAGNOSTICS) for row in setting_rows for name in row.curves)
        settings = {"group_size": group_size, "chunk_steps": chunk_steps, "diagnostics": has_diagnostics}
        names = {row.trial: row for row in setting_rows}
        yield from execute(_programs(plan, names, until), SameStack(**fields | settings | {"exact": False}))


def _programs(plan: StudyPlan, rows: Mapping[str, Row], until: int | None) -> list[ProgramGroup]:
    """The programs of a study with these trials alone, to the step at which a halving stopped them."""
    initial = plan.declaration.initial_weights
    groups = []
    for group in plan.groups:
        trials = [Trial(trial.arm, trial.seed, until) for trial in group.trials if trial.name in rows]
        if trials:
            groups.append(dataclasses.replace(group, trials=tuple(trials), initial_weights=initial))
    return groups


def differences(stored: Row, again: Row) -> str:
    """Return what differs between a stored row and that of the same trial trained again; nothing if no bit does."""
    if again.status == "failed":
        return f"it failed when it was trained again ({again.cause})"
    pairs: dict[str, tuple[object, object]] = {}
    if stored.status != "stopped":
        pairs["status"] = stored.status, again.status
    pairs |= {name: (stored[name], again[name]) for name in NUMBERS}
    axes = sorted(stored.labels.keys() | again.labels.keys())
    pairs |= {name: (stored.labels.get(name), again.labels.get(name)) for name in axes}
    pairs |= {"evaluated_at": (list(stored.evaluated_at or ()), list(again.evaluated_at or ()))}
    numbers = again.metrics.keys() | stored.metrics.keys()
    pairs |= {name: (stored.metrics.get(name), again.metrics.get(name)) for name in sorted(numbers)}
    curves = again.curves.keys() | stored.curves.keys()
    pairs |= {f"{name} curve": (stored.curves.get(name), again.curves.get(name)) for name in sorted(curves)}
    wrong = [f"{name} {_describe(a)}, again {_describe(b)}" for name, (a, b) in pairs.items() if _bits(a) != _bits(b)]
    device = (
        f" (trained on {stored.device}, again on {again.device})" if wrong and stored.device != again.device else ""
    )
    return first_of(wrong, MOST_NAMED, "; ") + device


def _bits(value: object) -> object:
    """A value that equals another one only if all bits do; but every NaN is the same, whose bits no file keeps."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_bits(element) for element in value]
    if not isinstance(value, int | float):
        return value
    return "NaN" if math.isnan(value) else struct.pack("<d", value)


def _describe(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} numbers that end in {_describe(value[-1])}" if value else "no numbers"
    return "absent" if value is None else repr(value)


def derived_differences(store: Store, plan: StudyPlan, rows: Mapping[str, Row]) -> dict[str, str]:
    """Return what differs between the stored numbers of `derive=` and those of the stored rows, by seed."""
    study, measured_by = plan.study, plan.declaration.measured_by
    stored = {row["seed"]: row["values"] for row in store.measured_by([measured_by])}
    again = {row["seed"]: row["values"] for row in derive_numbers(study, rows)} if study.derive is not None else {}
    by_seed = {}
    for seed in stored.keys() & again.keys() if study.derive is not None else ():
        names = [name for name in again[seed] if _bits(again[seed][name]) != _bits(stored[seed].get(name))]
        if names:
            name = names[0]
            by_seed[f"derived numbers at seed {seed}"] = (
                f"{name} {stored[seed].get(name)!r}, again {again[seed][name]!r}"
            )
    return by_seed
