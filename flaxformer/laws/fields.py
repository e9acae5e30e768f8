"""Law of fields: every field of a model's config, of loss terms, and of user-defined optimizers changes something."""

import dataclasses
import inspect
from collections.abc import Collection, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, PyTree

from flaxformer import model
from flaxformer.components import Attention
from flaxformer.config import Block, ModelConfig
from flaxformer.core.paths import get_at, replace_at
from flaxformer.core.struct import Config
from flaxformer.laws.calls import random_key, start_state
from flaxformer.laws.configs import is_user_defined
from flaxformer.laws.law import Finding, difference, law, violation
from flaxformer.laws.programs import equations, fast_jit, program_text
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer
from flaxformer.tasks.batch import Batch
from flaxformer.training import Run
from flaxformer.training.loss import forward
from flaxformer.training.loss import loss as loss_of
from flaxformer.training.schedule import learning_rate
from flaxformer.training.step import optimizer_chain, start

UPDATES = 3
"""Number of consecutive updates of an optimizer: running means act from the second on."""


@law(
    "fields",
    "every field of the model and of loss terms changes something, and of a user-defined optimizer",
    "read the field, remove it, or let None turn the feature off",
)
def fields(subject: Subject) -> Finding:
    """Change each number, and each static field of user-defined components."""
    before = _results(subject.params, subject.run, subject.batch, random_key())
    numbers = _field_paths(subject.run, ("model", "loss_terms"), True)
    choices = _field_paths(subject.run, ("model",), False)
    idle = [path for path in numbers if not _number_matters(subject, path, before)]
    idle += [p for p in choices if not (_choice_matters(subject, p, before) or _is_idle_in_package(subject, p))]
    idle += _idle_optimizer_fields(subject)
    note = _note_on_positions(subject.config, idle)
    idle = [path for path in idle if not (note and path.startswith("model.positions."))]
    return Finding("ok", note) if not idle else violation(f"changing {', '.join(idle)} changes nothing")


def _note_on_positions(config: ModelConfig, idle: Collection[str]) -> str:
    """Return advice for a position scheme that no token mixer reads; an empty text if one may read it."""
    mixers = {type(block.attention).__name__: block.attention for block in config.block_configs}
    is_unread = any(path.startswith("model.positions.") for path in idle) and bool(mixers)
    if not is_unread or any(isinstance(mixer, Attention) for mixer in mixers.values()):
        return ""
    kind = type(config.positions).__name__
    return f"{', '.join(mixers)} reads no {kind}, which changes nothing here: use positions=NoPositions()"


class Results(NamedTuple):
    """Results of a call that a field may change."""

    output: Array
    training_loss: Array
    weights: dict[str, PyTree]
    statistics: dict[str, Array]


def _forward(weights: Transformer, run: Run, batch: Batch, key: Array) -> Results:
    training_loss, outcome = loss_of(weights, run, batch, key)
    return Results(forward(weights, run, batch).output, training_loss, outcome.aux.weights, outcome.aux.statistics)


_results = fast_jit(_forward)


def _number_matters(subject: Subject, path: str, before: Results) -> bool:
    """True if another value of a number changes the results or the initial weights, or if there is no other value."""
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
            if _differs(subject.initial_state.params, start_state(run).params):
                return True
    return not has_valid


