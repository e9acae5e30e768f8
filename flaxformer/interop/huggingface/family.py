"""A family of models: what its config.json says in a `ModelConfig`'s words, and what its tensors are called."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flaxformer.config import LearnedPositions, ModelConfig, RelativeBuckets, Tokens, Xavier
from flaxformer.interop.huggingface.attributes import FIXED, IGNORED, Attribute, Attributes
from flaxformer.interop.tensors import TensorRow
from flaxformer.interop.widths import explicit
from flaxformer.struct import UserError, canonical, did_you_mean, differences, replace_at

StateDict = dict[str, np.ndarray]
"""Tensors by name."""
WIDTHS = ("d_ff", "d_head", "key_value_heads")
"""Fields that a config which is read has as numbers."""


@dataclasses.dataclass(frozen=True)
class Family:
    """The tables of one family.

    base: what all its models are; `attributes` replace fields of it.
    rows: the tensors of a config's model.
    fixed: attributes of which one value is known here.
    ignored: attributes that leave the function as it is, by the reason.
    settle: rewrites attributes that say one thing in several ways, before they are read; it may look at the tensors.
    prefix: what the names of a model without its head lack; `outer` are the beginnings of names that never have it.
    renamed: patterns of old names, and what stands for them.
    aliases: names of the same tensor twice, and the one that counts.
    dropped: patterns of tensors that no model here has: buffers, and heads of other tasks.
    zeros: tensors that may be missing, and are 0.
    """

    name: str
    architectures: tuple[str, ...]
    base: ModelConfig
    attributes: tuple[Attribute, ...]
    rows: Callable[[ModelConfig], tuple[TensorRow, ...]]
    fixed: dict[str, Any]
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settle: Callable[[dict[str, Any], Mapping[str, np.ndarray]], dict[str, Any]] = lambda attributes, state: attributes
    prefix: str = ""
    outer: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()


def read_attributes(family: Family, attributes: Attributes, state: Mapping[str, np.ndarray]) -> ModelConfig:
    """The config that a config.json means.

    Raises:
      UserError: an attribute that is neither mapped nor known to leave the function as it is, or a value that no
        model here has.
    """
    given = family.settle(dict(attributes), state)
    _refuse_unknown(family, given)
    changes: dict[str, Any] = {}
    for attribute in family.attributes:
        value = attribute.value(given)
        for path, field in attribute.read(value).items():
            if changes.setdefault(path, field) != field:
                raise UserError(
                    f"config.json has '{attribute.name}' {value!r}; expected no other {path} than {changes[path]!r}, "
                    "which another attribute gives"
                )
    return explicit(replace_at(family.base, changes), *WIDTHS)


def _refuse_unknown(family: Family, given: Attributes) -> None:
    fixed = FIXED | family.fixed
    mapped = [attribute.name for attribute in family.attributes]
    words = {**IGNORED, **family.ignored}.values()
    known = {*fixed, *mapped, *(name for listed in words for name in listed.split())}
    for name, value in given.items():
        if name not in known:
            raise UserError(
                f"config.json has '{name}' {value!r}, of which it is not known whether it changes a {family.name} "
                f"model{did_you_mean(name, mapped)}"
            )
        if name in fixed and value is not None and value != fixed[name]:
            raise UserError(f"config.json has '{name}' {value!r}; expected {fixed[name]!r}, the only one known here")


def write_attributes(family: Family, config: ModelConfig) -> dict[str, Any]:
    """The config.json that means a config.

    Raises:
      UserError: a config that is no model of the family; each field that differs is named.
    """
    config = explicit(config, *WIDTHS)
    attributes = {"model_type": family.name, "architectures": [family.architectures[0]]}
    attributes |= {attribute.name: attribute.write(config) for attribute in family.attributes}
    attributes["torch_dtype"] = "float32"
    meant = read_attributes(family, attributes, {})
    if unlike := differences(canonical(_function(config)), canonical(_function(meant))):
        raise UserError(
            f"the config is no {family.name} model's; the config's fields, and those of the nearest such model:\n  "
            + "\n  ".join(unlike)
        )
    return attributes


def _function(config: ModelConfig) -> ModelConfig:
    """The config without what changes neither the weights' shapes nor the function that evaluates them."""
    config = explicit(config, "d_value").replace(inputs=config.embedding)
    changes: dict[str, Any] = {"initializer": Xavier(), "dropout": None, "d_memory": None}
    if isinstance(config.inputs, Tokens):
        changes |= {"inputs.lookup": "gather", "inputs.frozen": False, "inputs.std": 1.0}
    if isinstance(config.positions, LearnedPositions | RelativeBuckets):
        changes["positions.std"] = 0.0
    if config.encoder is not None:
        changes["encoder"] = _function(config.encoder)
    return replace_at(config, changes)
