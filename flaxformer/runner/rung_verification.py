"""Verification of a halving: the results at its rungs, and which arms they stop."""

from collections.abc import Mapping
from pathlib import Path

from flaxformer.runner.rungs import contradictions, rung_results, steps_of_rungs
from flaxformer.runner.verification import differences
from flaxformer.store.places import RUNGS
from flaxformer.store.rows import Row, is_finished
from flaxformer.store.store import Store
from flaxformer.study.declare import Study
from flaxformer.study.plan import StudyPlan


def rung_differences(root: Path, study: Study, again: Mapping[str, Row]) -> dict[str, str]:
    """Return what differs between results at rungs and the same steps of trials that were trained again, by trial.

    Args:
      root: the study's folder.
      study: the study.
      again: the rows of the trials that were trained again, at least to the rungs at which they were compared.
    """
    by_trial = {}
    for until in steps_of_rungs(study) if study.halving else ():
        rows = Store(root / RUNGS / str(until)).rows()
        for trial in study.trials():
            stored, complete = rows.get(trial.name), again.get(trial.name)
            if stored is None or complete is None or not _are_comparable(stored, complete):
                continue
            if what := _at_rung(stored, complete, until, trial.run.training.interval):
                by_trial[f"{trial.name} at step {until}"] = what
    return by_trial


def _are_comparable(stored: Row, complete: Row) -> bool:
    """True if two finished rows were trained in stacks of one size by chunks of one length: they have the same bits."""
    return (
        is_finished(stored)
        and is_finished(complete)
        and (stored.group_size, stored.chunk_steps) == (complete.group_size, complete.chunk_steps)
    )


def _at_rung(stored: Row, complete: Row, until: int, interval: int) -> str:
    """Describe the differences between a result at a rung and the beginning of the curves of the whole training."""
    lengths = {name: until if name == "train_loss" else until // interval + 1 for name in complete.curves}
    if any(len(complete.curves[name]) < length for name, length in lengths.items()):
        return ""  # it was stopped at an earlier rung
    curves = {name: list(complete.curves[name])[:length] for name, length in lengths.items()}
    diverged_at = complete.diverged_at if complete.diverged_at is not None and complete.diverged_at < until else None
    metrics = {name: value for name, value in complete.metrics.items() if name.startswith("initial_")}
    metrics |= {name: values[-1] for name, values in curves.items() if name in complete.metrics}
    changes = {"curves": curves, "metrics": metrics, "diverged_at": diverged_at, "status": stored.status}
    same = {name: getattr(stored, name) for name in ("flops", "training_tokens", "evaluated_at")}
    return differences(
        stored, Row(**{field: getattr(complete, field) for field in complete.__dataclass_fields__} | changes | same)
    )


def halving_differences(root: Path, plan: StudyPlan, rows: Mapping[str, Row]) -> dict[str, str]:
    """Return the trials that were stopped, or not, against the results at the rungs, each with what differs.

    A rung without all of its results decides nothing.

    Args:
      root: the study's folder.
      plan: the study.
      rows: the rows of the study by trial, without those of another recipe.
    """
    study, by_trial = plan.study, dict[str, str]()
    if study.halving is None:
        return by_trial
    for results in rung_results(plan, root):
        for trial, row in contradictions(study, results, rows).items():
            verb = "goes on" if row.stopped_at == results.until else "ends"
            by_trial[f"{trial} after step {results.until}"] = (
                f"stopped_at {row.stopped_at}; by the results at the rung, its arm {verb}"
            )
    return by_trial
