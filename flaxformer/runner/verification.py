"""Verification: finished trials are trained again, and their results are compared bit by bit.

Training is reproducible, so a row that was changed after its training, also one with a right digest, differs from the
trial that is trained again.
"""

import dataclasses
import random
import struct
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence

from flaxformer.runner.execute import Finished, StudyEvent, execute
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import derived
from flaxformer.store.checks import is_finished
from flaxformer.store.rows import DIAGNOSTICS, Row
from flaxformer.store.store import Store
from flaxformer.study.arm import Trial
from flaxformer.study.declare import Study
from flaxformer.study.plan import ProgramGroup, groups
from flaxformer.system.digests import JsonObject

NUMBERS = (
    *("diverged_at", "parameters", "active_parameters", "parameters_without_embeddings"),
    *("flops_per_step", "flops", "training_tokens"),
)
"""Fixed columns of a row that its recipe determines; those of time, memory and device are not among them."""
MOST_NAMED = 4
"""Largest number of differing columns that are named."""


@dataclasses.dataclass(frozen=True)
class TrialSample:
    """Trials that can be verified, and those that are."""

    finished: int
    """Number of finished trials of the study."""
    trials: list[str]
    """Names of the trials that are trained again."""
    other_code: list[str]
    """Names of the finished trials whose recipe, or code, is not that of the study's file; they cannot be verified."""


def choose(declared: JsonObject, rows: Mapping[str, Row], number: int, seed: int) -> TrialSample:
    """Choose finished trials at random.

    Args:
      declared: the declaration of the study's file.
      rows: rows of the folder by trial.
      number: number of trials to choose, at most.
      seed: seed of the choice.
    """
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in declared["trials"]}
    finished = sorted(name for name in fingerprints if is_finished(rows.get(name)))
    same = [name for name in finished if rows[name].fingerprint == fingerprints[name]]
    chosen = random.Random(seed).sample(same, min(number, len(same)))
    return TrialSample(len(finished), chosen, [name for name in finished if name not in {*same}])


def train_again(
    study: Study, declared: JsonObject, rows: Sequence[Row], execution: Execution
) -> Generator[StudyEvent, None, dict[str, str]]:
    """Train trials again, with as many runs together as their rows say, and return what differs, by trial.

    Args:
      study: the study.
      declared: its declaration.
      rows: the rows of the trials to train.
      execution: the settings of the first training, but for those that the rows hold; it writes nothing.
    """
    found: dict[str, str] = {}
    by_setting: dict[tuple[int, int, int | None], list[Row]] = defaultdict(list)
    for row in rows:
        by_setting[row.group_size or 1, row.chunk_steps or execution.chunk_steps, row.stopped_at].append(row)
    for (group_size, chunk_steps, until), own in by_setting.items():
        has_diagnostics = any(name.startswith(DIAGNOSTICS) for row in own for name in row.curves)
        how = dataclasses.replace(
            execution, group_size=group_size, chunk_steps=chunk_steps, diagnostics=has_diagnostics
        )
        known = {row.trial: row for row in own}
        for event in execute(_programs(study, declared, known, until), how):
            if isinstance(event, Finished) and (difference := differences(known[event.row.trial], event.row)):
                found[event.row.trial] = difference
            yield event
    return found


def _programs(study: Study, declared: JsonObject, rows: Mapping[str, Row], until: int | None) -> list[ProgramGroup]:
    """The programs of a study with these trials alone, to the step at which a halving stopped them."""
    initial = {trial["trial"]: trial["initial_weights"] for trial in declared["trials"] if "initial_weights" in trial}
    found = []
    for group in groups(study.trials(), study.measure, study.file):
        trials = [Trial(trial.arm, trial.seed, until) for trial in group.trials if trial.name in rows]
        if trials:
            found.append(dataclasses.replace(group, trials=tuple(trials), initial_weights=initial))
    return found


def differences(stored: Row, again: Row) -> str:
    """Return what differs between a stored row and that of the same trial trained again; nothing if no bit does."""
    if again.status == "failed":
        return f"it failed when it was trained again ({again.cause})"
    pairs: dict[str, tuple[object, object]] = {}
    if stored.status != "stopped":
        pairs["status"] = stored.status, again.status
    pairs |= {name: (stored[name], again[name]) for name in NUMBERS}
    pairs |= {"evaluated_at": (list(stored.evaluated_at or ()), list(again.evaluated_at or ()))}
    numbers = again.metrics.keys() | stored.metrics.keys()
    pairs |= {name: (stored.metrics.get(name), again.metrics.get(name)) for name in sorted(numbers)}
    curves = again.curves.keys() | stored.curves.keys()
    pairs |= {f"{name} curve": (stored.curves.get(name), again.curves.get(name)) for name in sorted(curves)}
    wrong = [f"{name} {_shown(a)}, again {_shown(b)}" for name, (a, b) in pairs.items() if _bits(a) != _bits(b)]
    more = [f"and {len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []
    device = (
        f" (trained on {stored.device}, again on {again.device})" if wrong and stored.device != again.device else ""
    )
    return "; ".join([*wrong[:MOST_NAMED], *more]) + device


def _bits(value: object) -> object:
    """A value that equals another one only if all bits do."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_bits(one) for one in value]
    return struct.pack("<d", value) if isinstance(value, int | float) else value


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} numbers that end in {_shown(value[-1])}" if value else "no numbers"
    return "absent" if value is None else repr(value)


def derived_differences(store: Store, study: Study, declared: JsonObject, rows: Mapping[str, Row]) -> dict[str, str]:
    """Return what differs between the stored numbers of `derive=` and those of the stored rows, by seed."""
    stored = {row["seed"]: row["values"] for row in store.measured_by([declared["measured_by"]])}
    again = {row["seed"]: row["values"] for row in derived(study, rows)} if study.derive is not None else {}
    found = {}
    for seed in stored.keys() & again.keys() if study.derive is not None else ():
        names = [name for name in again[seed] if _bits(again[seed][name]) != _bits(stored[seed].get(name))]
        if names:
            name = names[0]
            found[f"derived numbers at seed {seed}"] = f"{name} {stored[seed].get(name)!r}, again {again[seed][name]!r}"
    return found
