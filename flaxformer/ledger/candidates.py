"""Candidates of a ledger: the runs of its recipes, and what an attempt may not change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from flaxformer.core.canonical import canonical
from flaxformer.core.overrides import override
from flaxformer.core.paths import get_at, replace_at
from flaxformer.laws import check
from flaxformer.laws.configs import configs_in, is_user_defined
from flaxformer.ledger import rules
from flaxformer.ledger.budget import EqualSeconds, equal_seconds
from flaxformer.ledger.declare import Ledger
from flaxformer.ledger.log import Attempt
from flaxformer.ledger.reading import AXIS, BEST, CANDIDATE, CODE, START
from flaxformer.study.axis import Axis
from flaxformer.study.claim import Claim
from flaxformer.study.copied_code import execute_copy
from flaxformer.study.declare import Study
from flaxformer.study.divergence import is_test_metric
from flaxformer.study.equal_cost import EqualCost
from flaxformer.study.load import load
from flaxformer.study.metrics import is_bits_per_byte
from flaxformer.study.plan import StudyPlan
from flaxformer.study.search import Points
from flaxformer.system.errors import UserError
from flaxformer.system.python_files import find_experiment
from flaxformer.system.user_code import copy_sources, path_of_copy, user_modules
from flaxformer.system.user_code.replacements import replaced_names
from flaxformer.training.run import Run

HELD = {
    "seed": "the ledger gives every pair a seed",
    "seeds": "the ledger gives every pair a seed",
    "evaluations": "they are part of how recipes are measured",
    "init": "weights that were trained elsewhere are no part of the recipe",
}
"""Fields of a run that no attempt may change, and why."""
RATE = "optimizer.learning_rate"


def copy_candidate(root: Path, file: Path) -> str:
    """Copy a candidate's file, with the user's modules that it imports; return the copy's path in the ledger's folder.

    Raises:
      UserError: the file declares no run.
    """
    file = find_experiment(file)
    load(file, "run", Run)
    return str(path_of_copy(copy_sources(root / CODE, user_modules(file)), file))


def candidate_of(root: Path, best: Run, changes: Sequence[str], file: str, trust_code: bool) -> Run:
    """Return the run of a candidate: changes of the best recipe, or of the run of a copied file.

    Args:
      root: the ledger's folder.
      best: the best recipe.
      changes: changes, as on a command line.
      file: path of the copy; empty for changes of the best recipe.
      trust_code: True if the copy may be executed.

    Raises:
      UserError: the copy was changed or is not to be executed, or it replaces functions of the package, which would
        change the best recipe too; or a change is not one of a run.
    """
    if not file:
        return override(best, changes)
    run = execute_copy(root, root / file, "it declares a candidate", trust_code, lambda copy: load(copy, "run", Run))
    if replaced := replaced_names():
        raise UserError(
            f"user code replaces {replaced[0]}, which also changes the best recipe; expected a component, a task or an "
            "optimizer in the candidate's file"
        )
    return override(run, changes)


def best_of(ledger: Ledger, root: Path, attempts: Sequence[Attempt], trust_code: bool) -> Run:
    """Return the best recipe: the start with the changes of the attempts that were kept, in order."""
    best = ledger.start
    for attempt in attempts:
        best = replace_at(candidate_of(root, best, attempt.changes, attempt.file, trust_code), attempt.adjusted)
    return best


def tuning_study(ledger: Ledger, number: int, candidate: Run, rates: Sequence[float]) -> Study:
    """Return the study of a candidate's learning rates, at seeds that judge nothing."""
    return Study(
        name=f"tuning_{number:03}",
        question="Which learning rate is best for the candidate?",
        baseline=candidate,
        axes=[Axis(RATE, {f"{rate:g}": rate for rate in rates})],
        seeds=rules.seeds_of_tuning(ledger),
        metric=ledger.metric,
        metric_unit=ledger.metric_unit,
        measure=ledger.measure,
        goal=ledger.goal,
        test=False,
        file=ledger.file,
    )


def check_not_adjusted(ledger: Ledger, changes: Sequence[str]) -> None:
    """Refuse a change of the field that the comparison at equal cost adjusts.

    Raises:
      UserError: the field.
    """
    if not isinstance(ledger.compare, EqualCost | EqualSeconds):
        return
    for path in (text.partition("=")[0] for text in changes):
        if path in ledger.compare.adjust:
            raise UserError(
                f"the candidate changes {path}, which the comparison at equal {ledger.compare.quantity} adjusts; "
                "expected another change"
            )


def check_held(best: Run, candidate: Run) -> None:
    """Refuse a candidate that changes what the ledger holds fixed.

    Raises:
      UserError: the field, and why.
    """
    changed = changed_fields(best, candidate)
    for field in (field for field in HELD if field in changed):
        raise UserError(
            f"the candidate changes {field}: {getattr(best, field)!r} -> {getattr(candidate, field)!r}; expected "
            f"another change, or a ledger of its own: {HELD[field]}"
        )


