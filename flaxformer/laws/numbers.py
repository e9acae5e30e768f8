"""Laws about numbers: weights and fields that matter, gradients, precision, layouts and the start of training."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model, params
from flaxformer.laws.law import (
    OK,
    Finding,
    compared,
    difference,
    first_violated,
    law,
    not_applicable,
    violated,
)
from flaxformer.laws.subject import (
    Subject,
    equations,
    fast_jit,
    narrow,
    one_step,
    random_key,
    start_state,
)
from flaxformer.laws.where import first_not_finite, located
from flaxformer.model.transformer import with_layout
from flaxformer.struct import Config, get_at, replace_at
from flaxformer.training import Run
from flaxformer.training.step import forward, start
from flaxformer.training.step import loss as loss_of
from flaxformer.weight_axes import axes

# --- the start of training ---------------------------------------------------------------------------------

LARGEST_GAP = 0.6
"""In nats, between the first loss and that of a uniform guess: logits of variance 1 make it ½."""


@law("start", f"the loss at initialisation is within {LARGEST_GAP} nats of ln of the number of outputs")
def beginning(subject: Subject) -> Finding:
    """Evaluate the first loss, whose standard error is at most about 1 nat / √targets."""
    head = subject.config.head
    if head.loss_name != "cross_entropy":
        return not_applicable("the loss is not a cross-entropy")
    state, batch = subject.started, subject.training_batch
    with jax.enable_x64(False):
        key = random_key() if subject.mixes_batch else None  # in evaluation, its running statistics have seen nothing
        total, count = _evaluated(state.params, subject.run, batch, key)
    found, outputs = float(total / count), head.outputs(subject.config.vocabulary)
    words = f"the first loss is {found:.2f} nats; ln {outputs} is {math.log(outputs):.2f}"
    return OK if abs(found - math.log(outputs)) <= LARGEST_GAP + 2 / float(count) ** 0.5 else violated(words)


@fast_jit
def _evaluated(weights: Any, run: Run, batch: Any, key: Any) -> Any:
    return run.model.head.loss(forward(weights, run, batch, key).output, batch.targets, batch.weights)


# --- repetition --------------------------------------------------------------------------------------------


@law("repetition", "the same call gives the same numbers each time")
def repetition(subject: Subject) -> Finding:
    """Trace a training step's loss three times, and run it twice."""

    def traced() -> Any:
        def call(weights: Any, batch: Any, key: Any) -> Any:  # a function of its own, so that nothing is reused
            value, outcome = loss_of(weights, subject.run, batch, key)
            evaluated = forward(weights, subject.run, batch).output
            return value, evaluated, outcome.aux.losses, outcome.aux.weights

        return call

    arguments = subject.params, subject.batch, random_key()
    calls = [traced() for _ in range(3)]
    programs = [_text(jax.make_jaxpr(call)(*arguments)) for call in calls]
    compiled = fast_jit(calls[0])
    one, two = compiled(*arguments), compiled(*arguments)
    gap = max(difference(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    if gap > 0:
        return violated(f"two runs of the same program differ by {gap:.2g}")
    if len(set(programs)) > 1:
        two = fast_jit(calls[1])(*arguments)
        gap = max(difference(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
        line = next((a for a, b in zip(*(p.splitlines() for p in programs[:2]), strict=False) if a != b), "")
        if gap > 0:
            return violated(
                f"two traces of the same call differ by {gap:.2g}: the code reads what changes between calls, such as "
                f"the time, NumPy's random numbers or a global (first at `{' '.join(line.split())[:100]}`)"
            )
    return OK


def _text(traced: Any) -> str:
    """A traced program as text, with its constants and without addresses."""
    constants = " ".join(str(np.asarray(x).tobytes()) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) else ""
                         for x in traced.consts if hasattr(x, "dtype"))  # fmt: skip
    return re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr)) + "\n" + constants


# --- weights -----------------------------------------------------------------------------------------------

WHOLE_AXES = ("heads", "key_value_heads", "d_model", "d_head", "d_value", "d_norm")
"""Axes along which every index must receive a gradient; others, such as a vocabulary, may have unused entries."""


@law("weights", "every weight that gradients train receives one")
def weights(subject: Subject) -> Finding:
    """Look for weights whose gradient is exactly zero, and for indices of an axis."""
    _, gradient = subject.loss_and_gradient
    dead, numbers = [], 0
    rows = zip(
        jax.tree_util.tree_leaves_with_path(gradient),
        jax.tree.leaves(subject.trained),
        jax.tree.leaves(axes(subject.params), is_leaf=lambda node: hasattr(node, "names")),
        strict=True,
    )
    for (path, g), is_trained, own in rows:
        name, g = params.path_name(path), np.asarray(g)
        if not np.all(np.isfinite(g)):
            return violated(
                f"the gradient of {name} is not finite in {int((~np.isfinite(g)).sum())} of {g.size} numbers"
            )
        if not is_trained or not g.size or (subject.mixes_batch and not own.fan_in):
            continue  # what is added before a mean over the batch is subtracted has no gradient
        if not np.any(g):
            dead.append(name)
            numbers += g.size
            continue
        for axis, kind in enumerate(own.names):
            if kind in WHOLE_AXES and g.ndim > 1:
                idle = np.flatnonzero(~np.any(g, axis=tuple(a for a in range(g.ndim) if a != axis)))
                if len(idle):
                    dead.append(f"{name} at {len(idle)} of {g.shape[axis]} indices of axis {kind}")
                    numbers += g.size // g.shape[axis] * len(idle)
    if not dead:
        return OK
    more = f" and {len(dead) - 4} more" if len(dead) > 4 else ""
    return violated(f"no gradient reaches {', '.join(dead[:4])}{more} ({numbers:,} numbers)")


@law("parameters", "the declared number of parameters is that of the weights")
def parameters(subject: Subject) -> Finding:
    """Count both."""
    declared = params.count(model.specs(subject.config))
    found = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.started.params))
    return OK if declared == found else violated(f"{declared:,} parameters are declared, and there are {found:,}")


