"""Location of a difference: the first stage of a model in which two calls differ, with its component."""

from collections.abc import Callable, Iterator
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.laws.inputs import Arguments
from flaxformer.laws.law import Finding, difference, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import ForwardInputs, Intermediates, Transformer

View = Callable[[np.ndarray], np.ndarray]
"""Selection of the part of an array [rows, T, ...] that must be equal in both calls."""


def locate(
    finding: Finding, subject: Subject, first: Arguments, second: Arguments, view: View = lambda x: x
) -> Finding:
    """Add to a violated finding the first stage in which two calls of the model differ, if it can be found.

    Args:
      finding: the finding; one that is not violated is returned unchanged.
      subject: the model.
      first, second: keyword arguments of `Subject.output`; `eager` runs the call without `jit`.
      view: the part of the arrays to compare.
    """
    if not finding.is_violated:
        return finding
    try:
        place = first_difference(subject, first, second, view)
    except Exception:  # the finding is valid without the location
        place = None
    return finding if place is None else violation(f"{finding.words}; first in {place}")


def first_difference(subject: Subject, first: Arguments, second: Arguments, view: View = lambda x: x) -> str | None:
    """Return the first stage of the model in which two calls differ; None if none does."""
    for (name, a), (_, b) in zip(_stages(subject, first), _stages(subject, second), strict=True):
        a, b = view(np.asarray(a)), view(np.asarray(b))
        if a.shape != b.shape or difference(a, b) > subject.tolerance:
            return name
    return None


def first_not_finite(subject: Subject, call: Arguments) -> str | None:
    """Return the first stage of a call whose numbers are not all finite; None if all are."""
    return next(
        (name for name, a in _stages(subject, call) if not np.all(np.isfinite(np.asarray(a, np.float64)))), None
    )


def _run(
    params: Transformer, config: ModelConfig, inputs: Array, arguments: Arguments, key: Array | None
) -> tuple[Intermediates, Array]:
    outcome = model.run(
        params, config, inputs, cast(ForwardInputs, arguments), dropout_key=key, return_intermediates=True
    )
    assert outcome.intermediates is not None
    return outcome.intermediates, outcome.output


_run_compiled = fast_jit(_run)


def _stages(subject: Subject, call: Arguments) -> Iterator[tuple[str, ArrayLike]]:
    """Yield each stage of a call by name, in the order of computation."""
    call = dict(call)
    config = call.pop("config", subject.config)
    params = call.pop("params", subject.params)
    inputs, key, is_eager = call.pop("inputs", subject.batch.inputs), call.pop("key", None), call.pop("eager", False)
    arguments = {name: value for name, value in (subject.arguments | call).items() if value is not None}
    if is_eager:
        params, inputs, arguments = jax.tree.map(jnp.asarray, (params, inputs, arguments))
        with jax.disable_jit():
            intermediates, output = _run(params, config, inputs, arguments, key)
    else:
        intermediates, output = _run_compiled(params, config, inputs, arguments, key)
    if intermediates.encoder is not None:
        yield from _stack_stages(intermediates.encoder, config.encoder, "the encoder's ")
    yield from _stack_stages(intermediates, config, "")
    yield f"the head ({type(config.head).__name__})", jnp.asarray(output)


def _stack_stages(stack: Intermediates, config: ModelConfig, owner: str) -> Iterator[tuple[str, ArrayLike]]:
    yield f"{owner}embedding ({type(config.inputs).__name__}, {type(config.positions).__name__})", stack.embedded
    for number, block in enumerate(stack.blocks):
        layer = config.layer_configs[number]
        for name, branch in layer.branches():
            activations, kind = getattr(block, name), type(branch).__name__
            place = f"{owner}block {number}, "
            if (norm := layer.branch_config(name).pre_norm) is not None:
                yield f"{place}norm before {name} ({type(norm).__name__})", activations.input
            yield f"{place}{name} ({kind})", activations.update
            yield f"{place}residual connection of {name} ({type(layer.residual).__name__})", activations.stream
    yield f"{owner}final norm ({type(config.final_norm).__name__})", stack.final
