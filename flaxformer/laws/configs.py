"""Configs within a run: all of them, user-defined ones, and a model's without dropout."""

import dataclasses

from flaxformer.config import ModelConfig
from flaxformer.core.struct import Config


def without_dropout(config: ModelConfig) -> ModelConfig:
    """Return the config of a model, and of its encoder, without the dropout of the package."""
    encoder = config.encoder
    return config.replace(dropout=None, encoder=None if encoder is None else encoder.replace(dropout=None))


def is_user_defined(config: object) -> bool:
    """True if the class of a config is none of the package."""
    return type(config).__module__.partition(".")[0] != "flaxformer"


def configs_in(config: object) -> list[Config]:
    """Return a config and every config in it."""
    if isinstance(config, tuple):
        return [inner for item in config for inner in configs_in(item)]
    if not isinstance(config, Config):
        return []
    return [config, *(inner for f in dataclasses.fields(config) for inner in configs_in(getattr(config, f.name)))]
