"""Factors of a parametrization on the learning rate and the weight decay of each weight."""

from typing import NamedTuple

import jax

from flaxformer.components.parametrizations import Scales
from flaxformer.config import ModelConfig
from flaxformer.core.weight_axes import Axes, axes
from flaxformer.model.weights import Transformer


class WeightScales(NamedTuple):
    """Factors on the learning rate and on the weight decay, each a tree like the weights."""

    rate: Transformer
    decay: Transformer


def weight_scales(params: Transformer, model: ModelConfig, gradient_degree: int) -> WeightScales | None:
    """Return the factors of the model's parametrization, and of its encoder's; None if all are 1.

    Args:
      params: weights in any layout.
      gradient_degree: `Optimizer.gradient_degree`.
    """
    if not model.scales_weights:
        return None
    scales = _scales(axes(params), model, gradient_degree)
    return WeightScales(jax.tree.map(lambda scale: scale.rate, scales), jax.tree.map(lambda scale: scale.decay, scales))


def _scales(own_axes: Transformer, model: ModelConfig, gradient_degree: int) -> Transformer:
    """Return the `Scales` of each weight."""

    def scales(weight_axes: Axes) -> Scales:
        layers = model.layers if weight_axes.in_layer else None
        factors = model.parametrization.scales(weight_axes.role, model.d_model, layers, gradient_degree)
        return Scales(init=1.0, rate=1.0, decay=1.0) if factors is None else factors

    tree = jax.tree.map(scales, own_axes.replace(encoder=None))
    if own_axes.encoder is None or model.encoder is None:
        return tree
    return tree.replace(encoder=_scales(own_axes.encoder, model.encoder, gradient_degree))
