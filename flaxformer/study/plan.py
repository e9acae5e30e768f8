"""Plan of a study: its programs, and its declaration with the identity of each trial."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from flaxformer import model
from flaxformer.core import params
from flaxformer.core.canonical import Known
from flaxformer.store.declaration import (
    FORMAT,
    QUANTITY,
    ArmScale,
    Declaration,
    DeclaredArm,
    DeclaredAxis,
    DeclaredClaim,
    DeclaredComparison,
    DeclaredScaling,
    MatchedArm,
    Recipe,
)
from flaxformer.store.rows import is_reserved
from flaxformer.study import initial_weights
from flaxformer.study.arm import Arm, Trial
from flaxformer.study.axis import Axis
from flaxformer.study.caveats import caveats_of
from flaxformer.study.claim import Claim, Contrast
from flaxformer.study.declare import Study
from flaxformer.study.equal_cost import EqualCost
from flaxformer.study.evaluation_data import check_test_set, evaluation_data
from flaxformer.study.identity import code_by_arm, data_of, digest, fingerprints, measured_by, recipe
from flaxformer.study.metrics import METRICS, columns_of, metrics_of
from flaxformer.study.program_groups import ProgramGroup, groups
from flaxformer.study.scale import variable_names
from flaxformer.study.scaling_claim import ScalingClaim, declared_claim
from flaxformer.study.suggest import Search
from flaxformer.study.tracing import check_traces
from flaxformer.study.user_functions import calling, check_column
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.user_code import code_digests
from flaxformer.tasks.about import data_notes
from flaxformer.training import Run, evaluation_params, start
from flaxformer.training.evaluation import evaluated_by
from flaxformer.training.memory import check_memory


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """A study with its programs and its declaration, each computed once, when it is first needed.

    A command makes one plan and passes it on (`runner.stages.plan_of`). Each stage of a study has a plan of its own.

    Args:
      study: an ordinary study; of a search, that of the rounds so far.
      search: the search whose points these are; None for any other study.
    """

    study: Study
    search: Search | None = None

    @functools.cached_property
    def groups(self) -> list[ProgramGroup]:
        """The trials by program, in the order of first appearance."""
        return groups(self.study.trials(), self.study.measure, self.study.file, self.study.test)

    @functools.cached_property
    def declaration(self) -> Declaration:
        """See `declaration`."""
        return declaration(self.study, self.groups)


def check_sizes(study: Study) -> None:
    """Refuse a study with a run that cannot fit into memory, before any is allocated.

    Raises:
      UserError: the first arm of a program needs more memory than there is.
    """
    examples = {jax.tree.structure(arm.run): arm for arm in reversed(study.arms())}
    for arm in examples.values():
        check_memory(arm.run, f"arm '{arm.name}'")


def check_measure(study: Study) -> None:
    """Trace `measure` on the baseline, without computing it.

    Raises:
      UserError: a result is not a scalar, a name is reserved or an axis', or the study's metric is missing.
    """
    taken = {axis.name for axis in study.axes} | columns_of(study.baseline)
    shapes = jax.eval_shape(lambda run: _call_measure(study, run), jax.tree.map(jnp.asarray, study.baseline))
    for name, shape in shapes.items():
        check_column("measure", name)
        if name in taken or name == QUANTITY or is_reserved(name):
            raise UserError(f"measure returns '{name}', which is the name of another column; expected another name")
        if shape.shape:
            raise UserError(f"measure returns '{name}' of shape {list(shape.shape)}; expected a scalar")
    for arm in [] if study.metric in (*METRICS, *shapes) else study.arms():
        known = [*metrics_of(arm.run), *shapes]
        if study.metric not in known:
            where = "" if arm.run is study.baseline else f", which arm '{arm.name}' does not have"
            raise UserError(f"metric is '{study.metric}'{where}{did_you_mean(study.metric, known)}")


def _call_measure(study: Study, run: Run) -> dict[str, jax.Array]:
    if study.measure is None:
        return {}
    with calling("measure", "with the baseline, when it is traced"):
        run = run.without_init
        values = study.measure(evaluation_params(start(run), run), run)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UserError(f"measure returns {values!r}; expected a dict of scalars by name")
    return dict(values)


def _competition(study: Study) -> JsonObject | None:
    """Return what determines the arms that a halving stops, besides their recipes: its rule and the competing runs."""
    if study.halving is None:
        return None
    runs = json.dumps([study.metric, [arm.name for arm in study.arms()], list(study.seeds)])
    among = f"{len(study.arms())} arms, {len(study.seeds)} seeds ({digest(runs)})"
    return dataclasses.asdict(study.halving) | {"among": among}


def _claims(study: Study) -> tuple[DeclaredClaim, ...]:
    pairs = zip(study.claims, study.contrasts(), strict=True)
    return tuple(declared_claim(claim, contrast, _unit(study, claim, contrast)) for claim, contrast in pairs)


def _unit(study: Study, claim: Claim | ScalingClaim, contrast: Contrast) -> str:
    if isinstance(claim, ScalingClaim) and study.scaling is not None:
        variable = variable_names(study.scaling.embeddings)[study.scaling.against]
        less = "" if claim.slope_below is None else " less"  # its contrast is minus the slope
        return f"{study.unit}{less} per factor of ten of {variable}".strip()
    return "" if any(QUANTITY in labels for _, labels in contrast.terms) else study.unit


def declaration(study: Study, programs: Sequence[ProgramGroup] | None = None) -> Declaration:
    """Return what a study declares, which is all that resuming and reporting need.

    Args:
      study: the study, which is traced.
      programs: its trials by program, if they are known.

    Raises:
      UserError: a run does not fit into memory, or cannot be traced; or its metric does not exist.
    """
    check_sizes(study)
    check_measure(study)
    check_traces(study)
    check_test_set(study)
    for arm in study.arms():
        initial_weights.read(Trial(arm, study.seeds[0]).run)  # raises where the weights have no place in the model
    recipes = _recipes(study)
    code = {} if study.derive is None else code_digests([study.derive], study.file)
    return Declaration(
        format=FORMAT,
        kind="study",
        name=study.name,
        question=study.question,
        metric=study.metric,
        unit=study.unit,
        goal=study.goal,
        combine=study.combine,
        axes=tuple(_axis(study, axis) for axis in study.axes),
        seeds=tuple(study.seeds),
        claims=_claims(study),
        caveats=caveats_of(study.caveats, study.baseline),
        references=study.baseline.task.references(),
        data_notes=tuple(data_notes(study.baseline.task)),
        parameters=params.count(model.specs(study.baseline.model)),
        evaluation_data=evaluation_data(study),
        evaluation_columns=tuple(evaluated_by(study.baseline)),
        scaling=_scaling(study),
        compare=_comparison(study),
        arms=_arms(study, recipes, groups(study.trials()) if programs is None else programs),
        recipes=recipes,
        code=code,
        measured_by="" if study.derive is None else measured_by(code, recipes),
    )


def _scaling(study: Study) -> DeclaredScaling | None:
    """Return the rule of a scaling law with the size of every arm; None without one."""
    if study.scaling is None:
        return None
    scales = {arm: ArmScale(**scale) for arm, scale in study.scales.items()}
    return DeclaredScaling(**vars(study.scaling), scales=scales)


def _comparison(study: Study) -> DeclaredComparison | None:
    """Return the rule of a comparison at equal cost, and what it changed in each arm; None without one."""
    if not isinstance(study.compare, EqualCost):
        return None
    arms = {
        name: MatchedArm(before=match.before, after=match.after, changes=dict(match.changes))
        for name, match in study.matches.items()
    }
    return DeclaredComparison(**vars(study.compare), arms=arms)


def _recipes(study: Study) -> dict[str, Recipe]:
    """Return the recipe of each arm by its name."""
    evaluated = {arm.name: (arm.run.task, arm.run.evaluations) for arm in study.arms()}
    data = {pair: data_of(*pair) for pair in set(evaluated.values())}
    code, halving = code_by_arm(study.arms(), study.measure, study.file), _competition(study)
    first = {trial.arm.name: trial for trial in study.trials()}
    known: Known = {}
    return {name: recipe(trial, data[evaluated[name]], code[name], halving, known) for name, trial in first.items()}


def _axis(study: Study, axis: Axis) -> DeclaredAxis:
    return DeclaredAxis(
        name=axis.name,
        path=", ".join(axis.paths),
        labels=tuple(study.labels(axis)),
        baseline=study.baseline_label(axis),
        coordinates=study.coordinates(axis),
    )


def _arms(study: Study, recipes: Mapping[str, Recipe], programs: Sequence[ProgramGroup]) -> tuple[DeclaredArm, ...]:
    """Return the arms, each with its program and the fingerprints of its trials."""
    names = {trial.arm.name: group.name for group in programs for trial in group.trials}
    return tuple(
        DeclaredArm(
            arm=arm.name,
            labels=arm.labels,
            group=names[arm.name],
            fingerprints=fingerprints(recipes[arm.name], study.seeds, weights := _initial_weights(study, arm)),
            initial_weights=weights,
        )
        for arm in study.arms()
    )


def _initial_weights(study: Study, arm: Arm) -> tuple[str, ...]:
    """Return the digest of the weights that the trial at each seed starts from; empty if all weights are drawn."""
    if arm.run.init is None:
        return ()
    return tuple(str(initial_weights.digest(Trial(arm, seed).run)) for seed in study.seeds)
