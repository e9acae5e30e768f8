"""Configs of a model that reads embedded inputs, and that may find any numbers at padding."""

import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp

from flaxformer.component import Aux, with_aux
from flaxformer.config import ModelConfig
from flaxformer.params import Parameters
from flaxformer.parts.inputs import Inputs
from flaxformer.parts.norms import Norm
from flaxformer.struct import leaf, part


def embedded_config(config: ModelConfig, fill: float = 0.0) -> Any:
    """Return the config of the same model that reads embedded inputs, and whose blocks find `fill` at padding."""
    norm = config.embedding_norm
    kind: Any = None if norm is None else type(norm)
    filled = _filled_norm(kind)(own=norm, fill=fill)
    return config.replace(inputs=_without_embedding(config.inputs), norm=config.norm.replace(embedding=filled))


def _without_embedding(inputs: Inputs) -> Any:
    """Return inputs with the same weights that take vectors as they are."""
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    kind: Any = type(inputs)
    return _embedded_kind(kind)(**values)


@functools.cache
def _embedded_kind(kind: Any) -> Any:
    def apply(self: Any, weights: Any, inputs: Any, token_types: Any, table: Any, sizes: Any) -> Any:
        return inputs

    return type(f"_Embedded{kind.__name__}", (kind,), {"apply": apply, "has_tokens": False, "__module__": __name__})


@functools.cache
def _filled_norm(kind: Any) -> Any:
    """Return the class of a norm after the embedding, of this kind or the identity, that then overwrites padding."""

    class _Filled(Norm):
        own: Norm | None = part(None)
        fill: float = leaf(0.0)

        is_causal = property(lambda self: self.own is None or self.own.is_causal)
        mixes_batch = property(lambda self: self.own is not None and self.own.mixes_batch)

        def apply(self, weights: Any, x: Any, context: Any) -> Any:
            y, aux = (x, Aux()) if self.own is None else with_aux(self.own.apply(weights, x, context))
            if context.valid is not None:
                pattern = 1 + jnp.sin(jnp.arange(math.prod(y.shape[-2:])).reshape(y.shape[-2:]))
                pattern = jnp.broadcast_to((self.fill * pattern).astype(y.dtype), y.shape)
                y = jnp.where(context.valid[..., None], y, pattern)
            return y, aux

    _Filled.Weights = Parameters if kind is None else kind.Weights  # type: ignore[misc,assignment]
    return _Filled
