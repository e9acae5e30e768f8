"""Studies that are trained in stages, each of which is an ordinary study: successive halving, rounds of suggestions.

A rung of a halving is a study in DIR/rungs/STEP, of the arms that have come so far, trained to that step. So whatever
holds for a study holds for it: what is on disk is not trained again, any number of processes share it, and its report
shows how the arms stood. An arm that goes on is trained again from its start: a finished run is to the last bit that
of a study without halving, no state is kept, and the steps are at most factor / (factor − 1) times those of going on
from kept states (at factor 3, 1.2 times with one rung, 1.29 with two).
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import jax

from flaxformer.runner import launch
from flaxformer.runner.execute import StudyEvent
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import missing, store_of
from flaxformer.store import records
from flaxformer.store.store import LOCK_PATIENCE, RUNGS, Row, Store
from flaxformer.struct import UserError
from flaxformer.study.analysis import score
from flaxformer.study.declare import Arm, Study, Trial
from flaxformer.study.halving import mean
from flaxformer.study.plan import groups
from flaxformer.study.suggest import Search, record, recorded, suggest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung(Study):
    """Some arms of a study, trained to a step before their last."""

    among: tuple[str, ...]
    until: int

    def arms(self) -> list[Arm]:
        return [arm for arm in super().arms() if arm.name in self.among]

    def trials(self) -> list[Trial]:
        return [Trial(arm, seed, self.until) for arm in self.arms() for seed in self.seeds]


def run(study: Study, execution: Execution, **how: Any) -> Iterator[StudyEvent]:
    """Train every missing trial, stage by stage where the study has stages; see `launch.run`, which takes `how`."""
    if how.get("only") is not None and is_staged(study):
        raise UserError(f"study '{study.name}' is trained in stages; expected one without, to train some trials alone")
    if jax.process_count() > 1 and is_staged(study):
        raise UserError(f"study '{study.name}' is trained in stages; expected one process for each run, not a group")
    if isinstance(study, Search):
        yield from _rounds(study, execution, **how)
        return
    if study.halving is None or (yield from _rungs(study, execution, **how)):
        yield from launch.run(study, execution, **how)


def is_staged(study: Study) -> bool:
    """True if what is trained depends on results: no trial of it can be trained for itself."""
    return isinstance(study, Search) or study.halving is not None


def _rounds(search: Search, execution: Execution, **how: Any) -> Iterator[StudyEvent]:
    """Train round by round; a round is written down before it is trained, and all rounds are one study."""
    store = store_of(search, execution)
    while True:
        rounds = recorded(search, store)
        if rounds:
            study = search.of([point for points in rounds for point in points])
            yield from launch.run(study, execution, **how)
            if not _is_decided(study, store.rows(), **how):
                return
        if len(rounds) >= search.rounds:
            return
        points = suggest(search, rounds, store.rows())
        if not points:
            return
        with store.locked(LOCK_PATIENCE):
            if len(recorded(search, store)) == len(rounds):  # else another worker did
                record(search, store, len(rounds), points)


def resolve_study(study: Study, execution: Execution) -> Study:
    """The ordinary study that is planned and counted: of a search, the rounds that are known, the first at least."""
    if not isinstance(study, Search):
        return study
    rounds = recorded(study, store_of(study, execution)) or [suggest(study, [], {})]
    return study.of([point for points in rounds for point in points])


def _rungs(study: Study, execution: Execution, **how: Any) -> Generator[StudyEvent, None, bool]:
    """Train to every rung, and note in the study's folder which arms were stopped there; whether all was decided."""
    store = store_of(study, execution)
    declared = launch.declare(study, store, how.get("on_code_change", "refuse"))
    if not missing(study, store, retry_failed=how.get("retry_failed", False)):
        return True
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in declared["trials"]}
    left = programs(study)
    for until in steps_of_rungs(study):
        if not (going := [arm for arms in left.values() for arm in arms if arm.run.training.steps > until]):
            continue
        stage = rung(study, tuple(arm.name for arm in going), until)
        inner = dataclasses.replace(execution, output=store.root / RUNGS / str(until))
        yield from launch.run(stage, inner, **how)
        rows = store_of(stage, inner).rows()
        if not _is_decided(stage, rows, **how):
            return False
        stopped = []
        for program, arms in left.items():
            if arms[0].run.training.steps > until:
                kept = survivors(study, arms, rows)
                stopped += [arm for arm in arms if arm not in kept]
                left[program] = kept
        _note(store, study, stopped, rows, until, fingerprints)
    return True


