"""Law of random draws: they follow `Context.key`, and so differ between steps, and differ between layers."""

import collections
import itertools
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr
from jaxtyping import Array

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edits
from flaxformer.laws import calls
from flaxformer.laws.calls import ModelInputs
from flaxformer.laws.inputs import Arguments
from flaxformer.laws.law import OK, Finding, law, not_applicable, violation
from flaxformer.laws.programs import draws_of, fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import ForwardInputs, Transformer
from flaxformer.tasks.batch import Batch
from flaxformer.training import Run
from flaxformer.training.loss import forward

KEYS = 32
"""Number of random keys whose draws are compared."""
FEWEST = 4
"""Number of these keys that must give another result than the most frequent one, to compare the draws of layers."""
MARK = "rbg"
"""Generator of the key that marks draws by it: in a traced program, every other draw has a key of another dtype."""


@law(
    "draws",
    "random draws in training follow the key of the step, and differ between layers",
    "draw with context.key (jax.random.split it to draw several times), or use context.dropout(rate, x)",
)
def draws(subject: Subject) -> Finding:
    """Trace a training loss with a key of another generator; run layers of equal weights and inputs with many keys."""
    foreign = _draws_by_other_keys(subject)
    if foreign:
        return violation(
            f"{foreign} random {'draw' if foreign == 1 else 'draws'} in training by another key than context.key, so "
            "that the numbers are the same at every step"
        )
    if each := _draws_of_each_example(subject):
        return violation(
            f"{each} random {'draw' if each == 1 else 'draws'} of each example in evaluation, where there is no random "
            "key; expected none"
        )
    if not _traced_draws(subject, calls.random_key()):
        return not_applicable("the model draws no random numbers in training")
    return _compare_layers(subject)


def _traced_draws(subject: Subject, key: Array) -> Jaxpr | None:
    """Return the traced training loss if it draws random numbers; None if it does not."""
    traced = jax.make_jaxpr(calls.training_loss)(subject.params, subject.run, subject.batch, key).jaxpr
    return traced if draws_of(traced) else None


def _draws_by_other_keys(subject: Subject) -> int:
    """Return the number of draws in training that neither follow the key of the step nor happen in evaluation.

    A draw with a constant key that happens in evaluation too is a constant, such as a random projection.
    """
    traced = _traced_draws(subject, jax.random.key(7, impl=MARK))
    if traced is None:
        return 0
    evaluated = jax.make_jaxpr(_evaluate)(subject.params, subject.run, subject.batch).jaxpr
    left = _foreign_draws(traced)
    left.subtract(_foreign_draws(evaluated))
    return sum(count for count in left.values() if count > 0)


def _draws_of_each_example(subject: Subject) -> int:
    """Return the number of draws in evaluation whose size depends on the number of examples, as that of dropout."""
    if len(subject.batch.weights) < 2:
        return 0
    first = jax.tree.map(lambda x: x[:1], subject.batch)
    whole, alone = (
        collections.Counter(
            getattr(equation.outvars[0].aval, "shape", ())
            for equation in draws_of(jax.make_jaxpr(_evaluate)(subject.params, subject.run, batch).jaxpr)
        )
        for batch in (subject.batch, first)
    )
    return (whole - alone).total()


def _evaluate(params: Transformer, run: Run, batch: Batch) -> Array:
    output = forward(params, run, batch).output
    return run.model.head.loss(output, batch.targets, batch.weights)[0]


def _foreign_draws(jaxpr: Jaxpr) -> collections.Counter[tuple[int, ...]]:
    """Count the draws by other keys than marked ones, by the shape of their results."""
    foreign = [
        equation for equation in draws_of(jaxpr) if MARK not in str(getattr(equation.invars[0].aval, "dtype", ""))
    ]
    return collections.Counter(getattr(equation.outvars[0].aval, "shape", ()) for equation in foreign)


def _compare_layers(subject: Subject) -> Finding:
    """Compare the updates of layers that have the same component, weights and input, with many keys."""
    config = subject.config
    blocks = subject.params.blocks
    params = subject.params.replace(blocks=tuple(blocks[i % config.period] for i in range(len(blocks))))
    x = jnp.asarray(np.random.default_rng(2).standard_normal((config.d_model,)))
    updates = jax.device_get(_updates(params, config, subject.batch.inputs, subject.arguments, x))
    for branch, layers in updates.items():
        for number, other in itertools.combinations(range(len(layers)), 2):
            is_same_kind = (other - number) % config.period == 0
            if is_same_kind and _are_equal(np.asarray(layers[number]), np.asarray(layers[other])):
                return violation(f"the random numbers of {branch} are the same in layers {number} and {other}")
    return OK


@fast_jit
def _updates(
    params: Transformer, config: ModelConfig, inputs: ModelInputs, arguments: Arguments, x: Array
) -> dict[str, list[Array]]:
    """Return the updates of each branch, [keys, rows, T, D] per layer, if all branches read the same x."""
    edits = Edits.of({"blocks/*/input": lambda old: jnp.broadcast_to(x, old.shape).astype(old.dtype)})

    def call(key: Array) -> dict[str, list[Array]]:
        intermediates = model.run(
            params, config, jnp.asarray(inputs), cast(ForwardInputs, arguments), dropout_key=key, edits=edits,
            return_intermediates=True,
        ).intermediates  # fmt: skip
        assert intermediates is not None
        branches = [name for name, _ in config.layer_configs[0].branches()]
        return {
            name: [getattr(block, name).update[:1].astype(jnp.float32) for block in intermediates.blocks]
            for name in branches
        }

    return jax.lax.map(call, jax.random.split(calls.random_key(), KEYS))


def _are_equal(first: np.ndarray, second: np.ndarray) -> bool:
    """True if two updates, [keys, ...], depend on the key in the same way, up to a factor, and not by chance."""
    outcomes = collections.Counter(update.tobytes() for update in first)
    if KEYS - max(outcomes.values()) < FEWEST:
        return False
    changes = [update - update.mean(0) for update in (first, second)]
    a, b = (change / (np.sqrt(np.square(change).mean()) + 1e-30) for change in changes)
    return bool(np.abs(a - b).max() < 1e-3)
