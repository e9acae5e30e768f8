"""Floating-point precision of a model: the conversions of weights and inputs.

float32: everything. bfloat16: the products, and the residual stream between them. Always float32 are
  - the weights that the optimizer holds, their gradients, and the optimizer's state;
  - norms, softmax, attention logits, biases, learned gains, position encodings, the output and its loss.

Each layer returns the dtype of the stream that it reads.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flaxformer.core.params import ParametersT
from flaxformer.core.weight_axes import Axes, axes

T = TypeVar("T", bound=PyTree)

PRECISIONS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def cast_params(params: ParametersT, precision: str) -> ParametersT:
    """The weights to compute with: matrices and embedding tables in this precision, all others unchanged.

    Tables of token types are added to the embedding, and stay as they are.
    """
    if precision == "float32":
        return params
    matrix = jax.tree.map(lambda weight: bool(weight.fan_in) or _is_table(weight), axes(params))
    return jax.tree.map(lambda x, is_matrix: x.astype(PRECISIONS[precision]) if is_matrix else x, params, matrix)


def _is_table(weight: Axes) -> bool:
    """True for a table of embeddings, whose dtype is that of the residual stream."""
    is_embedding = weight.kind == "embedding" and len(weight.names) > 1 and not weight.in_layer
    return "vocabulary" in weight.names or (is_embedding and "token_types" not in weight.names)


def cast_inputs(inputs: T, precision: str) -> T:
    """The inputs of the model: vectors and images in this precision, tokens unchanged."""
    if precision == "float32":
        return inputs

    def cast(x: Array) -> Array:
        return x.astype(PRECISIONS[precision]) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, inputs)
