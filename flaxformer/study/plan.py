"""Plan of a study: the trials that share a compiled program, the identity of each trial, and the cost of a program."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from flaxformer import model
from flaxformer.core import params
from flaxformer.core.canonical import Known
from flaxformer.store.rows import is_reserved
from flaxformer.store.store import FORMAT
from flaxformer.study import initial_weights
from flaxformer.study.arm import Arm, Trial
from flaxformer.study.axis import Axis
from flaxformer.study.claim import QUANTITY, Claim, Contrast
from flaxformer.study.declare import Measure, Study
from flaxformer.study.equal_cost import EqualCost
from flaxformer.study.evaluation_data import check_test_set, evaluation_data
from flaxformer.study.identity import code_by_arm, data_of, digest, fingerprint, fingerprints, measured_by, recipe
from flaxformer.study.metrics import METRICS, columns_of, metrics_of
from flaxformer.study.scale import variable_names
from flaxformer.study.scaling_claim import ScalingClaim
from flaxformer.study.tracing import check_traces
from flaxformer.study.user_functions import calling, check_column
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.files import safe_name
from flaxformer.system.user_code import code_digests
from flaxformer.training import Run, evaluation_params, start
from flaxformer.training.evaluation import evaluated_by
from flaxformer.training.memory import check_memory


@dataclasses.dataclass(frozen=True)
class ProgramGroup:
    """Trials whose runs have the same tree structure, and so share one compiled program."""

    name: str
    trials: tuple[Trial, ...]
    size: int
    """Number of trials of the whole group; `trials` may be only the missing ones."""
    measure: Measure | None = None
    """Function of further metrics, called at every evaluation."""
    file: Path | None = None
    """The study's file."""
    initial_weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Digest, when the study was declared, of the weights that a trial starts from, by the trial's name."""

    @property
    def example(self) -> Run:
        """Run of the first trial, for what all trials share: shapes, steps and data."""
        return self.trials[0].run

    @property
    def steps(self) -> int:
        """Number of training steps of each trial: all, or those to a rung of a halving."""
        return self.trials[0].until or self.example.training.steps


def groups(trials: Sequence[Trial], measure: Measure | None = None, file: Path | None = None) -> list[ProgramGroup]:
    """Group trials by the tree structure of their runs, in the order of first appearance.

    Runs that start from weights share a program, whatever the source of each; runs that draw all weights have another.
    """
    arms = {id(trial.arm): trial.arm for trial in trials}
    structures = {key: _structure(arm.run) for key, arm in arms.items()}  # a seed is a leaf
    members: dict[tuple[jax.tree_util.PyTreeDef, bool], list[Trial]] = {own: [] for own in structures.values()}
    for trial in trials:
        members[structures[id(trial.arm)]].append(trial)
    levels = _levels(arms.values())
    return [ProgramGroup(_group_name(own, levels), tuple(own), len(own), measure, file) for own in members.values()]


def _structure(run: Run) -> tuple[jax.tree_util.PyTreeDef, bool]:
    """The tree structure of a run as its program sees it, and whether weights are loaded."""
    return jax.tree.structure(run.without_init), run.init is not None


def _levels(arms: Iterable[Arm]) -> dict[str, set[str]]:
    """Return the labels of arms on each axis."""
    found: dict[str, set[str]] = {}
    for arm in arms:
        for name, label in arm.labels.items():
            found.setdefault(name, set()).add(label)
    return found


def _group_name(own: Sequence[Trial], levels: Mapping[str, set[str]]) -> str:
    """Return the labels that only this group has, made safe for a file name, with a digest of its structure."""
    shared = _levels({id(trial.arm): trial.arm for trial in own}.values())
    distinct = [f"{name}={next(iter(own))}" for name, own in shared.items() if len(own) == 1 < len(levels[name])]
    return safe_name(",".join(distinct) or "all", distinct=str(_structure(own[0].run)))


def check_sizes(study: Study) -> None:
    """Refuse a study with a run that cannot fit into memory, before any is allocated.

    Raises:
      UserError: the first arm of a program needs more memory than there is.
    """
    examples = {jax.tree.structure(arm.run): arm for arm in reversed(study.arms())}
    for arm in examples.values():
        check_memory(arm.run, f"arm '{arm.name}'")


def check_measured(study: Study) -> None:
    """Trace `measure` on the baseline, without computing it.

    Raises:
      UserError: a result is not a scalar, a name is reserved or an axis', or the study's metric is missing.
    """
    taken = {axis.name for axis in study.axes} | columns_of(study.baseline)
    shapes = jax.eval_shape(lambda run: _measured(study, run), jax.tree.map(jnp.asarray, study.baseline))
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


def _measured(study: Study, run: Run) -> dict[str, jax.Array]:
    if study.measure is None:
        return {}
    with calling("measure", "with the baseline, when it is traced"):
        run = run.without_init
        values = study.measure(evaluation_params(start(run), run), run)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UserError(f"measure returns {values!r}; expected a dict of scalars by name")
    return dict(values)


def _competition(study: Study) -> JsonObject:
    """Return what determines the arms that a halving stops, besides their recipes: its rule and the competing runs."""
    if study.halving is None:
        return {}
    runs = json.dumps([study.metric, [arm.name for arm in study.arms()], list(study.seeds)])
    among = f"{len(study.arms())} arms, {len(study.seeds)} seeds ({digest(runs)})"
    return {"halving": dataclasses.asdict(study.halving) | {"among": among}}