# --- fields ------------------------------------------------------------------------------------------------


@law("fields", "every field of the model's config changes something")
def fields(subject: Subject) -> Finding:
    """Change each number a little, and each static field of the user's own components."""
    before: dict[str, Any] = {}
    idle = [path for path in _number_paths(subject.run) if not _number_matters(subject, path, before)]
    idle += [path for path in _static_paths(subject.run) if not _choice_matters(subject, path)]
    return OK if not idle else violated(f"changing {', '.join(idle)} changes nothing")


@fast_jit
def _seen(weights: Any, run: Run, batch: Any, key: Any) -> Any:
    """The output, the training loss, and the weights that the call changes."""
    training, outcome = loss_of(weights, run, batch, key)
    return forward(weights, run, batch).output, training, outcome.aux.weights, outcome.aux.statistics


def _number_matters(subject: Subject, path: str, before: dict[str, Any]) -> bool:
    """True if some other value of a number changes the output, the loss or the initial weights."""
    value, has_valid = get_at(subject.run, path), False
    for other in _other_numbers(value):
        try:
            run = replace_at(subject.run, {path: other})
        except ValueError:
            continue
        has_valid = True
        if "seen" not in before:
            before["seen"] = _seen(subject.params, subject.run, subject.batch, random_key())
        if _differs(before["seen"], _seen(subject.params, run, subject.batch, random_key())):
            return True
        with jax.enable_x64(False):
            if _differs(subject.started.params, start_state(run).params):
                return True
    return not has_valid


