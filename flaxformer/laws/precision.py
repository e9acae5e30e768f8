"""Law of precision: outputs in float32, float16 and bfloat16, also where activations are large."""

import math
from collections.abc import Iterator
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from flaxformer import model
from flaxformer.laws import calls
from flaxformer.laws.inputs import Arguments
from flaxformer.laws.law import OK, Finding, first_violated, law, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.laws.where import first_not_finite
from flaxformer.model import ForwardInputs, Transformer
from flaxformer.training.precision import cast_inputs, cast_params

PRECISIONS = {"float32": (jnp.float32, 0.01), "bfloat16": (jnp.bfloat16, 0.04), "float16": (jnp.float16, 0.01)}
"""By precision, the dtype, and the largest difference from outputs in float64, relative to their size."""
AMPLIFICATION = 12
"""Largest ratio of that difference to the one that rounding the weights causes, for models that amplify changes."""
TreeT = TypeVar("TreeT")


@law(
    "precision",
    "float32, float16 and bfloat16 give finite outputs, close to those in double precision, also of large activations",
    "compute squares, exponentials, sums over many tokens, norms and logits in x.astype(jnp.promote_types(x.dtype, "
    "jnp.float32)), never in float16, and return the dtype of x",
)
def precision(subject: Subject) -> Finding:
    """Round the weights and inputs, and compute every intermediate result in that precision.

    Activations are enlarged in float32 and bfloat16 alone, whose largest number is about 1e38: what each branch reads
    is multiplied by `calls.LARGE`, and the outputs must be finite.
    """
    with np.errstate(all="ignore"):  # NumPy warns of a constant that overflows, such as a mask value
        return first_violated(_check_precisions(subject))


def _cast(tree: TreeT, dtype: DTypeLike) -> TreeT:
    """Return a tree with its real numbers converted to a dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _check_precisions(subject: Subject) -> Iterator[Finding]:
    expected = np.asarray(subject.output())
    size = _root_mean_square(expected - expected.mean()) + 1e-6
    for name, (dtype, allowed) in PRECISIONS.items():
        rounded, inputs, arguments = _cast((subject.params, subject.batch.inputs, subject.arguments), dtype)
        if name == "float16":
            output = _literal_forward_pass(rounded, subject.config, inputs, arguments)
        else:
            output = _compiled_forward_pass(rounded, subject.config, inputs, arguments, 1.0)
        outputs = np.asarray(output, np.float64)
        if not np.all(np.isfinite(outputs)):
            place = first_not_finite(subject, {"params": rounded, "inputs": inputs, "eager": True} | arguments)
            yield violation(_not_finite(outputs, name) + ("" if place is None else f"; first in {place}"))
            return
        wide = np.asarray(subject.output(params=_cast(rounded, jnp.float64)))
        by_rounding, gap = (_root_mean_square(values - expected) / size for values in (wide, outputs))
        limit = max(allowed, AMPLIFICATION * by_rounding)
        if gap > limit:
            yield violation(
                f"outputs in {name} differ by {100 * gap:.2g} % of their size (rounding the weights alone: "
                f"{100 * by_rounding:.2g} %); expected at most {100 * limit:.2g} %"
            )
        if name != "float16" and subject.config.layers:
            output = _compiled_forward_pass(rounded, subject.config, inputs, arguments, calls.LARGE)
            outputs = np.asarray(output, np.float64)
            if not np.all(np.isfinite(outputs)):
                when = f", if the inputs of each branch are {calls.LARGE:,.0f} times as large"
                yield violation(_not_finite(outputs, name) + when)
    yield _check_stream(subject)


def _check_stream(subject: Subject) -> Finding:
    """Check that the residual stream of a run in bfloat16 begins in bfloat16, as the products that read it."""
    weights, inputs, arguments = _cast((subject.params, subject.batch.inputs, subject.arguments), jnp.float32)
    config = _cast(jax.tree.map(jnp.asarray, subject.config), jnp.float32)  # arrays, as in the program of a run

    def embed(weights: Transformer, inputs: Array, arguments: Arguments) -> Array:
        keywords = cast(ForwardInputs, arguments)
        intermediates = model.run(weights, config, inputs, keywords, return_intermediates=True).intermediates
        assert intermediates is not None
        return intermediates.embedded

    embedded = jax.eval_shape(embed, cast_params(weights, "bfloat16"), cast_inputs(inputs, "bfloat16"), arguments)
    if embedded.dtype == jnp.bfloat16:
        return OK
    return violation(
        f"the embedding ({type(subject.config.inputs).__name__}) is {embedded.dtype.name} in a run in bfloat16, and "
        "with it the residual stream and every product",
        "return x in the dtype of the table or matrix that it is read from: .astype(table.dtype)",
    )


def _not_finite(outputs: np.ndarray, name: str) -> str:
    return f"{int((~np.isfinite(outputs)).sum())} of {outputs.size} outputs in {name} are not finite"


def _root_mean_square(x: np.ndarray) -> float:
    return math.sqrt(float(np.square(x).mean()))


_literal_forward_pass = fast_jit(
    calls.forward_pass, xla_allow_excess_precision=False, xla_disable_hlo_passes="algsimp,simplification"
)
"""The forward pass without algebraic simplifications, which cancel overflows, as in √(x²)."""
_compiled_forward_pass = fast_jit(calls.scaled_forward_pass, xla_allow_excess_precision=False)
