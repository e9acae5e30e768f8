"""Law of updates: an optimizer descends, and changes a weight alike in both layouts, whatever else is in the tree."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flaxformer import model
from flaxformer.core.params import path_name
from flaxformer.laws.configs import is_user_defined
from flaxformer.laws.law import OK, TOLERANCES, Finding, compare, first_violated, law, not_applicable, violation
from flaxformer.laws.programs import fast_jit, has_single_precision
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer
from flaxformer.model.weights import with_layout
from flaxformer.training import Run
from flaxformer.training.step import optimizer_chain
from flaxformer.training.trainable import select

STEPS = 3
"""Number of consecutive updates: running means act from the second on."""


@law(
    "updates",
    "an optimizer descends, and updates a weight in the same way with unrolled and scanned layers, whatever else is "
    "in the tree",
    "treat each matrix of each layer by itself: arrays of scanned layers have a leading axis of layers, over which no "
    "norm and no mean may be taken, and weights that are not trained are None",
)
def updates(subject: Subject) -> Finding:
    """Update weights with random gradients, in both layouts, and without some of the other weights."""
    optimizer = subject.run.optimizer
    if not is_user_defined(optimizer):
        return not_applicable(f"{type(optimizer).__name__} is an optimizer of the package, whose tests check it")
    return check_updates(subject.run)


def check_updates(run: Run) -> Finding:
    """Check the law for the optimizer of a run, with weights and gradients of its model that are drawn here.

    Weights that are left out have value and gradient 0 in the whole tree, so that a norm over all weights, as of
    clipping, is the same.
    """
    config, training = run.model, run.training.replace(freeze=(), rates=())
    if config.layers and config.layers < 2 * config.period and config.distinct_blocks is None:
        config = config.replace(layers=2 * config.period)
    optimizer = run.optimizer.replace(moment_dtype="float32")  # its rounding depends on the place in the tree
    return first_violated(_check(run.replace(model=config, optimizer=optimizer, training=training, adapter=None)))


def _check(run: Run) -> Iterator[Finding]:
    random, specs = np.random.default_rng(3), model.specs(run.model)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        scale = 10.0 ** random.uniform(-1, 1)  # each weight of each layer has another size
        return scale * random.standard_normal(shape)

    weights, *gradients = (jax.tree.map(lambda spec: draw(spec.shape), specs) for _ in range(1 + STEPS))
    yield _descends(weights, gradients[0], run)
    trees = [weights, *gradients]
    whole = _updates(trees, run)
    scanned = [with_layout(tree, "scanned") for tree in trees]
    if not isinstance(scanned[0].blocks, tuple):
        unrolled = [with_layout(tree, "unrolled") for tree in _updates(scanned, run)]
        yield from _compare(whole, unrolled, run, trees, "with unrolled layers and with scanned ones")
    leaves, structure = jax.tree.flatten(weights)
    for kept in (0, 1):
        mask = jax.tree.unflatten(structure, [number % 2 == kept for number in range(len(leaves))])
        zeroed = [jax.tree.map(lambda x, is_kept: x if is_kept else np.zeros_like(x), tree, mask) for tree in trees]
        alone = _updates([select(tree, mask) for tree in trees], run)
        beside = [select(tree, mask) for tree in _updates(zeroed, run)]
        yield from _compare(beside, alone, run, trees, "beside other weights that are 0 and without them")


def _descends(weights: Transformer, gradient: Transformer, run: Run) -> Finding:
    """Check that the updates by a gradient that stays the same do not go along it."""
    without_decay = run.replace(optimizer=run.optimizer.replace(weight_decay=0.0))
    last = _updates([weights, *[gradient] * STEPS], without_decay)[-1]
    products = jax.tree.map(lambda update, g: float((np.asarray(update) * np.asarray(g)).sum()), last, gradient)
    total = sum(jax.tree.leaves(products))
    if not total > 0:
        return OK
    return violation(
        f"the update by a gradient that stays the same goes along it (their product is {total:.2g}), so the loss rises",
        "leave out the sign and the learning rate, as optax.scale(-1) and optax.scale_by_learning_rate: direction() "
        "returns u of w ← w − rate · u",
    )


def _compare(
    first: list[PyTree], second: list[PyTree], run: Run, trees: list[Transformer], how: str
) -> Iterator[Finding]:
    """Compare the updates of each step, weight by weight."""
    is_single = has_single_precision(jax.make_jaxpr(_update)(trees, run).jaxpr)
    allowed = TOLERANCES["float32" if is_single else "float64"]
    for step, (a, b) in enumerate(zip(first, second, strict=True)):
        for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
            size = float(np.abs(x).max(initial=0)) or 1.0  # relative to the update itself, however small
            what = f"updates of {path_name(path)} in step {step} {how}"
            yield compare(np.asarray(x) / size, np.asarray(y) / size, what, allowed)


def _update(trees: list[Transformer], run: Run) -> list[Transformer]:
    """Return the updates of consecutive steps, given the weights and the gradient of each step."""
    weights, *gradients = jax.tree.map(jnp.asarray, trees)
    chain = optimizer_chain(run, weights, 1.0)
    state, updates = chain.init(weights), []
    for gradient in gradients:
        update, state = chain.update(gradient, state, weights)
        weights = jax.tree.map(jnp.add, weights, update)
        updates.append(update)
    return updates


_compiled_update = fast_jit(_update)


def _updates(trees: list[Transformer], run: Run) -> list[Transformer]:
    return jax.device_get(_compiled_update(trees, run))