def _differs(one: Any, two: Any) -> bool:
    return any(difference(a, b) > 0 for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def _other_numbers(value: float) -> list[float]:
    """Other values of a number, near and far."""
    if isinstance(value, int):
        found: list[float] = [value + 1, value - 1, 1, 2, value // 2, 3, 5]
    else:
        gap = 0.1 * abs(value) + 0.05
        found = [value + gap, value - gap, 0.5 * value, 0.1 * value, 2 * value, 10 * value, 0.0, 1.0, -1.0]
    return [other for other in dict.fromkeys(found) if other != value]


def _number_paths(run: Run) -> Iterator[str]:
    """The paths of all numbers of the model and of the loss terms; fields that are off have none."""
    for root in ("model", "loss_terms"):
        yield from (path for own in _paths(getattr(run, root), True) if not _is_replaced(path := root + own, run.model))


def _is_replaced(path: str, config: Any) -> bool:
    """True of a field that another choice replaces: a frozen pattern, or the blocks of a pattern."""
    owner, _, last = path.rpartition(".")
    if last in ("scale_exponent", "logit_cap") and owner.startswith("model."):
        frozen = getattr(get_at(config, owner.removeprefix("model.")), "frozen_pattern", None)
        if frozen is not None:  # attention without logits of its own
            return True
    pattern, name = getattr(config, "pattern", ()), path.split(".")[1]
    return bool(pattern) and path.startswith("model.") and all(name in block.changes() for block in pattern)


def _paths(config: Any, is_leaf: bool) -> Iterator[str]:
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


def _static_paths(run: Run) -> list[str]:
    """The paths of the static fields of the user's own components."""
    return [path for own in _paths(run.model, False) if not _is_replaced(path := f"model{own}", run.model)]


def _choice_matters(subject: Subject, path: str) -> bool:
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
            traced = jax.make_jaxpr(_outcome)(subject.params, run, subject.batch, random_key())
        except Exception:  # Not a valid value, or not one for this model.
            continue
        has_valid = True
        own = own or jax.make_jaxpr(_outcome)(subject.params, subject.run, subject.batch, random_key())
        if _structure(traced) != _structure(own):
            return True
        if _text(traced) != _text(own):
            seen = (_seen(subject.params, one, subject.batch, random_key()) for one in (subject.run, run))
            if _differs(*seen):
                return True
        with jax.enable_x64(False):
            if _text(jax.make_jaxpr(start)(run)) != _text(jax.make_jaxpr(start)(subject.run)):
                return True
    return not has_valid


def _outcome(weights: Any, run: Run, batch: Any, key: Any) -> Any:
    value, outcome = loss_of(weights, run, batch, key)
    return value, forward(weights, run, batch).output, outcome.aux.weights, outcome.aux.statistics


def _structure(traced: Any) -> list[Any]:
    """The operations of a traced program and the shapes of their results."""
    return [
        (equation.primitive.name, tuple(getattr(v.aval, "shape", ()) for v in equation.outvars))
        for equation in equations(traced.jaxpr)
    ]


def _other_choices(value: Any, choices: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [other for other in choices or () if other != value][:4]
    if isinstance(value, int):
        return [other for other in (value + 1, 2 * value, value - 1, max(1, value // 2)) if other != value]
    return [other for other in (2 * value, value + 0.1) if other != value] if isinstance(value, float) else []


# --- gradients ---------------------------------------------------------------------------------------------

MOST_LEAVES = 80
"""Weights whose derivative is measured one by one; of deeper models, evenly chosen ones."""


@law("gradients", "gradients agree with finite differences in double precision")
def gradients(subject: Subject) -> Finding:
    """Compare, weight by weight, the derivative of the training loss along a direction."""
    _, gradient = subject.loss_and_gradient
    rows = [
        (params.path_name(path), number, np.asarray(g))
        for number, ((path, g), own) in enumerate(
            zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(subject.trained), strict=True)
        )
        if own and g.size and np.any(np.asarray(g))
    ]
    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(subject.params)
    dice = np.random.default_rng(1)
    is_single = subject.uses_single_precision
    steps = (3e-2, 1e-2, 1e-3) if is_single else (1e-4, 1e-5, 1e-6)
    relative, absolute = (5e-2, 1e-3) if is_single else (1e-4, 1e-8)
    for name, number, g in rows[:: math.ceil(len(rows) / MOST_LEAVES) or 1]:
        direction = dice.standard_normal(g.shape)
        direction = direction / np.sqrt((direction**2).sum()) + g / np.sqrt((g**2).sum())
        slope, found = float((g * direction).sum()), []
        for step in steps:  # a kink, as of relu, disturbs one step size, not all
            ahead, behind = (
                float(subject.loss(structure.unflatten([*leaves[:number], leaves[number] + sign * step * direction,
                                                        *leaves[number + 1 :]])))
                for sign in (1, -1)
            )  # fmt: skip
            found.append((ahead - behind) / (2 * step))
            if abs(found[-1] - slope) <= relative * abs(slope) + absolute:
                break
        else:
            nearest = min(found, key=lambda value: abs(value - slope))
            return violated(
                f"the derivative by {name} along a direction is {slope:.4g}; finite differences give {nearest:.4g}"
            )
    return OK


# --- precision ---------------------------------------------------------------------------------------------

PRECISIONS = {"bfloat16": (jnp.bfloat16, 0.04), "float16": (jnp.float16, 0.01)}
"""Precisions, and how far their outputs may be from those in float64, as a share of their size."""
AMPLIFICATION = 12
"""How many times as far they may be as the outputs of rounded weights, of a model that magnifies small changes."""


@law("precision", "float16 and bfloat16 give finite outputs, close to those in double precision")
def precision(subject: Subject) -> Finding:
    """Round the weights and inputs, and compute every intermediate result in that precision."""
    return first_violated(_precision(subject))


def _narrowed(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _precision(subject: Subject) -> Iterator[Finding]:
    inputs, given = subject.batch.inputs, subject.given
    expected = np.asarray(subject.output())
    size = math.sqrt(float(np.square(expected - expected.mean()).mean())) + 1e-6
    for name, (dtype, allowed) in PRECISIONS.items():
        rounded = _narrowed(subject.params, dtype)
        arguments = rounded, subject.config, _narrowed(inputs, dtype), _narrowed(given, dtype)
        if name == "float16":  # operation by operation: a compiler may cancel what overflows, as √(x²)
            arrays = jax.tree.map(jnp.asarray, (arguments[0], *arguments[2:]))
            with jax.disable_jit():
                found = np.asarray(_narrow(arrays[0], subject.config, *arrays[1:]), np.float64)
        else:
            found = np.asarray(_narrow_call(*arguments), np.float64)
        if not np.all(np.isfinite(found)):
            count = int((~np.isfinite(found)).sum())
            call = {"params": rounded, "inputs": arguments[2], "eager": True} | arguments[3]
            place = first_not_finite(subject, call)
            where = "" if place is None else f"; first in {place}"
            yield violated(f"{count} of {found.size} outputs in {name} are not finite{where}")
            return
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), rounded)
        by_rounding = math.sqrt(float(np.square(np.asarray(subject.output(params=wide)) - expected).mean())) / size
        gap = math.sqrt(float(np.square(found - expected).mean())) / size
        limit = max(allowed, AMPLIFICATION * by_rounding)
        if gap > limit:
            yield violated(
                f"outputs in {name} differ by {100 * gap:.2g} % of their size (rounding the weights alone: "
                f"{100 * by_rounding:.2g} %); expected at most {100 * limit:.2g} %"
            )


def _narrow(weights: Any, config: Any, inputs: Any, given: Any) -> Any:
    return model.apply(weights, config, inputs, **given)


_narrow_call = fast_jit(_narrow, xla_allow_excess_precision=False)

# --- layouts and transformations ---------------------------------------------------------------------------


@law("layout", "unrolled and scanned layers give the same outputs and training losses")
def layout(subject: Subject) -> Finding:
    """Compare both layouts, in evaluation and in training."""
    config, weights = subject.config, subject.params
    if not getattr(config, "layers", 0):
        return not_applicable("the model has no layers")
    scanned = with_layout(weights, "scanned")
    is_same: bool = jax.tree.structure(scanned) == jax.tree.structure(weights)  # type: ignore[operator]
    if is_same:
        period = getattr(config, "period", config.layers)
        if config.layers != period or getattr(config, "distinct_blocks", None) is not None:
            return not_applicable("the layers cannot be scanned")
        twice = subject.given_run.replace(model=config.replace(layers=2 * period))
        return layout.check(Subject(twice, subject.seed))
    calls: tuple[Any, Any] = {}, {"params": scanned}
    found = compared(subject.output(), subject.output(params=scanned), "outputs of unrolled and scanned layers",
                     subject.tolerance)  # fmt: skip
    if found.is_violated:
        return located(found, subject, *calls)
    one, two = subject.loss(weights), subject.loss(scanned)
    found = compared(one, two, "training losses of unrolled and scanned layers", subject.tolerance)
    return located(found, subject, *({"key": random_key()} | call for call in calls))


@law("compilation", "the compiled program gives the outputs of the Python code run operation by operation")
def compilation(subject: Subject) -> Finding:
    """Compare `jit`, with all optimizations, and no `jit`."""
    weights, inputs, given = jax.tree.map(jnp.asarray, (subject.params, subject.batch.inputs, subject.given))
    with jax.disable_jit():
        eager = model.apply(weights, subject.config, inputs, **given)
    found = np.asarray(subject.compiled(subject.params, subject.batch.inputs, subject.given))
    result = compared(eager, found, "outputs without and with jit", subject.tolerance)
    return located(result, subject, {"eager": True}, {})


@law("group", "a trial in a group of trials gives the numbers of the trial alone")
def group(subject: Subject) -> Finding:
    """Take a training step of two seeds together, mapped, and of each alone."""
    runs = [subject.run.replace(seed=seed) for seed in (subject.run.seed, subject.run.seed + 1)]
    batch = subject.training_batch
    with jax.enable_x64(False):
        states = [subject.started, start_state(runs[1])]
        alone = [subject.stepped(state, run) for state, run in zip(states, runs, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *runs)
        many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        metrics, outputs = fast_jit(jax.vmap(one_step, in_axes=(0, 0, None)))(many, stacked, batch)
    for number, (own, output) in enumerate(alone):
        for name in ("loss", "gradient_norm"):
            what = f"{name.replace('_', ' ')} of trial {number} alone and in a group of two"
            found = compared(own[name], metrics[name][number], what)
            if found.is_violated:
                return found
        found = compared(narrow(output), outputs[number], f"outputs of trial {number} alone and in a group of two")
        if found.is_violated:
            return found
    return OK


LAWS = (beginning, weights, fields, gradients, precision, repetition, layout, compilation, group, parameters)
