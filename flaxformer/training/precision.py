"""In which floating-point numbers a model is computed: the one place that says what is narrowed, and when.

float32: all of it. bfloat16: the products and the stream between them. Float32 stay, or are taken of widened numbers,
  - the weights that the optimizer holds, their gradients and all that it keeps;
  - norms, softmax and attention's logits, every bias and learned gain, position encodings, the answer and its loss.

The layers follow what they are given: each gives back the dtype of the stream it read.
"""

from typing import Any

import jax
import jax.numpy as jnp

from flaxformer.weight_axes import axes

PRECISIONS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def cast_params(params: Any, precision: str) -> Any:
    """The weights to compute with: a rounded copy of the matrices and of the embedding's table, all else as it is."""
    if precision == "float32":
        return params
    matrix = jax.tree.map(lambda own: bool(own.fan_in) or "vocabulary" in own.names, axes(params))
    return jax.tree.map(lambda x, own: x.astype(PRECISIONS[precision]) if own else x, params, matrix)


def cast_inputs(inputs: Any, precision: str) -> Any:
    """Return the inputs of the model: vectors and images rounded, tokens as they are."""
    if precision == "float32":
        return inputs
    real = lambda x: jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda x: x.astype(PRECISIONS[precision]) if real(x) else x, inputs)
