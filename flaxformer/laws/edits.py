"""Law of edits: at every point of a model, the rest of the computation uses what an edit returns, and nothing else."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.laws.calls import ModelInputs
from flaxformer.laws.inputs import Arguments
from flaxformer.laws.law import OK, Finding, compare, difference, first_violated, law, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer


@law(
    "edits",
    "an edit that returns its argument changes nothing, and zeros at any point change the output",
    "continue with what context.edit returns, x = context.edit(name, x), and compute the same with and without edits",
)
def edits(subject: Subject) -> Finding:
    """Multiply the activation at each point by 1, and by 0, one point after another.

    Zeros need not change the output where the activation is zero anyway, nor at queries, keys and logits where every
    query attends to one key.
    """
    call = (subject.params, subject.config, subject.batch.inputs, subject.arguments)
    activations = _activations(*call)
    return first_violated(_findings(subject, call, activations))


_Call = tuple[Transformer, ModelConfig, ModelInputs, Arguments]


def _findings(subject: Subject, call: _Call, activations: Mapping[str, PyTree]) -> Iterator[Finding]:
    expected = np.asarray(subject.output())
    count = len(activations)
    factors = np.concatenate([1 - np.eye(count), np.ones((1, count))])  # zero at one point; at none
    outputs = np.asarray(_scaled_outputs(*call, dict(zip(activations, factors.T, strict=True))))
    if difference(expected, outputs[-1]) > subject.tolerance:
        for path in activations:
            words = f"outputs with an edit of {_place(subject.config, path)} that returns its argument, and without,"
            yield compare(expected, np.asarray(_scaled_outputs(*call, {path: np.ones(1)}))[0], words, subject.tolerance)
        words = "outputs with edits of all points that return their argument, and without,"
        yield compare(expected, outputs[-1], words, subject.tolerance)
    for path, output in zip(activations, outputs[:-1], strict=True):
        if np.array_equal(output, outputs[-1]) and not _may_have_no_effect(path, activations):
            yield violation(
                f"zeros at {_place(subject.config, path)} do not change the output: it is computed from another array "
                "than context.edit returns"
            )
    yield OK


def _may_have_no_effect(path: str, activations: Mapping[str, PyTree]) -> bool:
    """True if zeros in place of an activation can leave the output as it is."""
    if all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(activations[path])):
        return True
    branch, _, name = path.rpartition("/")
    weights = activations.get(f"{branch}/weights")
    is_single = weights is not None and (np.asarray(weights) != 0).sum(-1).max() <= 1
    return name in ("query", "key", "logits") and bool(is_single)


def _place(config: ModelConfig, path: str) -> str:
    """Return the path of a point, with the class of its branch."""
    stack, is_layered, within_blocks = path.partition("blocks/")
    stack_config = config.resolved_encoder if stack else config
    if not is_layered or stack_config is None:
        return path
    number, branch, _ = within_blocks.split("/", 2)
    return f"{path} ({type(dict(stack_config.layer_configs[int(number)].branches())[branch]).__name__})"


@fast_jit
def _activations(
    params: Transformer, config: ModelConfig, inputs: ModelInputs, arguments: Arguments
) -> dict[str, PyTree]:
    return model.activations_at(params, config, jnp.asarray(inputs), "*", **arguments)


@fast_jit
def _scaled_outputs(
    params: Transformer,
    config: ModelConfig,
    inputs: ModelInputs,
    arguments: Arguments,
    factors: Mapping[str, Float[Array | np.ndarray, "n"]],
) -> Float[Array, "n ..."]:
    """Return the outputs of calls in which the activation at each of these points is multiplied by a factor."""

    def call(point_factors: Mapping[str, Array]) -> Array:
        edit = {path: _scale(factor) for path, factor in point_factors.items()}
        return model.apply(params, config, jnp.asarray(inputs), edit=edit, **arguments)

    return jax.lax.map(call, factors)


def _scale(factor: Float[Array, ""]) -> Edit:
    """Return the edit that multiplies an activation; by 0, it gives zeros also in place of infinite numbers."""
    return lambda x: jax.tree.map(lambda leaf: jnp.where(factor == 0, 0, leaf * factor).astype(leaf.dtype), x)
