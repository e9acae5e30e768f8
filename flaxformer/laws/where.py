"""Location of a difference: the first stage of a model in which two calls differ, with its component."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.laws.law import Finding, difference, violated
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject

Call = dict[str, Any]
"""Keyword arguments of `Subject.output`."""
View = Callable[[np.ndarray], np.ndarray]
"""The part of an array [rows, T, ...] that is to be equal in both calls."""


def located(found: Finding, subject: Subject, one: Call, two: Call, view: View = lambda x: x) -> Finding:
    """Add to a violated finding where two calls of the model begin to differ, if that can be told."""
    if not found.is_violated:
        return found
    try:
        place = first_difference(subject, one, two, view)
    except Exception:  # The finding stands without it.
        place = None
    return found if place is None else violated(f"{found.words}; first in {place}")


def first_difference(subject: Subject, one: Call, two: Call, view: View = lambda x: x) -> str | None:
    """Return the first stage of the model in which two calls differ."""
    for (name, a), (_, b) in zip(_stages(subject, one), _stages(subject, two), strict=True):
        a, b = view(np.asarray(a)), view(np.asarray(b))
        if a.shape != b.shape or difference(a, b) > subject.tolerance:
            return name
    return None


def first_not_finite(subject: Subject, call: Call) -> str | None:
    """Return the first stage of the model with a number that is not finite."""
    return next(
        (name for name, a in _stages(subject, call) if not np.all(np.isfinite(np.asarray(a, np.float64)))), None
    )


def _run(params: Any, config: Any, inputs: Any, given: Any, key: Any) -> Any:
    outcome = model.run(params, config, inputs, given, dropout_key=key, return_intermediates=True)
    return outcome.intermediates, outcome.output


_compiled = fast_jit(_run)


def _stages(subject: Subject, call: Call) -> Iterator[tuple[str, Any]]:
    """Yield each stage of a call by name, in the order of computation."""
    call = dict(call)
    config = call.pop("config", subject.config)
    params = call.pop("params", subject.params)
    inputs, key, is_eager = call.pop("inputs", subject.batch.inputs), call.pop("key", None), call.pop("eager", False)
    given = {name: value for name, value in (subject.given | call).items() if value is not None}
    if is_eager:
        params, inputs, given = jax.tree.map(jnp.asarray, (params, inputs, given))
        with jax.disable_jit():
            found, output = _run(params, config, inputs, given, key)
    else:
        found, output = _compiled(params, config, inputs, given, key)
    if found.encoder is not None:
        yield from _of_stack(found.encoder, config.encoder, "the encoder's ")
    yield from _of_stack(found, config, "")
    yield f"the head ({type(config.head).__name__})", jnp.asarray(output)


def _of_stack(found: Any, config: Any, owner: str) -> Iterator[tuple[str, Any]]:
    yield f"{owner}embedding ({type(config.inputs).__name__}, {type(config.positions).__name__})", found.embedded
    for number, block in enumerate(found.blocks):
        own = config.layer_configs[number]
        for name, branch in own.branches():
            did, kind = getattr(block, name), type(branch).__name__
            place = f"{owner}block {number}, "
            if own.pre_norm is not None:
                yield f"{place}norm before {name} ({type(own.pre_norm).__name__})", did.input
            yield f"{place}{name} ({kind})", did.update
            yield f"{place}residual connection of {name} ({type(own.residual).__name__})", did.stream
    yield f"{owner}final norm ({type(config.final_norm).__name__})", found.final
