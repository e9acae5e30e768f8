"""Laws of weights: each receives a gradient, gradients are correct, and the number of weights is as declared."""

import math

import jax
import numpy as np

from flaxformer import model, params
from flaxformer.laws.law import OK, Finding, law, violated
from flaxformer.laws.subject import Subject
from flaxformer.weight_axes import axes

WHOLE_AXES = ("heads", "key_value_heads", "d_model", "d_head", "d_value", "d_norm")
"""Axes of which every index must receive a gradient; others, such as a vocabulary, may have unused entries."""
MOST_LEAVES = 80
"""Largest number of weight arrays whose derivatives are measured; deeper models have evenly spaced ones measured."""


@law("weights", "every weight that gradients train receives one")
def weights(subject: Subject) -> Finding:
    """Search for weights, and for indices of an axis, whose gradient is exactly zero."""
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
            continue  # a bias before a norm over the batch has no gradient
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


@law("gradients", "gradients agree with finite differences in double precision")
def gradients(subject: Subject) -> Finding:
    """Compare, weight by weight, the derivative of the training loss along a direction."""
    _, gradient = subject.loss_and_gradient
    rows = [
        (params.path_name(path), number, np.asarray(g))
        for number, ((path, g), is_trained) in enumerate(
            zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(subject.trained), strict=True)
        )
        if is_trained and g.size and np.any(np.asarray(g))
    ]
    random = np.random.default_rng(1)
    is_single = subject.uses_single_precision
    steps = (3e-2, 1e-2, 1e-3) if is_single else (1e-4, 1e-5, 1e-6)
    relative, absolute = (5e-2, 1e-3) if is_single else (1e-4, 1e-8)
    for name, number, g in rows[:: math.ceil(len(rows) / MOST_LEAVES) or 1]:
        direction = random.standard_normal(g.shape)
        direction = direction / np.sqrt((direction**2).sum()) + g / np.sqrt((g**2).sum())
        slope, found = float((g * direction).sum()), []
        for step in steps:  # a kink, as of relu, affects some step sizes only
            found.append(_finite_difference(subject, number, step * direction) / step)
            if abs(found[-1] - slope) <= relative * abs(slope) + absolute:
                break
        else:
            nearest = min(found, key=lambda value: abs(value - slope))
            return violated(
                f"the derivative by {name} along a direction is {slope:.4g}; finite differences give {nearest:.4g}"
            )
    return OK


def _finite_difference(subject: Subject, number: int, change: np.ndarray) -> float:
    """Return half the difference of the training losses after a change of one weight and after its opposite."""
    leaves, structure = jax.tree.flatten(subject.params)
    changed = ([*leaves[:number], leaves[number] + sign * change, *leaves[number + 1 :]] for sign in (1, -1))
    after, before = (float(subject.loss(jax.tree.unflatten(structure, own))) for own in changed)
    return (after - before) / 2


@law("parameters", "the declared number of parameters is that of the weights")
def parameters(subject: Subject) -> Finding:
    """Compare the declared number of parameters with the number of weights."""
    declared = params.count(model.specs(subject.config))
    found = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.started.params))
    return OK if declared == found else violated(f"{declared:,} parameters are declared, and there are {found:,}")
