"""Models that read vectors in place of their embeddings, and overwrite these at padding.

A model of tokens gets the vectors among its weights, so that its components still get the tokens; a model of vectors or
images gets them as its inputs.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from flaxformer.components.component import Aux, Context, with_aux
from flaxformer.components.inputs import Inputs
from flaxformer.components.norms import Norm
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.core.pytree import Node
from flaxformer.core.struct import leaf, part
from flaxformer.model import Transformer


class GivenVectors(Node):
    """Weights of an embedding, and the vectors that replace its results."""

    vectors: Float[Array, "*batch T d_embedding"]
    embedding: Parameters

    @property
    def tokens(self) -> Array | None:
        """The embedding table, which a tied head reads."""
        return getattr(self.embedding, "tokens", None)


def give_vectors(
    params: Transformer, config: ModelConfig, vectors: ArrayLike, tokens: ArrayLike
) -> tuple[Transformer, Array]:
    """Return weights and inputs for `embedded_config`: those of a model that reads vectors.

    Args:
      config: the model, or its `embedded_config`.
      vectors: [*batch, T, d_embedding].
      tokens: what components get as tokens [*batch, T]; not read by a model of vectors or images.
    """
    x = jnp.asarray(vectors)
    if config.inputs.reads != "tokens":
        return params, x
    return params.replace(embedding=GivenVectors(x, params.embedding)), jnp.asarray(tokens)


def embedded_config(config: ModelConfig, fill: float = 0.0) -> ModelConfig:
    """Return the config of the same model that reads vectors [*batch, T, d_embedding].

    Args:
      config: the model.
      fill: factor of the pattern that overwrites the embeddings at padding; may be NaN.
    """
    norm = config.embedding_norm
    kind: object = None if norm is None else type(norm)
    filled = _filled_norm(kind)(norm=norm, fill=fill)
    return config.replace(inputs=_without_embedding(config.inputs), norm=config.norm.replace(embedding=filled))


def _without_embedding(inputs: Inputs) -> Inputs:
    """Return inputs with the same weights that pass vectors through unchanged."""
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    kind: object = type(inputs)
    return _embedded_class(kind)(**values)


@functools.cache
def _embedded_class(kind: type) -> Callable[..., Inputs]:
    def apply(self: Inputs, weights: Parameters | GivenVectors, inputs: Array, *arguments: object) -> Array:
        return weights.vectors if isinstance(weights, GivenVectors) else inputs

    body = {"apply": apply, "__module__": __name__}
    return type(f"_Embedded{kind.__name__}", (kind,), body)


@functools.cache
def _filled_norm(kind: type | None) -> Callable[..., Norm]:
    """Return the class of an embedding norm of a kind, or the identity for None, that then overwrites padding."""

    class _Filled(Norm):
        norm: Norm | None = part(None)
        fill: float = leaf(0.0)

        is_causal = property(lambda self: self.norm is None or self.norm.is_causal)
        mixes_batch = property(lambda self: self.norm is not None and self.norm.mixes_batch)

        def apply(
            self, weights: Parameters, x: Float[Array, "*batch T D"], context: Context
        ) -> tuple[Float[Array, "*batch T D"], Aux]:
            y, aux = (x, Aux()) if self.norm is None else with_aux(self.norm.apply(weights, x, context))
            if context.valid is not None:
                pattern = 1 + jnp.sin(jnp.arange(math.prod(y.shape[-2:])).reshape(y.shape[-2:]))
                pattern = jnp.broadcast_to((self.fill * pattern).astype(y.dtype), y.shape)
                y = jnp.where(context.valid[..., None], y, pattern)
            return y, aux

    _Filled.Weights = getattr(kind, "Weights", Parameters)  # type: ignore[misc,arg-type]
    return _Filled
