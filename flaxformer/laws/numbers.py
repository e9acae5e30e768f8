"""Laws about numbers: weights and fields that matter, gradients, precision, layouts and the start of training."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model, params
from flaxformer.laws.law import OK, Finding, compared, difference, law, not_applicable, violated
from flaxformer.laws.subject import Subject
from flaxformer.model.transformer import with_layout
from flaxformer.struct import Config, UserError
from flaxformer.training.step import loss as loss_of
from flaxformer.training.step import start, train_step


@law("layout", "unrolled and scanned layers give the same answers")
def layout(subject: Subject) -> Finding:
    """Compare both layouts."""
    scanned = with_layout(subject.params, "scanned")
    if jax.tree.structure(scanned) == jax.tree.structure(subject.params):
        return not_applicable("the layers cannot be scanned")
    return compared(subject.output(), subject.output(params=scanned), "answers of unrolled and scanned layers")


@law("compilation", "the compiled program gives the answers of the program as it stands")
def compilation(subject: Subject) -> Finding:
    """Compare `jit` and no `jit`."""
    given = {name: value for name, value in subject.batch.given.items() if value is not None}
    with jax.disable_jit():
        eager = model.apply(subject.params, subject.config, subject.batch.inputs, **given)
    return compared(subject.output(), eager, "answers with and without jit")


@law("group", "a trial in a group of trials gives the numbers of the trial alone")
def group(subject: Subject) -> Finding:
    """Take a training step of two seeds together, mapped, and of one alone."""
    runs = [subject.run.replace(seed=seed) for seed in (3, 4)]
    batch = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, subject.batch)
    with jax.enable_x64(False):
        alone = jax.jit(lambda run: train_step(start(run), run, batch)[1]["loss"])(runs[0])
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *runs)
        together = jax.jit(jax.vmap(lambda run: train_step(start(run), run, batch)[1]["loss"]))(stacked)
    return compared(alone, together[0], "losses alone and in a group")


@law("weights", "every weight that gradients train receives one")
def weights(subject: Subject) -> Finding:
    """Look for weights whose gradient is exactly zero."""
    gradient, _ = _gradient(subject)
    dead = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(subject.trained), strict=True)
    for (path, g), is_trained in pairs:
        name = params.path_name(path)
        if is_trained and not np.any(np.asarray(g)):
            dead.append(name)
        if not np.all(np.isfinite(np.asarray(g))):
            return violated(f"the gradient of {name} is not finite")
    return OK if not dead else violated(f"no gradient reaches {', '.join(dead[:4])}{' and more' * (len(dead) > 4)}")


def _gradient(subject: Subject) -> tuple[Any, Any]:
    """The gradient of the training loss with a dropout key, and the loss."""

    def value(weights: Any) -> Any:
        return loss_of(weights, subject.run, subject.batch, jax.random.key(7))[0]

    found, gradient = jax.jit(jax.value_and_grad(value))(subject.params)
    return gradient, found


@law("fields", "every number in the model's config changes something")
def fields(subject: Subject) -> Finding:
    """Change each number by a little."""
    before = _seen(subject, subject.run)
    idle = []
    for path, changed in _changed_numbers(subject.run.model, "model"):
        try:
            run = subject.run.replace(model=changed)
        except UserError:
            continue
        after = _seen(subject, run)
        if all(difference(a, b) == 0 for a, b in zip(before, after, strict=True)):
            idle.append(path)
    return OK if not idle else violated(f"changing {', '.join(idle)} changes nothing")


def _seen(subject: Subject, run: Any) -> tuple[np.ndarray, ...]:
    """The answer, the training loss, and the initial weights' norm, of a run with these numbers."""
    given = {name: value for name, value in subject.batch.given.items() if value is not None}
    output = model.apply(subject.params, run.model, subject.batch.inputs, **given)
    training, outcome = loss_of(subject.params, run, subject.batch, jax.random.key(7))
    start = model.init(jax.random.key(0), run.model)
    moved = [jnp.abs(leaf).sum() for leaf in jax.tree.leaves(outcome.aux.weights)]
    return tuple(
        map(np.asarray, (output, training, sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(start)), *moved))
    )


