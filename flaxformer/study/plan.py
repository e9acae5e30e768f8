"""Planning: which trials share a program, what is already done, what the rest will cost."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import flaxformer
from flaxformer import model, params
from flaxformer.config import ModelConfig
from flaxformer.store.store import FORMAT
from flaxformer.struct import UserError, canonical, classes_in, did_you_mean
from flaxformer.study.claim import QUANTITY
from flaxformer.study.declare import METRICS, RESERVED, Arm, Measure, Study, Trial
from flaxformer.tasks.base import AnyBatch, Source
from flaxformer.training import Run, start, train_step
from flaxformer.training.micro_batches import micro_batches
from flaxformer.user_code import code_digests


@dataclasses.dataclass(frozen=True)
class ProgramGroup:
    """Trials whose runs have one tree structure, and so one program, differing in numbers alone."""

    name: str
    trials: tuple[Trial, ...]
    size: int
    """Number of trials of the whole group, also when `trials` are only those that are missing."""
    measure: Measure | None = None
    """Further numbers of a model, taken at every evaluation."""
    file: Path | None = None
    """The study's file."""

    @property
    def example(self) -> Run:
        """A member, for everything that all members share: shapes, steps, data."""
        return self.trials[0].run

    @property
    def steps(self) -> int:
        """Number of training steps of every member: all, or up to a rung of a halving."""
        return self.trials[0].until or self.example.training.steps


def groups(trials: Sequence[Trial], measure: Measure | None = None, file: Path | None = None) -> list[ProgramGroup]:
    """Trials by the tree structure of their runs, in the order of first appearance."""
    members: dict[Any, list[Trial]] = {}
    structures = {id(trial.arm): jax.tree.structure(trial.arm.run) for trial in trials}  # a seed is a leaf
    for trial in trials:
        members.setdefault(structures[id(trial.arm)], []).append(trial)
    return [ProgramGroup(_group_name(own, trials), tuple(own), len(own), measure, file) for own in members.values()]


def _group_name(own: Sequence[Trial], trials: Sequence[Trial]) -> str:
    """The labels that tell this group from the others, made safe for a file name, and a digest of its structure."""
    labels = own[0].arm.labels
    shared = {name: label for name, label in labels.items() if all(trial.arm.labels[name] == label for trial in own)}
    telling = [f"{n}={v}" for n, v in shared.items() if any(trial.arm.labels[n] != v for trial in trials)]
    safe = "".join(c if c.isalnum() or c in "=,._-" else "_" for c in ",".join(telling) or "all")
    structure = str(jax.tree.structure(own[0].run))
    safe = safe.lstrip(".").encode()[:80].decode(errors="ignore")
    return f"{safe}-{hashlib.blake2b(structure.encode(), digest_size=4).hexdigest()}"


def check_measured(study: Study) -> None:
    """Trace `measure` on the baseline, without computing anything.

    Raises:
      UserError: it gives anything but scalars, a name that is taken, or not the study's metric.
    """
    taken = [axis.name for axis in study.axes]
    shapes = jax.eval_shape(lambda run: _measured(study, run), jax.tree.map(jnp.asarray, study.baseline))
    for name, shape in shapes.items():
        if name in taken or RESERVED.fullmatch(name) or name.endswith("_curve"):
            raise UserError(f"measure gives '{name}', which is the name of another column; expected a name of its own")
        if shape.shape:
            raise UserError(f"measure gives '{name}' of shape {list(shape.shape)}; expected a scalar")
    if study.metric not in (*METRICS, *shapes):
        raise UserError(f"metric is '{study.metric}'{did_you_mean(study.metric, [*METRICS, *shapes])}")


def _measured(study: Study, run: Run) -> dict[str, Any]:
    return dict(study.measure(start(run).params, run)) if study.measure else {}


