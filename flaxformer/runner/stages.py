"""Stages: the ordinary studies that a study with halving, or a search, is trained as, one after another.

A rung of a halving is a study in DIR/rungs/STEP: the arms that are left, trained to that step. All that holds for a
study holds for it: it is resumed from disk, any number of processes share it, and its report shows how the arms stood.
An arm that goes on is trained again from its first step: its results are, bit for bit, those of a study without
halving, no state is kept, and the steps are at most factor / (factor − 1) times those of training on from kept states
(at factor 3, 1.2 times with one rung, 1.29 with two).

A round of a search adds the points that it suggests to the study, which is then trained.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from flaxformer.runner.execution import Execution
from flaxformer.runner.remaining import declare, missing, store_of
from flaxformer.runner.rungs import (
    contradictions,
    programs,
    record_decisions,
    refresh_rungs,
    rung,
    rung_results,
    steps_of_rungs,
)
from flaxformer.store.places import RUNGS
from flaxformer.store.rows import Row
from flaxformer.store.store import LOCK_PATIENCE, Store
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.study.search import Point
from flaxformer.study.suggest import Search, append_round, read_rounds, suggest
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of

Stage = tuple[StudyPlan, Execution]
"""An ordinary study, and how it is executed."""


def plan_of(study: Study, execution: Execution) -> StudyPlan:
    """The plan of a study; of a search, with the rounds recorded so far, and at least the first."""
    if not isinstance(study, Search):
        return StudyPlan(study)
    rounds = read_rounds(study, store_of(study, execution)) or [suggest(study, [], {})]
    return StudyPlan(_of_rounds(study, rounds), study)


def _of_rounds(search: Search, rounds: Sequence[Sequence[Point]]) -> Study:
    return search.of([point for points in rounds for point in points])


def is_staged(plan: StudyPlan) -> bool:
    """True if the trials of later stages depend on results, so that no trial can be trained by itself."""
    return plan.search is not None or plan.study.halving is not None


def check_alone(plan: StudyPlan, what: str) -> None:
    """Refuse a study with stages where all trials must be known beforehand.

    Raises:
      UserError: it has stages; the message begins with what would need the trials.
    """
    if is_staged(plan):
        raise UserError(f"study '{plan.study.name}' is trained in stages; expected one without, for {what}")


def stages(plan: StudyPlan, execution: Execution) -> Iterator[Stage]:
    """Yield the ordinary studies to train, each with its execution; a study without stages is its own only stage.

    Train each before asking for the next, which depends on its results. The stages end early where a stage is left
    incomplete, or has a failed run after which the execution stops.
    """
    if plan.search is not None:
        yield from _rounds(plan, plan.search, execution)
        return
    if plan.study.halving is not None:
        yield from _rungs(plan, execution)
        return
    yield plan, execution


def _rounds(plan: StudyPlan, search: Search, execution: Execution) -> Iterator[Stage]:
    """The study of the rounds so far, again and again; a round is recorded on disk before it is trained."""
    store = store_of(search, execution)
    while True:
        rounds = read_rounds(search, store)
        if rounds:
            study = _of_rounds(search, rounds)
            if study.axes != plan.study.axes:
                plan = StudyPlan(study, search)
            yield plan, execution
            if not _is_complete(study, store.rows(), execution):
                return
        if len(rounds) >= search.rounds:
            return
        points = suggest(search, rounds, store.rows())
        if not points:
            return
        with store.locked(LOCK_PATIENCE):
            if len(read_rounds(search, store)) == len(rounds):  # else another process recorded this round
                append_round(search, store, len(rounds), points)


def _rungs(plan: StudyPlan, execution: Execution) -> Iterator[Stage]:
    """The study of each rung, then the study itself; a stage again where results of other processes change its arms.

    After each, the decisions at all rungs are made again and recorded.
    """
    study, store = plan.study, store_of(plan.study, execution)
    declared = declare(plan, store, execution.on_code_change)
    if not missing(plan, store, retry_failed=execution.retry_failed):
        rows = store.rows()
        if not any(contradictions(study, results, rows) for results in rung_results(plan, store.root)):
            yield plan, execution
            return
    plans, finished = dict[tuple[int, tuple[str, ...]], StudyPlan](), None
    while True:
        with store.locked(LOCK_PATIENCE):
            refresh_rungs(store.root)
            at_rungs = list(rung_results(plan, store.root, needs_all=execution.on_error == "stop"))
            for results in at_rungs:
                if results.stopped is not None and results.key in plans:
                    record_decisions(store, study, results, plans[results.key].declaration.fingerprints, declared)
        keys = [results.key for results in at_rungs]
        if (key := next((key for key in keys if key not in plans), None)) is not None:
            plans[key] = StudyPlan(rung(study, among=key[1], until=key[0]))
            yield plans[key], dataclasses.replace(execution, output=store.root / RUNGS / str(key[0]), keep=None)
        elif keys == finished or (at_rungs and at_rungs[-1].stopped is None):
            return
        else:
            finished = keys
            yield plan, execution


def _is_complete(stage: Study, rows: Mapping[str, Row], execution: Execution) -> bool:
    """True if every run of a stage has a row, and none failed if that is to end the training."""
    stage_rows = [rows.get(trial.name) for trial in stage.trials()]
    stops = execution.on_error == "stop"
    return all(row is not None and not (stops and row.status == "failed") for row in stage_rows)


def describe_stages(plan: StudyPlan, execution: Execution) -> Iterator[str]:
    """Yield sentences that describe the stages of a study, for `plan` and `run`."""
    if not is_staged(plan):
        return
    study, search, (runs, steps) = plan.study, plan.search, remaining_work(plan, execution)
    if study.halving is not None and runs:
        last = study.baseline.training.steps
        rungs = ", ".join(map(str, steps_of_rungs(study)))
        yield (
            f"One arm in {study.halving.factor} of each program goes on after {rungs} steps: "
            f"{count_of(runs, 'training')} to do, of together {steps:,} steps ({steps / last:.0f} whole runs)."
        )
    if search is not None and runs:
        yield (
            f"{count_of(search.rounds, 'round')} of {count_of(search.samples, 'suggested point')}, each at "
            f"{count_of(len(study.seeds), 'seed')}: at most {count_of(runs, 'run')} to do."
        )


def remaining_work(plan: StudyPlan, execution: Execution, only: Collection[str] | None = None) -> tuple[int, int]:
    """Return the number of runs that are still to be trained, and of their steps, over all stages.

    `only` names the trials of a study without stages that count.
    """
    study, search, store = plan.study, plan.search, store_of(plan.study, execution)
    todo = missing(plan, store, only, execution.retry_failed)
    if study.halving is None or not todo:
        work = [(len(group.trials), group.steps) for group in todo]
        if search is not None:
            later = max(0, search.rounds - max(1, len(read_rounds(search, store))))
            work.append((later * search.samples * len(study.seeds), study.baseline.training.steps))
        return sum(n for n, _ in work), sum(n * length for n, length in work)
    work = list(_remaining_of_halving(plan, store, todo, execution.retry_failed))
    return sum(runs for runs, _ in work), sum(runs * length for runs, length in work)


def _remaining_of_halving(
    plan: StudyPlan, store: Store, todo: Sequence[ProgramGroup], retry_failed: bool
) -> Iterator[tuple[int, int]]:
    """Yield numbers of runs that are still to be trained, at each rung and then to the end, each with their steps.

    Beyond the first rung that decides nothing yet, all runs count; a retry is taken to change no decision.

    Args:
      todo: the groups with the trials that have no row of the study, or a failed one that is tried again.
    """
    assert plan.study.halving is not None
    study, seeds, factor = plan.study, len(plan.study.seeds), plan.study.halving.factor
    at_rungs = {results.until: results for results in rung_results(plan, store.root)}
    arms, stopped = programs(plan), {arm.name for results in at_rungs.values() for arm in results.stopped or ()}
    left = {name: sum(arm.name not in stopped for arm in group) for name, group in arms.items()}
    lengths = {name: group[0].run.training.steps for name, group in arms.items()}
    for until in steps_of_rungs(study):
        if (results := at_rungs.get(until)) is not None:
            failed = sum(row.status == "failed" for row in results.rows.values()) if retry_failed else 0
            yield len(results.arms) * seeds - len(results.rows) + failed, until
            if results.stopped is not None:
                continue
        else:
            yield sum(n for name, n in left.items() if lengths[name] > until) * seeds, until
        left = {name: -(-n // factor) if lengths[name] > until else n for name, n in left.items()}
    if all(results.stopped is not None for results in at_rungs.values()):
        yield from ((sum(trial.arm.name not in stopped for trial in group.trials), group.steps) for group in todo)
    else:
        yield from ((n * seeds, lengths[name]) for name, n in left.items())
