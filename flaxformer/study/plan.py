"""Plan of a study: the trials that share a compiled program, the identity of each trial, and the cost of a program."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import flaxformer
from flaxformer import model, params
from flaxformer.canonical import canonical, classes_in
from flaxformer.config import ModelConfig
from flaxformer.digests import JsonObject
from flaxformer.files import safe_name
from flaxformer.store.rows import is_reserved
from flaxformer.store.store import FORMAT
from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.axis import Axis
from flaxformer.study.claim import QUANTITY
from flaxformer.study.declare import METRICS, Arm, Measure, Study, Trial
from flaxformer.study.evaluation_data import check_test_set, evaluation_data
from flaxformer.study.user_functions import calling
from flaxformer.tasks.base import AnyBatch, Source
from flaxformer.training import Run, start, train_step
from flaxformer.training.micro_batches import micro_batches
from flaxformer.user_code import code_digests


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

    @property
    def example(self) -> Run:
        """Run of the first trial, for what all trials share: shapes, steps and data."""
        return self.trials[0].run

    @property
    def steps(self) -> int:
        """Number of training steps of each trial: all, or those to a rung of a halving."""
        return self.trials[0].until or self.example.training.steps


def groups(trials: Sequence[Trial], measure: Measure | None = None, file: Path | None = None) -> list[ProgramGroup]:
    """Group trials by the tree structure of their runs, in the order of first appearance."""
    members: dict[jax.tree_util.PyTreeDef, list[Trial]] = {}
    structures = {id(trial.arm): jax.tree.structure(trial.arm.run) for trial in trials}  # a seed is a leaf
    for trial in trials:
        members.setdefault(structures[id(trial.arm)], []).append(trial)
    return [ProgramGroup(_group_name(own, trials), tuple(own), len(own), measure, file) for own in members.values()]


def _group_name(own: Sequence[Trial], trials: Sequence[Trial]) -> str:
    """Return the labels that only this group has, made safe for a file name, with a digest of its structure."""
    labels = own[0].arm.labels
    shared = {name: label for name, label in labels.items() if all(trial.arm.labels[name] == label for trial in own)}
    distinct = [f"{n}={v}" for n, v in shared.items() if any(trial.arm.labels[n] != v for trial in trials)]
    return safe_name(",".join(distinct) or "all", distinct=str(jax.tree.structure(own[0].run)))


def check_measured(study: Study) -> None:
    """Trace `measure` on the baseline, without computing it.

    Raises:
      UserError: a result is not a scalar, a name is reserved or an axis', or the study's metric is missing.
    """
    taken = [axis.name for axis in study.axes]
    shapes = jax.eval_shape(lambda run: _measured(study, run), jax.tree.map(jnp.asarray, study.baseline))
    for name, shape in shapes.items():
        if name in taken or name == QUANTITY or is_reserved(name):
            raise UserError(f"measure returns '{name}', which is the name of another column; expected another name")
        if shape.shape:
            raise UserError(f"measure returns '{name}' of shape {list(shape.shape)}; expected a scalar")
    if study.metric not in (*METRICS, *shapes):
        raise UserError(f"metric is '{study.metric}'{did_you_mean(study.metric, [*METRICS, *shapes])}")


def _measured(study: Study, run: Run) -> dict[str, jax.Array]:
    if study.measure is None:
        return {}
    with calling("measure", study.measure, "with the baseline, when it is traced"):
        values = study.measure(start(run).params, run)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UserError(f"measure returns {values!r}; expected a dict of scalars by name")
    return dict(values)


def recipe(trial: Trial, data: JsonObject, code: Mapping[str, str]) -> JsonObject:
    """Return everything but the seed that determines a trial's numbers: config, data, package semantics, user code."""
    run = {name: value for name, value in canonical(trial.arm.run).items() if name != "seed"}
    until = {"until": trial.until} if trial.until else {}
    return {"semantics": flaxformer.SEMANTICS, "data": data, "run": run} | until | ({"code": code} if code else {})


def code_by_arm(arms: Iterable[Arm], measure: Measure | None, file: Path | None) -> dict[str, dict[str, str]]:
    """Return the digests of the user code that each arm depends on, by the arm's name."""
    by_kinds: dict[tuple[type, ...], dict[str, str]] = {}
    found = {}
    for arm in arms:
        kinds = tuple(classes_in(arm.run))
        if kinds not in by_kinds:
            by_kinds[kinds] = code_digests([*kinds, *([] if measure is None else [measure])], file)
        found[arm.name] = by_kinds[kinds]
    return found


