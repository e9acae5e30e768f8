"""Laws of weights: each receives a gradient, gradients are correct, and the number of weights is as declared."""

import math
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer import model
from flaxformer.core import params
from flaxformer.core.weight_axes import axes
from flaxformer.laws.calls import loss_and_gradient, random_key
from flaxformer.laws.law import NOT_FINITE, OK, Finding, law, violation
from flaxformer.laws.subject import Subject
from flaxformer.system.wording import first_of

WHOLE_AXES = ("heads", "key_value_heads", "d_model", "d_head", "d_value", "d_norm")
"""Axes of which every index must receive a gradient; others, such as a vocabulary, may have unused entries."""
MOST_LEAVES = 80
"""Largest number of weight arrays whose derivatives are measured; deeper models have evenly spaced ones measured."""

LARGER = 4
"""Factor on the matrices, in the comparison of gradients where activations are large."""


@law(
    "weights",
    "every weight that gradients train receives one",
    "remove weights that nothing reads, give when= to those that a field turns off, or declare trained=False",
)
def weights(subject: Subject) -> Finding:
    """Search for weights, and for indices of an axis, whose gradient is exactly zero."""
    _, gradient = subject.loss_and_gradient
    dead, numbers = [], 0
    entries = zip(
        jax.tree_util.tree_leaves_with_path(gradient),
        jax.tree.leaves(subject.is_trained),
        jax.tree.leaves(axes(subject.params), is_leaf=lambda node: hasattr(node, "names")),
        strict=True,
    )
    for (path, g), is_trained, weight_axes in entries:
        name, g = params.path_name(path), np.asarray(g)
        if not np.all(np.isfinite(g)):
            return violation(
                f"the gradient of {name} is not finite in {int((~np.isfinite(g)).sum())} of {g.size} numbers",
                NOT_FINITE,
            )
        if not is_trained or not g.size or (subject.mixes_batch and not weight_axes.fan_in):
            continue  # a bias before a norm over the batch has no gradient
        if not np.any(g):
            dead.append(name)
            numbers += g.size
            continue
        for axis, kind in enumerate(weight_axes.names):
            if kind in WHOLE_AXES and g.ndim > 1:
                idle = np.flatnonzero(~np.any(g, axis=tuple(a for a in range(g.ndim) if a != axis)))
                if len(idle):
                    dead.append(f"{name} at {len(idle)} of {g.shape[axis]} indices of axis {kind}")
                    numbers += g.size // g.shape[axis] * len(idle)
    if not dead:
        return OK
    return violation(f"no gradient reaches {first_of(dead, 4)} ({numbers:,} numbers)")


@law(
    "gradients",
    "gradients agree with finite differences in double precision",
    "correct the rule of jax.custom_vjp, and stop no gradient (jax.lax.stop_gradient) of what changes the loss",
)
def gradients(subject: Subject) -> Finding:
    """Compare the derivative of the training loss along a direction, weight by weight, and for large weights in all."""
    finding = _check_each_weight(subject)
    return finding if finding.is_violated else _check_large_weights(subject)


def _check_each_weight(subject: Subject) -> Finding:
    _, gradient = subject.loss_and_gradient
    entries = [
        (params.path_name(path), number, np.asarray(g))
        for number, ((path, g), is_trained) in enumerate(
            zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(subject.is_trained), strict=True)
        )
        if is_trained and g.size and np.any(np.asarray(g))
    ]
    random = np.random.default_rng(1)
    leaves, structure = jax.tree.flatten(subject.params)
    for name, number, g in entries[:: math.ceil(len(entries) / MOST_LEAVES) or 1]:
        direction = random.standard_normal(g.shape)
        direction = direction / np.sqrt((direction**2).sum()) + g / np.sqrt((g**2).sum())

        def losses(step: float, number: int = number, direction: np.ndarray = direction) -> tuple[float, float]:
            """Return the training losses after a change of one weight and after its opposite."""
            changed = (
                [*leaves[:number], leaves[number] + sign * step * direction, *leaves[number + 1 :]] for sign in (1, -1)
            )
            after, before = (float(subject.loss(jax.tree.unflatten(structure, new_leaves))) for new_leaves in changed)
            return after, before

        finding = _compare_slope(subject, losses, float((g * direction).sum()), name)
        if finding.is_violated:
            return finding
    return OK


def _check_large_weights(subject: Subject) -> Finding:
    """Compare the derivative by all weights together, with matrices that are `LARGER` times as large."""
    large = jax.tree.map(
        lambda x, weight_axes: x * LARGER if weight_axes.fan_in else x, subject.params, axes(subject.params)
    )
    _, gradient = loss_and_gradient(large, subject.run, subject.batch, random_key())
    gradient = jax.tree.map(
        lambda g, is_trained: np.asarray(g) if is_trained else np.zeros_like(g), gradient, subject.is_trained
    )
    if not all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient)):
        return violation(f"gradients are not finite with matrices that are {LARGER} times as large", NOT_FINITE)
    random, size = np.random.default_rng(2), math.sqrt(_product(gradient, gradient)) or 1.0
    direction = jax.tree.map(
        lambda g, is_trained: g / size + 0.1 * is_trained * random.standard_normal(g.shape) / math.sqrt(g.size or 1),
        gradient, subject.is_trained,
    )  # fmt: skip

    def losses(step: float) -> tuple[float, float]:
        """Return the training losses after a change of all weights and after its opposite."""
        changed = (jax.tree.map(lambda w, d, s=sign: w + s * step * d, large, direction) for sign in (1, -1))
        after, before = (float(subject.loss(new_weights)) for new_weights in changed)
        return after, before

    slope = _product(gradient, direction)
    return _compare_slope(subject, losses, slope, f"all weights, with matrices {LARGER} times as large,")


def _product(first: PyTree, second: PyTree) -> float:
    """Return the sum of the products of all entries of two trees."""
    return sum(float((a * b).sum()) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _compare_slope(
    subject: Subject, losses: Callable[[float], tuple[float, float]], slope: float, name: str
) -> Finding:
    """Compare a derivative along a direction with finite differences of several sizes, one of which must agree.

    Args:
      losses: function of a step size, which returns the losses after a step along the direction and against it.
    """
    is_single = subject.uses_single_precision
    steps = (3e-2, 1e-2, 1e-3) if is_single else (1e-4, 1e-5, 1e-6)
    relative, absolute = (5e-2, 1e-3) if is_single else (1e-4, 1e-8)
    slopes = []
    for step in steps:  # a kink, as of relu, affects some step sizes only
        after, before = losses(step)
        slopes.append((after - before) / (2 * step))
        if abs(slopes[-1] - slope) <= relative * abs(slope) + absolute:
            return OK
    nearest = min(slopes, key=lambda value: abs(value - slope))
    return violation(
        f"the derivative by {name} along a direction is {slope:.4g}; finite differences give {nearest:.4g}",
        "" if np.isfinite([slope, nearest]).all() else NOT_FINITE,
    )


@law(
    "parameters",
    "the declared number of parameters is that of the weights",
    "let the axes of each weight have the sizes that `sizes` returns",
)
def parameters(subject: Subject) -> Finding:
    """Compare the declared number of parameters with the number of weights."""
    declared = params.count(model.specs(subject.config))
    actual = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.initial_state.params))
    return OK if declared == actual else violation(f"{declared:,} parameters are declared, and there are {actual:,}")
