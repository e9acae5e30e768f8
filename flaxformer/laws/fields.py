"""Law of fields: every field of the model's config changes something."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from flaxformer import model
from flaxformer.config import Block
from flaxformer.laws.law import OK, Finding, difference, law, violated
from flaxformer.laws.programs import equations, fast_jit, program_text
from flaxformer.laws.subject import Subject, random_key, start_state
from flaxformer.struct import Config, get_at, replace_at
from flaxformer.training import Run
from flaxformer.training.step import forward, start
from flaxformer.training.step import loss as loss_of


@law("fields", "every field of the model's config changes something")
def fields(subject: Subject) -> Finding:
    """Change each number a little, and each static field of the user's own components."""
    before = _results(subject.params, subject.run, subject.batch, random_key())
    numbers = _field_paths(subject.run, ("model", "loss_terms"), True)
    choices = _field_paths(subject.run, ("model",), False)
    idle = [path for path in numbers if not _number_matters(subject, path, before)]
    idle += [path for path in choices if not _choice_matters(subject, path, before)]
    return OK if not idle else violated(f"changing {', '.join(idle)} changes nothing")


def _forward(weights: Any, run: Run, batch: Any, key: Any) -> Any:
    """Return the output, the training loss, and the weights and statistics that the call gives."""
    training, outcome = loss_of(weights, run, batch, key)
    return forward(weights, run, batch).output, training, outcome.aux.weights, outcome.aux.statistics


_results = fast_jit(_forward)


def _number_matters(subject: Subject, path: str, before: Any) -> bool:
    """True if some other value of a number changes the output, the loss or the initial weights."""
    value, has_valid = get_at(subject.run, path), False
    for other in _other_numbers(value):
        try:
            run = replace_at(subject.run, {path: other})
        except ValueError:
            continue
        has_valid = True
        if _differs(before, _results(subject.params, run, subject.batch, random_key())):
            return True
        with jax.enable_x64(False):
            if _differs(subject.started.params, start_state(run).params):
                return True
    return not has_valid


def _differs(one: Any, two: Any) -> bool:
    return any(difference(a, b) > 0 for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def _other_numbers(value: float) -> list[float]:
    """Return other values of a number, near and far."""
    if isinstance(value, int):
        found: list[float] = [value + 1, value - 1, 1, 2, value // 2, 3, 5]
    else:
        gap = 0.1 * abs(value) + 0.05
        found = [value + gap, value - gap, 0.5 * value, 0.1 * value, 2 * value, 10 * value, 0.0, 1.0, -1.0]
    return [other for other in dict.fromkeys(found) if other != value]


def _field_paths(run: Run, roots: tuple[str, ...], is_leaf: bool) -> list[str]:
    """Return the paths of `_paths` within fields of a run, without those that another choice replaces."""
    found = [root + path for root in roots for path in _paths(getattr(run, root), is_leaf)]
    return [path for path in found if not _is_replaced(path, run.model)]


def _is_replaced(path: str, config: Any) -> bool:
    """True if another choice replaces a field: no layers or norms, a frozen pattern, the blocks of a pattern."""
    owner, _, last = path.rpartition(".")
    if last in ("scale_exponent", "logit_cap") and owner.startswith("model."):
        frozen = getattr(get_at(config, owner.removeprefix("model.")), "frozen_pattern", None)
        if frozen is not None:  # attention without logits of its own
            return True
    pattern, name = config.pattern, path.split(".")[1]
    if name == "norm_kind" and config.norm_kind not in config.norms:
        return True
    if config.layers == 0 and name != "norm_kind" and name in Block.__dataclass_fields__:
        return True
    return bool(pattern) and path.startswith("model.") and all(name in block.changes() for block in pattern)


def _paths(config: Any, is_leaf: bool) -> Iterator[str]:
    """Yield the paths of numbers, or (is_leaf=False) of the static fields of the user's own components.

    Fields that are None have none.
    """
    if isinstance(config, tuple):
        for number, item in enumerate(config):
            yield from (f".{number}{path}" for path in _paths(item, is_leaf))
        return
    for field in dataclasses.fields(config) if isinstance(config, Config) else ():
        value, is_node = getattr(config, field.name), field.metadata["pytree_node"]
        if isinstance(value, Config | tuple) and is_node:
            yield from (f".{field.name}{path}" for path in _paths(value, is_leaf))
        elif (is_leaf and is_node and isinstance(value, int | float) and not isinstance(value, bool)) or (
            not is_leaf and not is_node and value is not None and _is_own(config)
        ):
            yield f".{field.name}"


def _is_own(config: Config) -> bool:
    """True if the class of a config is the user's own."""
    return type(config).__module__.partition(".")[0] != "flaxformer"


def _choice_matters(subject: Subject, path: str, before: Any) -> bool:
    """True if some other value of a static field changes the shapes or the program.

    A program that differs in constants alone is run, for the constants may cancel.
    """
    owner = get_at(subject.run, path.rpartition(".")[0])
    [field] = [field for field in dataclasses.fields(owner) if field.name == path.rpartition(".")[2]]
    own, has_valid = None, False
    for other in _other_choices(getattr(owner, field.name), field.metadata["choices"]):
        try:
            run = replace_at(subject.run, {path: other})
            if model.specs(run.model) != model.specs(subject.config):
                return True
            traced = jax.make_jaxpr(_forward)(subject.params, run, subject.batch, random_key())
        except Exception:  # Not a valid value, or not one for this model.
            continue
        has_valid = True
        own = own or jax.make_jaxpr(_forward)(subject.params, subject.run, subject.batch, random_key())
        if _structure(traced) != _structure(own):
            return True
        is_same = program_text(traced) == program_text(own)
        if not is_same and _differs(before, _results(subject.params, run, subject.batch, random_key())):
            return True
        with jax.enable_x64(False):
            if program_text(jax.make_jaxpr(start)(run)) != program_text(jax.make_jaxpr(start)(subject.run)):
                return True
    return not has_valid


def _structure(traced: Any) -> list[Any]:
    """Return the operations of a traced program and the shapes of their results."""
    return [
        (equation.primitive.name, tuple(getattr(v.aval, "shape", ()) for v in equation.outvars))
        for equation in equations(traced.jaxpr)
    ]


def _other_choices(value: Any, choices: Any) -> list[Any]:
    """Return other values of a static field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [other for other in choices or () if other != value][:4]
    if isinstance(value, int):
        return [other for other in (value + 1, 2 * value, value - 1, max(1, value // 2)) if other != value]
    return [other for other in (2 * value, value + 0.1) if other != value] if isinstance(value, float) else []
