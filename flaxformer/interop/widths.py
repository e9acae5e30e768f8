"""Widths that a config leaves open, written out, so that equal models have equal configs."""

import dataclasses
from typing import Any

from flaxformer.config import ModelConfig


def explicit(config: ModelConfig, *names: str) -> ModelConfig:
    """The config, and its encoder's, with these widths of its components as numbers, where None leaves them open.

    A cross-attention that is equal to the self-attention is None, which means the same.
    """

    def written_out(component: Any) -> Any:
        if component is None:
            return None
        sizes = component.sizes(config.sizes)
        fields = [field.name for field in dataclasses.fields(component)]
        return component.replace(**{name: sizes[name] for name in names if name in fields and name in sizes})

    attention, cross_attention = written_out(config.attention), written_out(config.cross_attention)
    return config.replace(
        attention=attention,
        cross_attention=None if cross_attention == attention else cross_attention,
        feed_forward=written_out(config.feed_forward),
        encoder=None if config.encoder is None else explicit(config.encoder, *names),
    )
