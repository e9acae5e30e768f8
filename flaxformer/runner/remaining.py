"""The trials of a study that its folder has no results of."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from flaxformer.runner.execution import Execution
from flaxformer.store import declarations
from flaxformer.store.columns import statuses
from flaxformer.store.declaration import Declaration
from flaxformer.store.store import LOCK_PATIENCE, Store
from flaxformer.study.arm import Trial
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.user_code.changes import OnCodeChange


def store_of(study: Study, execution: Execution) -> Store:
    """The study's folder: `output`, or runs/NAME."""
    return Store(execution.folder(study.name))


def declare(plan: StudyPlan, store: Store, on_code_change: OnCodeChange = "refuse") -> Declaration:
    """Write the study's declaration into its folder, and return it; see `declarations.declare`."""
    with store.locked(LOCK_PATIENCE):
        return declarations.declare(store, plan.declaration, on_code_change, plan.study.file)


def check_recipes(plan: StudyPlan, store: Store) -> None:
    """Refuse a folder with results of another recipe; see `declarations.check_recipes`."""
    declarations.check_recipes(store, plan.declaration)


def missing(
    plan: StudyPlan, store: Store, only: Collection[str] | None = None, retry_failed: bool = False
) -> list[ProgramGroup]:
    """The groups with the trials that have no row yet, or with `retry_failed` also those that failed.

    Raises:
      UserError: `only` names a trial that the study does not declare.
    """
    return without_results(selected_groups(plan, only), statuses(store), retry_failed)


def selected_groups(plan: StudyPlan, only: Collection[str] | None) -> list[ProgramGroup]:
    """The study's groups, with the trials of these names alone."""
    if only is None:
        return plan.groups
    names = {trial.name for group in plan.groups for trial in group.trials}
    for name in only:
        if name not in names:
            raise UserError(f"only names the trial '{name}'{did_you_mean(name, names)}")
    return with_trials((group, [trial for trial in group.trials if trial.name in set(only)]) for group in plan.groups)


def without_results(
    share: Sequence[ProgramGroup], ended: Mapping[str, str], retry_failed: bool = False
) -> list[ProgramGroup]:
    """The groups with the trials that `missing` describes; `ended` has the status of those with a row."""

    def is_missing(name: str) -> bool:
        return name not in ended or (retry_failed and ended[name] == "failed")

    return with_trials((group, [trial for trial in group.trials if is_missing(trial.name)]) for group in share)


def with_trials(pairs: Iterable[tuple[ProgramGroup, Sequence[Trial]]]) -> list[ProgramGroup]:
    """Each group with these of its trials; groups without any are left out."""
    return [dataclasses.replace(group, trials=tuple(trials)) for group, trials in pairs if trials]