def _differs(first: PyTree, second: PyTree) -> bool:
    return any(difference(a, b) > 0 for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _other_numbers(value: float) -> list[float]:
    """Return other values of a number, near and far from it."""
    if isinstance(value, int):
        candidates: list[float] = [value + 1, value - 1, 1, 2, value // 2, 3, 5]
    else:
        gap = 0.1 * abs(value) + 0.05
        candidates = [value + gap, value - gap, 0.5 * value, 0.1 * value, 2 * value, 10 * value, 0.0, 1.0, -1.0]
    return [other for other in dict.fromkeys(candidates) if other != value]


def _field_paths(run: Run, roots: tuple[str, ...], is_leaf: bool) -> list[str]:
    """Return the paths of `_paths` within fields of a run, without those of unused fields."""
    paths = [root + path for root in roots for path in _paths(getattr(run, root), is_leaf)]
    return [path for path in paths if not _is_unused(path, run.model)]


def _is_unused(path: str, config: ModelConfig) -> bool:
    """True if another field makes a field unused: no layers or norms, a frozen pattern, or blocks of a pattern.

    Numbers of a parametrization act on the optimizer, and only on weights of roles that the model has.
    """
    owner, _, last = path.rpartition(".")
    if "parametrization" in path.split("."):
        return True
    if last in ("scale_exponent", "logit_cap") and owner.startswith("model."):
        frozen = getattr(get_at(config, owner.removeprefix("model.")), "frozen_pattern", None)
        if frozen is not None:  # such an attention computes no logits
            return True
    pattern, name = config.pattern, path.split(".")[1]
    if name == "norm_kind" and config.norm_kind not in config.norms:
        return True
    if config.layers == 0 and name != "norm_kind" and name in Block.__dataclass_fields__:
        return True
    return bool(pattern) and path.startswith("model.") and all(name in block.changes() for block in pattern)


def _paths(config: object, is_leaf: bool) -> Iterator[str]:
    """Yield the paths of numbers, or (is_leaf=False) of static fields of user-defined components; None has no path."""
    if isinstance(config, tuple):
        for number, item in enumerate(config):
            yield from (f".{number}{path}" for path in _paths(item, is_leaf))
        return
    for field in dataclasses.fields(config) if isinstance(config, Config) else ():
        value, is_node = getattr(config, field.name), field.metadata["pytree_node"]
        if isinstance(value, Config | tuple) and is_node:
            yield from (f".{field.name}{path}" for path in _paths(value, is_leaf))
        elif (is_leaf and is_node and isinstance(value, int | float) and not isinstance(value, bool)) or (
            not is_leaf and not is_node and value is not None and is_user_defined(config)
        ):
            yield f".{field.name}"


def _choice_matters(subject: Subject, path: str, before: Results) -> bool:
    """True if another value of a static field changes the shapes or the program, or if there is no other value.

    Programs that differ only in constants are run and compared, since the constants may cancel.
    """
    owner = get_at(subject.run, path.rpartition(".")[0])
    [field] = [field for field in dataclasses.fields(owner) if field.name == path.rpartition(".")[2]]
    original, has_valid = None, False
    for other in _other_choices(getattr(owner, field.name), field.metadata["choices"]):
        try:
            run = replace_at(subject.run, {path: other})
            if model.specs(run.model) != model.specs(subject.config):
                return True
            traced = jax.make_jaxpr(_forward)(subject.params, run, subject.batch, random_key())
        except Exception:  # the value is invalid, or invalid for this model
            continue
        has_valid = True
        original = original or jax.make_jaxpr(_forward)(subject.params, subject.run, subject.batch, random_key())
        if _structure(traced) != _structure(original):
            return True
        is_same = program_text(traced) == program_text(original)
        if not is_same and _differs(before, _results(subject.params, run, subject.batch, random_key())):
            return True
        with jax.enable_x64(False):
            if program_text(jax.make_jaxpr(start)(run)) != program_text(jax.make_jaxpr(start)(subject.run)):
                return True
    return not has_valid


def _is_idle_in_package(subject: Subject, path: str) -> bool:
    """True if a field that a user's class inherits changes nothing in the package's class either."""
    place, _, name = path.rpartition(".")
    owner = get_at(subject.run, place)
    inherited = [base for base in type(owner).__mro__ if base.__module__.partition(".")[0] == "flaxformer"]
    base = next((base for base in inherited if name in getattr(base, "__dataclass_fields__", ())), None)
    if base is None or name in _declared_fields(owner):
        return False
    values = {field.name: getattr(owner, field.name) for field in dataclasses.fields(base)}
    try:
        packaged = Subject(replace_at(subject.original_run, {place: base(**values)}), subject.seed)
        before = _results(packaged.params, packaged.run, packaged.batch, random_key())
    except Exception:  # the package's class is no whole component
        return False
    return not _choice_matters(packaged, path, before)


def _idle_optimizer_fields(subject: Subject) -> list[str]:
    """Return the paths of fields that user-defined optimizers and schedules declare, and that change no update."""
    configs = {"optimizer": subject.run.optimizer, "optimizer.decay": subject.run.optimizer.decay}
    paths = [f"{place}.{name}" for place, config in configs.items() for name in _declared_fields(config)]
    before = _updates(subject, subject.run) if paths else None
    return [path for path in paths if not _optimizer_field_matters(subject, path, before)]


def _declared_fields(config: Config) -> list[str]:
    """Return the names of fields that classes outside the package declare."""
    classes = [base for base in type(config).__mro__ if base.__module__.partition(".")[0] != "flaxformer"]
    declared = {name for base in classes for name in inspect.get_annotations(base)}
    return [field.name for field in dataclasses.fields(config) if field.name in declared]


def _optimizer_field_matters(subject: Subject, path: str, before: PyTree) -> bool:
    """True if another value of a field changes an update, or if there is no other value."""
    owner, _, name = path.rpartition(".")
    [field] = [field for field in dataclasses.fields(get_at(subject.run, owner)) if field.name == name]
    value, has_valid = get_at(subject.run, path), False
    is_number = field.metadata["pytree_node"] and isinstance(value, int | float) and not isinstance(value, bool)
    for other in _other_numbers(value) if is_number else _other_choices(value, field.metadata.get("choices")):
        try:
            after = _updates(subject, replace_at(subject.run, {path: other}))
        except Exception:  # the value is invalid
            continue
        has_valid = True
        if _differs(before, after):
            return True
    return not has_valid


def _updates(subject: Subject, run: Run) -> PyTree:
    """Return learning rates, and weights after some updates with random gradients, early and late in the training."""
    random, weights, steps = np.random.default_rng(0), subject.initial_state.params, run.training.steps
    gradients = jax.tree.map(lambda x: random.standard_normal((UPDATES, *x.shape)).astype(x.dtype), weights)
    with jax.enable_x64(False):
        firsts = sorted({0, steps // 2, max(0, steps - UPDATES)})
        return [_rates_and_weights(weights, run, gradients, first) for first in firsts] + [_factors(run)]


@fast_jit
def _factors(run: Run) -> PyTree:
    """Return the factors of a schedule that sees the loss, for losses that fall, stay, and vary at random."""
    schedule, random = run.optimizer.decay, np.random.default_rng(1)
    falling, count = 3 * np.exp(-np.arange(OBSERVED) / 50) + 1, 3 * OBSERVED
    losses = np.concatenate([falling, np.full(OBSERVED, falling[-1]), falling[-1] + random.standard_normal(OBSERVED)])

    def step(state: PyTree, observed: tuple[Array, Array]) -> tuple[PyTree, Array]:
        state = schedule.observe(state, *observed)
        return state, schedule.factor(state)

    if (state := schedule.init_state()) is None:
        return None
    state = jax.tree.map(jnp.asarray, state)
    return jax.lax.scan(step, state, (jnp.asarray(losses, jnp.float32), jnp.arange(count)))[1]


@fast_jit
def _rates_and_weights(weights: Transformer, run: Run, gradients: Transformer, first: int | Array) -> PyTree:
    """Return the learning rates of the steps from `first` on, and the weights after their updates."""

    def update(carry: PyTree, step_and_gradient: tuple[Array, Transformer]) -> tuple[PyTree, Array]:
        (params, state), (step, gradient) = carry, step_and_gradient
        rate = learning_rate(run.optimizer, step, run.training.steps)
        chain = optimizer_chain(run, params, jnp.float32(1e-2))  # a rate of 0 would hide the direction
        updates, state = chain.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), rate

    start = (weights, optimizer_chain(run, weights, 0.0).init(weights))
    (weights, _), rates = jax.lax.scan(update, start, (first + jnp.arange(UPDATES), gradients))
    return weights, rates


def _structure(traced: ClosedJaxpr) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Return the operations of a traced program and the shapes of their results."""
    return [
        (equation.primitive.name, tuple(getattr(v.aval, "shape", ()) for v in equation.outvars))
        for equation in equations(traced.jaxpr)
    ]


def _other_choices(value: object, choices: Collection[str] | None) -> list[bool] | list[str] | list[int] | list[float]:
    """Return other values of a static field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [other for other in choices or () if other != value][:4]
    if isinstance(value, int):
        return [other for other in (value + 1, 2 * value, value - 1, max(1, value // 2)) if other != value]
    return [other for other in (2 * value, value + 0.1) if other != value] if isinstance(value, float) else []


OBSERVED = 200
"""Number of losses of each sort that a schedule sees."""
