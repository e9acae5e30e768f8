"""Rungs of a halving: the study that is trained to each, and the arms that stop there.

The results at the rungs decide, as they are on disk under the lock of the study's folder when the decisions are
recorded. Every process makes all decisions again after each stage, so that the last one has seen every result; a result
of an arm that another process has stopped meanwhile does not count (`store.rows.PRECEDENCE`).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flaxformer.store import records
from flaxformer.store.declaration import Declaration
from flaxformer.store.declarations import supersede
from flaxformer.store.places import RUNGS
from flaxformer.store.rows import Row, is_finished
from flaxformer.store.store import Store
from flaxformer.study.arm import Arm, Trial
from flaxformer.study.declare import Study
from flaxformer.study.divergence import mean_score
from flaxformer.study.plan import StudyPlan
from flaxformer.system.files import refresh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung(Study):
    """Some arms of a study, trained to a step before their last."""

    among: tuple[str, ...]
    until: int

    def arms(self) -> list[Arm]:
        return [arm for arm in super().arms() if arm.name in self.among]

    def trials(self) -> list[Trial]:
        return [Trial(arm, seed, self.until) for arm in self.arms() for seed in self.seeds]


@dataclasses.dataclass(frozen=True)
class RungResults:
    """Results at a rung.

    Args:
      until: its step.
      arms: the arms that are trained to it.
      rows: their rows by trial.
      stopped: those of the arms that end there; None as long as results are missing, or one of them failed and that
        is to end the training.
    """

    until: int
    arms: Sequence[Arm]
    rows: Mapping[str, Row]
    stopped: Sequence[Arm] | None

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """The step and the names of the arms."""
        return self.until, tuple(arm.name for arm in self.arms)


def rung_results(plan: StudyPlan, root: Path, needs_all: bool = False) -> Iterator[RungResults]:
    """Yield the results at each rung, from the first one to the first one that decides nothing yet.

    Args:
      plan: the study.
      root: the study's folder.
      needs_all: a rung with a failed run decides nothing.
    """
    study, left = plan.study, programs(plan)
    for until in steps_of_rungs(study):
        training = {name: arms for name, arms in left.items() if arms and arms[0].run.training.steps > until}
        arms = [arm for group in training.values() for arm in group]
        if not arms:
            continue
        at_rung = Store(root / RUNGS / str(until)).rows()
        names = [Trial(arm, seed).name for arm in arms for seed in study.seeds]
        rows = {name: at_rung[name] for name in names if name in at_rung}
        is_whole = len(rows) == len(names)
        if not is_whole or (needs_all and not all(map(is_finished, rows.values()))):
            yield RungResults(until, arms, rows, None)
            return
        left |= {name: survivors(study, group, rows) for name, group in training.items()}
        go_on = {arm.name for group in left.values() for arm in group}
        yield RungResults(until, arms, rows, [arm for arm in arms if arm.name not in go_on])


def programs(plan: StudyPlan) -> dict[str, list[Arm]]:
    """The arms of each program, by its name."""
    return {group.name: list({trial.arm.name: trial.arm for trial in group.trials}.values()) for group in plan.groups}


def steps_of_rungs(study: Study) -> list[int]:
    """The steps of every rung of any program."""
    halving = study.halving
    return sorted({n for arm in study.arms() for n in (halving.rungs(arm.run.training.steps) if halving else ())})


def rung(study: Study, among: tuple[str, ...], until: int) -> Rung:
    """The study of some arms until a step."""
    fields = {field.name: getattr(study, field.name) for field in dataclasses.fields(Study)}
    note = f"This is a rung of a halving: training was stopped after {until} steps."
    changes = {"halving": None, "claims": (), "derive": None, "keep": None, "caveats": (note,)}
    return Rung(**fields | changes, among=among, until=until)


def survivors(study: Study, arms: list[Arm], rows: Mapping[str, Row]) -> list[Arm]:
    """Return the arms of one program that go on, by their mean over the seeds.

    An arm with a failed run or a score that is not finite does not.
    """
    assert study.halving is not None
    scores = {arm.name: mean_score([rows[Trial(arm, seed).name] for seed in study.seeds], study.metric) for arm in arms}
    best = study.halving.best(scores, study.metric)
    return [arm for arm in arms if arm.name in best]


def contradictions(study: Study, results: RungResults, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return those of a study's results, by trial, that the decisions at a rung contradict."""
    if results.stopped is None:
        return {}
    pairs = [(arm, rows.get(Trial(arm, seed).name)) for arm in results.arms for seed in study.seeds]
    return {
        row.trial: row
        for arm, row in pairs
        if row is not None and is_finished(row) and (row.stopped_at == results.until) != (arm in results.stopped)
    }


def refresh_rungs(root: Path) -> None:
    """Have a network file system list the results at all rungs again."""
    for groups in (root / RUNGS).glob("[0-9]*/groups"):
        refresh(groups)


def record_decisions(
    store: Store, study: Study, results: RungResults, at_rung: Mapping[str, str], declared: Declaration
) -> None:
    """Write the results of the arms that end at a rung as rows of the study; call it under the store's lock.

    A failed run stays one. Results that the decisions contradict are set aside. A result of former code that was kept
    has the former fingerprint in the study too.

    Args:
      store: the study's folder.
      study: the study.
      results: those at the rung, which decide.
      at_rung: fingerprints by trial of the present code at the rung.
      declared: declaration of the study.
    """
    supersede(store, contradictions(study, results, store.rows()))
    present, path = declared.fingerprints, store.groups / f"stopped-{results.until}.parquet"
    recorded = {row.trial: row for row in (store.rows_of_table(path) if path.exists() else ())}
    ended = []
    for row in (results.rows[Trial(arm, seed).name] for arm in results.stopped or () for seed in study.seeds):
        is_failed = row.status == "failed"
        is_present = is_failed or row.fingerprint == at_rung[row.trial]
        known = present if is_present else present | declared.kept_results
        before = recorded.get(row.trial)
        new = dataclasses.replace(
            row,
            fingerprint=known[row.trial],
            declaration=declared.declaration,
            status="failed" if is_failed else "stopped",
            stopped_at=results.until,
        )
        ended.append(before if before is not None and before == new | {"declaration": before.declaration} else new)
    if not ended:
        path.unlink(missing_ok=True)
    elif ended != list(recorded.values()) or not path.exists():
        records.write_table(path, ended)
