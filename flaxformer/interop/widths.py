"""Configs with explicit widths, so that equal models have equal configs."""

import dataclasses
from typing import TypeVar

from flaxformer.components.component import Component
from flaxformer.config import ModelConfig
from flaxformer.system.errors import UserError

FieldT = TypeVar("FieldT")


def with_explicit_widths(config: ModelConfig, *names: str) -> ModelConfig:
    """Return the config, and its encoder, with these widths of components as numbers in place of None.

    A cross-attention that equals the self-attention becomes None, which has the same meaning.
    """

    def fill(component: FieldT) -> FieldT:
        if not isinstance(component, Component):
            return component
        sizes = component.axis_sizes(config.sizes)
        fields = [field.name for field in dataclasses.fields(component)]
        return component.replace(**{name: sizes[name] for name in names if name in fields and name in sizes})

    attention, cross_attention = fill(config.attention), fill(config.cross_attention)
    return config.replace(
        attention=attention,
        cross_attention=None if cross_attention == attention else cross_attention,
        feed_forward=fill(config.feed_forward),
        pattern=tuple(
            block.replace(attention=fill(block.attention), feed_forward=fill(block.feed_forward))
            for block in config.pattern
        ),
        encoder=None if config.encoder is None else with_explicit_widths(config.encoder, *names),
    )


def encoder_of(config: ModelConfig) -> ModelConfig:
    """Return the encoder of a config.

    Raises:
      UserError: it has none.
    """
    if config.encoder is None:
        raise UserError("encoder is None; expected an encoder, as config.with_encoder() makes")
    return config.encoder