def _changed_numbers(config: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The config with each of its numbers changed in turn, by path; fields that are off have none."""
    if isinstance(config, tuple):
        for number, item in enumerate(config):
            for where, own in _changed_numbers(item, f"{path}.{number}"):
                yield where, (*config[:number], own, *config[number + 1 :])
        return
    for field in dataclasses.fields(config) if isinstance(config, Config) else ():
        value, where = getattr(config, field.name), f"{path}.{field.name}"
        if isinstance(value, Config | tuple) and field.metadata["pytree_node"]:
            for inner, own in _changed_numbers(value, where):
                yield inner, config.replace(**{field.name: own})
        elif field.metadata["pytree_node"] and isinstance(value, int | float) and not isinstance(value, bool):
            yield where, _nudged(config, field.name, value)


def _nudged(config: Any, name: str, value: float) -> Any:
    """The config with a number changed a little, within its bounds."""
    steps = (1, -1) if isinstance(value, int) else (0.1 * abs(value) + 0.05, -0.1 * abs(value) - 0.05, 1e-3)
    for step in steps:
        try:
            return config.replace(**{name: value + step})
        except UserError:
            continue
    return config


@law("gradients", "gradients agree with finite differences in double precision")
def gradients(subject: Subject) -> Finding:
    """Compare the derivative of the loss along random directions."""

    def value(weights: Any) -> Any:
        return loss_of(weights, subject.run, subject.batch, jax.random.key(7))[0]

    value = jax.jit(value)
    gradient = jax.jit(jax.grad(value))(subject.params)
    for seed in range(2):
        dice = np.random.default_rng(seed)
        leaves, structure = jax.tree.flatten(subject.params)
        drawn = [jnp.asarray(dice.standard_normal(x.shape)) for x in leaves]
        direction = jax.tree.map(jnp.multiply, jax.tree.unflatten(structure, drawn), subject.trained)
        slope = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
        gaps = []
        for step in (1e-4, 1e-5, 1e-6):
            ahead, behind = (
                value(jax.tree.map(lambda x, d, s=sign * step: x + s * d, subject.params, direction))
                for sign in (1, -1)
            )
            measured = (ahead - behind) / (2 * step)
            gaps.append(abs(float(measured - slope)) / (1 + abs(float(slope))))
        # A kink, as of relu, within a step disturbs one step size, not all.
        if not min(gaps) < 1e-4:
            return violated(f"the derivative along a direction is {float(slope):.6g}, and differs by {min(gaps):.2g}")
    return OK


def _moved(weights: Any, direction: Any, by: float) -> Any:
    return jax.tree.map(lambda x, d: x + by * d, weights, direction)


@law("precision", "float16 and bfloat16 give finite answers, close to those of double precision")
def precision(subject: Subject) -> Finding:
    """Narrow the weights and inputs."""
    expected = np.asarray(subject.output())
    for dtype, allowed in ((jnp.bfloat16, 0.15), (jnp.float16, 0.05)):
        narrow = jax.tree.map(
            lambda x, d=dtype: x.astype(d) if jnp.issubdtype(x.dtype, jnp.floating) else x, subject.params
        )
        inputs = subject.batch.inputs
        inputs = inputs.astype(dtype) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs
        found = np.asarray(subject.output(inputs, narrow), np.float64)
        if not np.all(np.isfinite(found)):
            return violated(f"answers in {jnp.dtype(dtype).name} are not finite")
        gap = float(np.sqrt(np.square(found - expected).mean()) / (1e-6 + np.sqrt(np.square(expected).mean())))
        if gap > allowed:
            return violated(f"answers in {jnp.dtype(dtype).name} differ by {gap:.2g} of their size; expected {allowed}")
    return OK


@law("parameters", "the declared number of parameters is that of the weights")
def parameters(subject: Subject) -> Finding:
    """Count both."""
    declared = params.count(model.specs(subject.config))
    found = sum(
        leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: model.init(jax.random.key(0), subject.config)))
    )
    return OK if declared == found else violated(f"{declared:,} parameters are declared, and there are {found:,}")


@law("start", "the loss at initialisation is within 0.6 of ln of the number of answers")
def beginning(subject: Subject) -> Finding:
    """Evaluate the first loss."""
    head = subject.config.head
    if head.loss_name != "cross_entropy":
        return not_applicable("the loss is not a cross-entropy")
    with jax.enable_x64(False):
        source = subject.run.task.load()
        state = jax.jit(start)(subject.run)
        batch = source.batch(jax.random.key(0), 0)
        found = float(
            jax.jit(lambda state, run, batch: loss_of(state.params, run, batch, None)[0])(state, subject.run, batch)
        )
    expected = math.log(head.outputs(subject.config.vocabulary))
    words = f"the first loss is {found:.2f} nats; ln {head.outputs(subject.config.vocabulary)} is {expected:.2f}"
    return OK if abs(found - expected) <= 0.6 else violated(words)


LAWS = (beginning, weights, fields, gradients, precision, layout, compilation, group, parameters)