def check_candidate(
    best: Run, candidate: Run, rates: Sequence[float] = (), measured: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return sentences that the reader of an attempt has to know.

    Args:
      best: the best recipe.
      candidate: the candidate.
      rates: learning rates among which the candidate's was chosen.
      measured: fields that were adjusted to equal seconds.

    Raises:
      UserError: nothing differs from the best recipe.
    """
    if not changed_fields(best, candidate):
        raise UserError(
            "the candidate is the best recipe itself; expected a change, such as optimizer.learning_rate=0.002"
        )
    notes = _notes(best, candidate, rates)
    if measured:
        old, new = best.training.steps, candidate.training.steps
        notes.append(
            f"it trains for {new:,} steps beside {old:,}, for as many seconds on {jax.devices()[0].device_kind}"
        )
    return tuple(notes)


def _notes(best: Run, candidate: Run, rates: Sequence[float]) -> list[str]:
    notes = []
    if rates:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        notes.append(f"its learning rate {_rate(candidate)} was chosen among {tried} at the tuning seeds")
    elif _rate(best) != _rate(candidate):
        notes.append(
            f"its learning rate {_rate(candidate)} differs from the best recipe's {_rate(best)}, and was not tuned"
        )
    else:
        notes.append("it has the best recipe's learning rate; it was not tuned for the candidate")
    for name, value in (("head", candidate.model.head), ("task", candidate.task)):
        if is_user_defined(value):
            notes.append(f"user code computes the metric: {name} {type(value).__name__}; read it")
    return notes


def _rate(run: Run) -> object:
    try:
        return get_at(run, RATE)
    except UserError:
        return "(none)"


def changed_fields(best: Run, candidate: Run) -> dict[str, object]:
    """Return the fields of a run in which the candidate differs, with its values."""
    old, new = canonical(best), canonical(candidate)
    return {field: getattr(candidate, field) for field in new if new[field] != old.get(field)} | {
        field: getattr(candidate, field) for field in old if field not in new
    }


def check_causality(candidate: Run) -> None:
    """Refuse a candidate of user code whose outputs depend on later tokens, which lowers the loss without learning.

    Raises:
      UserError: the law `causality` does not hold (`laws.check`).
    """
    if not any(is_user_defined(config) for config in configs_in(candidate.model)):
        return
    for result in check(candidate, ["causality"]):
        if result.finding.is_violated:
            raise UserError(
                f"the candidate violates the law 'causality': {result.finding.words}; expected outputs that do not "
                "depend on later tokens ('flaxformer check' has the details)"
            )


def start_study(ledger: Ledger) -> Study:
    """Return the study of the start alone, which is declared and never trained."""
    return Study(
        name=ledger.name,
        question="",
        baseline=ledger.start,
        seeds=rules.seeds_of_confirmation(ledger),
        metric=ledger.metric,
        metric_unit=ledger.metric_unit,
        measure=ledger.measure,
        goal=ledger.goal,
        test=False,
        file=ledger.file,
    )


def attempt_study(ledger: Ledger, number: int, best: Run, candidate: Run, reason: str) -> Study:
    """Return the study of an attempt: both recipes at its seeds, without a look at the test data."""
    return Study(
        name=f"attempt_{number:03}",
        question=reason,
        baseline=best,
        axes=[Points(AXIS, {BEST: {}, CANDIDATE: changed_fields(best, candidate)})],
        seeds=rules.seeds_of(ledger, number),
        metric=ledger.metric,
        metric_unit=ledger.metric_unit,
        measure=ledger.measure,
        goal=ledger.goal,
        compare=None if isinstance(ledger.compare, EqualSeconds) else ledger.compare,
        test=False,
        file=ledger.file,
    )


def confirmation_study(ledger: Ledger, best: Run, metric: str) -> Study:
    """Return the study that confirms the best recipe: against the start, at seeds and on data of no attempt."""
    text, start, best_arm = "The best recipe is better than the start", {AXIS: START}, {AXIS: BEST}
    caveats = [] if is_test_metric(metric) else [f"There is no {metric} of test data: this is that of the attempts."]
    answers = {
        "supported": "Yes: the best recipe is better.",
        "refuted": "No: the best recipe is worse than the start.",
        "inconclusive": "The confirmation cannot tell whether the best recipe is better.",
    }
    if ledger.goal == "lower":
        claim = Claim(text, lower=best_arm, than=start, answers=answers)
    else:
        claim = Claim(text, higher=best_arm, than=start, answers=answers)
    return Study(
        name="confirmation",
        question="Is the best recipe of the ledger better than the start?",
        baseline=ledger.start,
        axes=[Points(AXIS, {START: {}, BEST: changed_fields(ledger.start, best)})],
        seeds=rules.seeds_of_confirmation(ledger),
        metric=metric,
        metric_unit=ledger.metric_unit,
        measure=ledger.measure,
        goal=ledger.goal,
        claims=[claim],
        caveats=caveats,
        file=ledger.file,
    )


def check_data(plan: StudyPlan, data: str) -> None:
    """Refuse a candidate with other evaluation examples, such as by another tokenizer.

    Raises:
      UserError: the digest of the evaluation examples of an arm differs, or is not known.
    """
    tokenizer = "" if is_bits_per_byte(plan.study.metric) else " and tokenizer (bits_per_byte compares tokenizers)"
    for arm in plan.study.arms():
        declared = plan.declaration.evaluation_data.get(arm.name)
        if declared is None or declared.digest != data:
            raise UserError(
                f"the recipe '{arm.name}' is evaluated on other examples than the ledger's; expected the same "
                f"evaluation data{tokenizer}, or a ledger of its own"
            )


def at_equal_seconds(ledger: Ledger, best: Run, candidate: Run) -> dict[str, int]:
    """Return the fields that a comparison at equal seconds adjusts, with their values; nothing under other rules.

    Raises:
      UserError: the candidate is too slow.
    """
    if not isinstance(ledger.compare, EqualSeconds) or not changed_fields(best, candidate):
        return {}
    return equal_seconds(best, candidate, ledger.compare.tolerance)


def adjusted_fields(plan: StudyPlan) -> dict[str, int]:
    """Return the fields of the candidate that the comparison at equal cost adjusted, with their values."""
    match = plan.study.matches.get(f"{AXIS}={CANDIDATE}")
    return {} if match is None else {path: new for path, (_, new) in match.changes.items()}