def _claims(study: Study) -> list[JsonObject]:
    """Return the claims as plain data, each with its contrast."""
    return [
        {"text": claim.text, "kind": claim.kind, "by": claim.by, "within": claim.within}
        | {"unit": _unit(study, claim, contrast)}
        | dataclasses.asdict(contrast)
        | claim.declared_answers
        for claim, contrast in zip(study.claims, study.contrasts(), strict=True)
    ]


def _unit(study: Study, claim: Claim | ScalingClaim, contrast: Contrast) -> str:
    if isinstance(claim, ScalingClaim) and study.scaling is not None:
        variable = variable_names(study.scaling.embeddings)[study.scaling.against]
        return f"{study.unit} per factor of ten of {variable}".strip()
    return "" if any(QUANTITY in labels for _, labels in contrast.terms) else study.unit


def declaration(study: Study) -> JsonObject:
    """Return the study as plain data, which is all that resuming and reporting need.

    Raises:
      UserError: a run does not fit into memory, or cannot be traced; or its metric does not exist.
    """
    check_sizes(study)
    check_measured(study)
    check_traces(study)
    check_test_set(study)
    for arm in study.arms():
        initial_weights.read(Trial(arm, study.seeds[0]).run)  # raises where the weights have no place in the model
    recipes = _recipes(study)
    return {
        "format": FORMAT,
        "kind": "study",
        "name": study.name,
        "question": study.question,
        "metric": study.metric,
        "unit": study.unit,
        "goal": study.goal,
        "axes": [_axis(study, axis) for axis in study.axes],
        "seeds": list(study.seeds),
        "claims": _claims(study),
        "caveats": list(study.caveats),
        "references": study.baseline.task.references(),
        "parameters": params.count(model.specs(study.baseline.model)),
        "evaluation_data": evaluation_data(study),
        "scaling": None if study.scaling is None else study.scaling.rule() | {"scales": study.scales},
        "trials": _trials(study, recipes),
        "recipes": recipes,
        **_derived(study, recipes),
        **_named_evaluations(study),
    } | _comparison(study)


def _derived(study: Study, recipes: Mapping[str, JsonObject]) -> JsonObject:
    """Return the identity of the derived numbers, which depend on `derive` and on every arm."""
    if study.derive is None:
        return {"measured_by": "", "code": {}}
    code = code_digests([study.derive], study.file)
    return {"measured_by": measured_by(code, recipes), "code": code}


def _named_evaluations(study: Study) -> JsonObject:
    """Return the columns of the baseline's named evaluations, for reports; empty without any."""
    named = evaluated_by(study.baseline)
    return {"evaluation_columns": list(named)} if named else {}


def _comparison(study: Study) -> JsonObject:
    """Return the rule of a comparison at equal cost, and what it changed in each arm; empty without one."""
    if not isinstance(study.compare, EqualCost):
        return {}
    arms = {
        name: {
            "before": own.before,
            "after": own.after,
            "changes": {path: list(pair) for path, pair in own.changes.items()},
        }
        for name, own in study.matches.items()
    }
    return {"compare": dataclasses.asdict(study.compare) | {"arms": arms}}


def _recipes(study: Study) -> dict[str, JsonObject]:
    """Return the recipe of each arm by its name."""
    parts = {arm.name: (arm.run.task, arm.run.evaluations) for arm in study.arms()}
    data = {own: data_of(*own) for own in set(parts.values())}
    code, competition = code_by_arm(study.arms(), study.measure, study.file), _competition(study)
    first = {trial.arm.name: trial for trial in study.trials()}
    known: Known = {}
    return {name: recipe(trial, data[parts[name]], code[name], known) | competition for name, trial in first.items()}


def _axis(study: Study, axis: Axis) -> JsonObject:
    return {
        "name": axis.name,
        "path": ", ".join(axis.paths),
        "labels": study.labels(axis),
        "baseline": study.baseline_label(axis),
        "coordinates": study.coordinates(axis),
    }


def _trials(study: Study, recipes: Mapping[str, JsonObject]) -> list[JsonObject]:
    """Return the trials as plain data, each with its program and its fingerprint."""
    trials = study.trials()
    names = {trial.arm.name: group.name for group in groups(trials) for trial in group.trials}
    seeds = list(study.seeds)
    identities = {name: dict(zip(seeds, fingerprints(own, seeds), strict=True)) for name, own in recipes.items()}
    return [
        {
            "trial": trial.name,
            "group": names[trial.arm.name],
            "labels": trial.arm.labels,
            "seed": trial.seed,
            "fingerprint": identities[trial.arm.name][trial.seed]
            if trial.arm.run.init is None
            else fingerprint(recipes[trial.arm.name] | _initial_weights(trial), trial.seed),
        }
        | _initial_weights(trial)
        for trial in trials
    ]


def _initial_weights(trial: Trial) -> JsonObject:
    """The digest of the weights that a trial starts from, as the declaration holds it; empty if all are drawn."""
    return {} if trial.arm.run.init is None else {"initial_weights": initial_weights.digest(trial.run)}