def _competition(study: Study) -> JsonObject:
    """Return what determines the arms that a halving stops, besides their recipes: its rule and the competing runs."""
    if study.halving is None:
        return {}
    runs = json.dumps([study.metric, [arm.name for arm in study.arms()], list(study.seeds)])
    among = f"{len(study.arms())} arms, {len(study.seeds)} seeds ({digest(runs)})"
    return {"halving": dataclasses.asdict(study.halving) | {"among": among}}


def fingerprint(recipe: JsonObject, seed: int) -> str:
    """Return the identity of a trial in 16 hexadecimal digits."""
    return digest(json.dumps([recipe, seed], sort_keys=True, ensure_ascii=False))


def digest(text: str) -> str:
    """Return the digest of a text in 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _claims(study: Study) -> list[JsonObject]:
    """Return the claims as plain data, each with its contrast."""
    return [
        {"text": claim.text, "kind": claim.kind, "by": claim.by, "within": claim.within}
        | {"unit": "" if any(QUANTITY in labels for _, labels in contrast.terms) else study.unit}
        | dataclasses.asdict(contrast)
        | claim.declared_answers
        for claim, contrast in zip(study.claims, study.contrasts(), strict=True)
    ]


def declaration(study: Study) -> JsonObject:
    """Return the study as plain data, which is all that resuming and reporting need."""
    check_measured(study)
    check_test_set(study)
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
        "trials": _trials(study, recipes),
        "recipes": recipes,
        "measured_by": "derived",
        "code": {} if study.derive is None else code_digests([study.derive], study.file),
    }


def _recipes(study: Study) -> dict[str, JsonObject]:
    """Return the recipe of each arm by its name."""
    data = {task: task.fingerprint() for task in {arm.run.task for arm in study.arms()}}
    code, competition = code_by_arm(study.arms(), study.measure, study.file), _competition(study)
    first = {trial.arm.name: trial for trial in study.trials()}
    return {name: recipe(trial, data[trial.arm.run.task], code[name]) | competition for name, trial in first.items()}


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
    names = {trial.name: group.name for group in groups(trials) for trial in group.trials}
    return [
        {
            "trial": trial.name,
            "group": names[trial.name],
            "labels": trial.arm.labels,
            "seed": trial.seed,
            "fingerprint": fingerprint(recipes[trial.arm.name], trial.seed),
        }
        for trial in trials
    ]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a group, measured on its compiled training step."""

    parameters: int
    flops_per_step: float
    bytes_per_member: int
    seconds_per_step: float
    compile_seconds: float

    def seconds(self, group: ProgramGroup, devices: int) -> float:
        """Return the estimated seconds of the group on so many devices."""
        work = self.seconds_per_step * group.steps * len(group.trials)
        return self.compile_seconds + work / min(devices, len(group.trials))


def cost(group: ProgramGroup) -> Cost:
    """Return the cost of a group, measured on its first trial."""
    return cost_of_run(group.example)


def cost_of_run(run: Run, timed_steps: int = 5) -> Cost:
    """Compile one training step and time it on a random state, which needs no compiled initialization."""
    run = jax.tree.map(jnp.asarray, run)
    state = jax.tree.map(_noise, jax.eval_shape(start, run))
    batch = jax.jit(_first_batch)(run.task.load())
    begin = time.perf_counter()
    step = jax.jit(train_step).lower(state, run, batch).compile()
    compiled = time.perf_counter()
    state, _ = step(state, run, batch)
    jax.block_until_ready(state)
    warm = time.perf_counter()
    for _ in range(timed_steps):
        state, _ = step(state, run, batch)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - warm) / timed_steps
    memory, analysis = step.memory_analysis(), step.cost_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes if memory else 0
    flops = float((analysis or {}).get("flops", 0)) * micro_batches(run)  # a scan's body is counted once
    return Cost(params.count(model.specs(run.model)), flops, used, seconds, compiled - begin)


def _noise(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return numbers from 0 to 0.02 in the shape of a leaf; some devices multiply zeros faster."""
    return np.resize(0.02 * np.random.default_rng(0).random(2**16, np.float32), leaf.shape).astype(leaf.dtype)


def _first_batch(source: Source) -> AnyBatch:
    return source.batch(jax.random.key(0), 0)


def slow_decoding(models: Iterable[ModelConfig]) -> list[str]:
    """Return a warning per token mixer without a decoding state, which reads the whole prefix again for each token."""
    mixers = [found for model in models for found in model.mixers_without_state.items()]
    names = dict.fromkeys(f"model.{path} {type(mixer).__name__}" for path, mixer in mixers)
    return [f"decoding is slow with {name}: it has no decoding state and reads all tokens again" for name in names]