def recipe(trial: Trial, data: dict[str, Any], code: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides a trial's numbers, except its seed: config, data, package semantics, user code."""
    run = {name: value for name, value in canonical(trial.arm.run).items() if name != "seed"}
    until = {"until": trial.until} if trial.until else {}
    return {"semantics": flaxformer.SEMANTICS, "data": data, "run": run} | until | ({"code": code} if code else {})


def code_by_arm(arms: Iterable[Arm], measure: Measure | None, file: Path | None) -> dict[str, dict[str, str]]:
    """Digests of the user code behind each arm, by the arm's name."""
    known: dict[tuple[type, ...], dict[str, str]] = {}
    found = {}
    for arm in arms:
        kinds = tuple(classes_in(arm.run))
        if kinds not in known:
            known[kinds] = code_digests([*kinds, *([] if measure is None else [measure])], file)
        found[arm.name] = known[kinds]
    return found


def _competition(study: Study) -> dict[str, Any]:
    """Return what decides which arms a halving stops, beside their recipes: its rule, and the runs that compete."""
    if study.halving is None:
        return {}
    runs = json.dumps([study.metric, [arm.name for arm in study.arms()], list(study.seeds)])
    among = f"{len(study.arms())} arms, {len(study.seeds)} seeds ({digest(runs)})"
    return {"halving": dataclasses.asdict(study.halving) | {"among": among}}


def fingerprint(recipe: dict[str, Any], seed: int) -> str:
    """A trial's identity in 16 hexadecimal digits."""
    return digest(json.dumps([recipe, seed], sort_keys=True, ensure_ascii=False))


def digest(text: str) -> str:
    """A text in 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _claims(study: Study) -> list[dict[str, Any]]:
    """The claims as plain data, each with the runs that it compares."""
    return [
        {"text": claim.text, "kind": claim.kind, "by": claim.by, "within": claim.within}
        | {"unit": "" if any(QUANTITY in labels for _, labels in contrast.terms) else study.unit}
        | dataclasses.asdict(contrast)
        for claim, contrast in zip(study.claims, study.contrasts(), strict=True)
    ]


def declaration(study: Study) -> dict[str, Any]:
    """The study as plain data: everything that resuming and reporting need, without the study's file."""
    check_measured(study)
    trials = study.trials()
    names = {trial.name: group.name for group in groups(trials) for trial in group.trials}
    data = {task: task.fingerprint() for task in {arm.run.task for arm in study.arms()}}
    rule = _competition(study)
    code = code_by_arm(study.arms(), study.measure, study.file)
    first = {trial.arm.name: trial for trial in trials}
    recipes = {name: recipe(trial, data[trial.arm.run.task], code[name]) | rule for name, trial in first.items()}
    return {
        "format": FORMAT,
        "kind": "study",
        "name": study.name,
        "question": study.question,
        "metric": study.metric,
        "unit": study.unit,
        "axes": [
            {
                "name": axis.name,
                "path": ", ".join(axis.paths),
                "labels": study.labels(axis),
                "baseline": study.baseline_label(axis),
            }
            for axis in study.axes
        ],
        "seeds": list(study.seeds),
        "claims": _claims(study),
        "caveats": list(study.caveats),
        "references": study.baseline.task.references(),
        "parameters": params.count(model.specs(study.baseline.model)),
        "trials": [
            {
                "trial": trial.name,
                "group": names[trial.name],
                "labels": trial.arm.labels,
                "seed": trial.seed,
                "fingerprint": fingerprint(recipes[trial.arm.name], trial.seed),
            }
            for trial in trials
        ],
        "recipes": recipes,
        "measured_by": "derived",
        "code": {} if study.derive is None else code_digests([study.derive], study.file),
    }


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one group, measured from the compiled training step and a few timed calls of it."""

    parameters: int
    flops_per_step: float
    bytes_per_member: int
    seconds_per_step: float
    compile_seconds: float

    def seconds(self, group: ProgramGroup, devices: int) -> float:
        """Estimated seconds for the group on this many devices."""
        work = self.seconds_per_step * group.steps * len(group.trials)
        return self.compile_seconds + work / min(devices, len(group.trials))


def cost(group: ProgramGroup) -> Cost:
    """The cost of a group's first member."""
    return cost_of_run(group.example)


def cost_of_run(run: Run, timed_steps: int = 5) -> Cost:
    """Compile one training step and time it, on a state of noise: drawing a start would be one more program."""
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
    """Numbers from 0 to 0.02 in a leaf's shape; not zeros, which some devices multiply faster."""
    return np.resize(0.02 * np.random.default_rng(0).random(2**16, np.float32), leaf.shape).astype(leaf.dtype)


def _first_batch(source: Source) -> AnyBatch:
    return source.batch(jax.random.key(0), 0)


def slow_decoding(models: Iterable[ModelConfig]) -> list[str]:
    """A line for each token mixer without a decoding state, which is decoded by reading the whole prefix again."""
    mixers = [found for model in models for found in model.mixers_without_state.items()]
    names = dict.fromkeys(f"model.{path} {type(mixer).__name__}" for path, mixer in mixers)
    return [f"decoding is slow with {name}: without a decoding state, it reads all tokens again" for name in names]