def _is_decided(stage: Study, rows: Mapping[str, Row], on_error: launch.OnError = "continue", **how: Any) -> bool:
    """True if every run of a stage has a row, and none ended the work."""
    found = [rows.get(trial.name) for trial in stage.trials()]
    return all(row is not None and (row["status"] != "failed" or on_error == "continue") for row in found)


def programs(study: Study) -> dict[str, list[Arm]]:
    """The arms of each program, by its name."""
    return {
        group.name: list({trial.arm.name: trial.arm for trial in group.trials}.values())
        for group in groups(study.trials())
    }


def steps_of_rungs(study: Study) -> list[int]:
    """The steps of every rung of any program."""
    halving = study.halving
    return sorted({n for arm in study.arms() for n in (halving.rungs(arm.run.training.steps) if halving else ())})


def rung(study: Study, among: tuple[str, ...], until: int) -> Rung:
    """The study of some arms until a step."""
    fields = {field.name: getattr(study, field.name) for field in dataclasses.fields(Study)}
    note = f"This is a rung of a halving: training was stopped after {until} steps."
    changes = {"halving": None, "claims": (), "derive": None, "caveats": (note,)}
    return Rung(**fields | changes, among=among, until=until)


def survivors(study: Study, arms: list[Arm], rows: Mapping[str, Row]) -> list[Arm]:
    """Return the arms of one program that go on, by their mean over the seeds; an arm with a failed run comes last."""
    assert study.halving is not None
    scores = {
        arm.name: mean([_score(rows[Trial(arm, seed).name], study.metric) for seed in study.seeds]) for arm in arms
    }
    kept = study.halving.best(scores, study.metric)
    return [arm for arm in arms if arm.name in kept]


def _score(row: Row, metric: str) -> float | None:
    return None if row["status"] == "failed" else score(row, metric)


def _note(
    store: Store, study: Study, stopped: list[Arm], rows: Mapping[str, Row], until: int, fingerprints: Mapping[str, str]
) -> None:
    """Write what the stopped arms reached as rows of the study; a failed run stays one."""
    noted = []
    for arm in stopped:
        for seed in study.seeds:
            row = rows[Trial(arm, seed).name]
            status = {} if row["status"] == "failed" else {"status": "stopped", "stopped_at": until}
            noted.append(row | status | {"fingerprint": fingerprints[row["trial"]]})
    if noted:
        with store.locked(LOCK_PATIENCE):
            records.write_table(store.groups / f"stopped-{until}.parquet", noted)


def describe_stages(study: Study, execution: Execution) -> Iterator[str]:
    """Yield sentences that describe the stages, for `plan` and `run`."""
    if not is_staged(study):
        return
    runs, steps = remaining_work(study, execution)
    if study.halving is not None and runs:
        last = study.baseline.training.steps
        rungs = ", ".join(map(str, steps_of_rungs(study)))
        yield (
            f"One arm in {study.halving.factor} of each program goes on after {rungs} steps: {runs} trainings "
            f"to do, of together {steps:,} steps ({steps / last:.0f} whole runs)."
        )
    if isinstance(study, Search) and runs:
        yield (
            f"{study.rounds} rounds of {study.samples} suggested points, each at {len(study.seeds)} seeds: at most "
            f"{runs} runs to do."
        )


def remaining_work(study: Study, execution: Execution, retry_failed: bool = False) -> tuple[int, int]:
    """Return the number of runs that are still to be trained, and of their steps, over all stages."""
    store, ordinary = store_of(study, execution), resolve_study(study, execution)
    todo = missing(ordinary, store, retry_failed=retry_failed)
    if study.halving is None or not todo:
        parts = [(len(group.trials), group.steps) for group in todo]
        if isinstance(study, Search):
            later = max(0, study.rounds - max(1, len(recorded(study, store))))
            parts.append((later * study.samples * len(study.seeds), study.baseline.training.steps))
        return sum(n for n, _ in parts), sum(n * length for n, length in parts)
    runs = steps = 0
    left = {name: len(arms) for name, arms in programs(study).items()}
    lengths = {name: arms[0].run.training.steps for name, arms in programs(study).items()}
    for until in steps_of_rungs(study):
        going = sum(n for name, n in left.items() if lengths[name] > until) * len(study.seeds)
        done = len(Store(store.root / RUNGS / str(until)).rows())
        runs, steps = runs + max(0, going - done), steps + max(0, going - done) * until
        left = {name: -(-n // study.halving.factor) if lengths[name] > until else n for name, n in left.items()}
    last = {name: n * len(study.seeds) for name, n in left.items()}
    return runs + sum(last.values()), steps + sum(n * lengths[name] for name, n in last.items())
