"""Identity of trials: the recipe of an arm, with the digests of the user's code, and fingerprints."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import flaxformer
from flaxformer.core.canonical import Known, canonical, classes_in
from flaxformer.store.declaration import Recipe
from flaxformer.study.arm import Arm, Trial
from flaxformer.study.declare import Measure
from flaxformer.system.digests import JsonObject
from flaxformer.system.typed_data import plain
from flaxformer.system.user_code import code_digests
from flaxformer.tasks.base import Task
from flaxformer.tasks.evaluations import Evaluation
from flaxformer.training import Run


def recipe(
    trial: Trial,
    data: JsonObject,
    code: Mapping[str, str],
    halving: JsonObject | None = None,
    known: Known | None = None,
) -> Recipe:
    """Return everything but the seed that determines a trial's numbers: config, data, package semantics, user code."""
    run = {name: value for name, value in canonical(trial.arm.run, known).items() if name != "seed"}
    return Recipe(
        semantics=flaxformer.SEMANTICS, data=data, run=run, until=trial.until, code=dict(code), halving=halving
    )


def data_of(task: Task, evaluations: Sequence[Evaluation]) -> JsonObject:
    """Return the fingerprint of a task's data, and those of named evaluations, whose keys begin with the name."""
    named = {
        f"{evaluation.name} {key}": value
        for evaluation in evaluations
        for key, value in evaluation.fingerprint().items()
    }
    return task.fingerprint() | named


def code_by_arm(arms: Iterable[Arm], measure: Measure | None, file: Path | None) -> dict[str, dict[str, str]]:
    """Return the digests of the user code that each arm depends on, by the arm's name."""
    by_kinds: dict[tuple[type, ...], dict[str, str]] = {}
    of_components: dict[int, tuple[object, list[type]]] = {}  # arms have components in common
    by_arm = {}
    for arm in arms:
        kinds = tuple(_classes_of_run(arm.run, of_components))
        if kinds not in by_kinds:
            by_kinds[kinds] = code_digests([*kinds, *([] if measure is None else [measure])], file)
        by_arm[arm.name] = by_kinds[kinds]
    return by_arm


def _classes_of_run(run: Run, of_components: dict[int, tuple[object, list[type]]]) -> list[type]:
    """Return `classes_in` a run, from the classes in its components."""
    classes: list[type] = [type(run)]
    for field in dataclasses.fields(run):
        component = getattr(run, field.name)
        if id(component) not in of_components:
            of_components[id(component)] = component, classes_in(component)
        classes += of_components[id(component)][1]
    return list(dict.fromkeys(classes))


def fingerprints(recipe: Recipe, seeds: Sequence[int], initial_weights: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the identity of an arm's trial at each seed in 16 hexadecimal digits: a digest of [recipe, seed] as JSON.

    Digests of the weights that the trials start from, where some are not drawn, are part of the recipes.
    """
    weights = [{"initial_weights": start} for start in initial_weights] or [{}]
    texts = [json.dumps(plain(recipe) | start, sort_keys=True, ensure_ascii=False) for start in weights]
    pairs = zip(seeds, texts if initial_weights else texts * len(seeds), strict=True)
    return tuple(digest(f"[{text}, {json.dumps(seed)}]") for seed, text in pairs)


def digest(text: str) -> str:
    """Return the digest of a text in 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def measured_by(code: Mapping[str, str], recipes: Mapping[str, Recipe] | None = None) -> str:
    """Return the identity of a measurement: a digest of the package's semantics and of the user's code.

    Args:
      code: digests of the code that measures or derives, by the name of the definition.
      recipes: recipes of the arms whose results the numbers are derived from; None for a probe.
    """
    arms = [] if recipes is None else [{name: plain(recipe) for name, recipe in recipes.items()}]
    content = [flaxformer.SEMANTICS, dict(code), *arms]
    return digest(json.dumps(content, sort_keys=True))
