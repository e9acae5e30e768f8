"""Families of models: conversion of their config.json, and names of their tensors."""

import dataclasses
import json
from collections.abc import Callable, Mapping

import numpy as np

from flaxformer.components import (
    Classifier,
    LanguageModel,
    LearnedPositions,
    NoHead,
    Patches,
    RelativeBuckets,
    Tokens,
    Xavier,
)
from flaxformer.components.heads import Head
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import canonical
from flaxformer.core.paths import get_at, replace_at
from flaxformer.interop.huggingface.attributes import (
    CONFIG,
    FIXED,
    IGNORED,
    WRITTEN_AGAIN,
    Attribute,
    Attributes,
    Group,
)
from flaxformer.interop.huggingface.tables import KINDS, Kind, read_table
from flaxformer.interop.tensors import VECTOR, TensorRow, linear
from flaxformer.interop.widths import with_explicit_widths
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.json_differences import differences
from flaxformer.system.json_reader import parse_json

StateDict = dict[str, np.ndarray]
"""Tensors by name."""
WIDTHS = ("d_ff", "d_head", "key_value_heads")
"""Widths that are explicit numbers in configs that are read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Tables of one family.

    base: config of which `attributes` replace fields.
    tensors: table of the tensors (see `tables`); or function from a config to it.
    kinds: kinds of modules in this table beside the general ones; or function from a config to them.
    transform: field with the activation of the head's transform, if it has that of the layers.
    groups: conversions of attributes that depend on each other, after `attributes`.
    heads: architectures with another head than that of `base`, and its function of the attributes.
    classifier: name of the linear map of a head that classifies.
    fixed: attributes of which this package supports one value.
    ignored: attributes that do not change the model's function, by their purpose.
    normalize: function that unifies different forms of attributes before they are read; it may use the tensors.
    prefix: prefix of tensor names that models without a head omit; `outer` are prefixes of names that never have it.
    renamed: patterns of old tensor names, and their replacements.
    aliases: second names of tensors, and their first names; a second one that is `dropped` may differ.
    dropped: patterns of tensors that are dropped where the table does not have them: buffers, and heads of other tasks.
    zeros: tensors that may be missing, and are then 0.
    defaults: attributes that are written where the config keeps no others.
    """

    name: str
    architectures: tuple[str, ...]
    base: ModelConfig
    attributes: tuple[Attribute, ...]
    tensors: str | Callable[[ModelConfig], str]
    fixed: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kinds: Mapping[str, Kind] | Callable[[ModelConfig], Mapping[str, Kind]] = dataclasses.field(default_factory=dict)
    transform: str = ""
    groups: tuple[Group, ...] = ()
    heads: Mapping[str, Callable[[Attributes], Head]] = dataclasses.field(default_factory=dict)
    classifier: str = ""
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    normalize: Callable[[Attributes, Mapping[str, np.ndarray]], Attributes] = lambda attributes, state: attributes
    prefix: str = ""
    outer: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def kept_names(self) -> frozenset[str]:
        """Attributes that change no number, and are kept: special tokens, labels, generation, limits of lengths."""
        words = [text for purpose, text in {**IGNORED, **self.ignored}.items() if purpose not in WRITTEN_AGAIN]
        unread = [attribute.name for attribute in self.attributes if attribute.is_kept]
        return frozenset([*" ".join(words).split(), *unread])


def read_attributes(family: Family, attributes: Attributes, state: Mapping[str, np.ndarray]) -> ModelConfig:
    """Convert the content of a config.json to a config.

    Raises:
      UserError: an attribute is unknown, or has an unsupported value.
    """
    normalized = family.normalize(attributes, state)
    _check_known(family, normalized)
    changes: dict[str, object] = {}
    for attribute in family.attributes:
        value = attribute.value(normalized)
        for path, field in attribute.read(value).items():
            if changes.setdefault(path, field) != field:
                raise UserError(
                    f"config.json has '{attribute.name}' {value!r}; expected the {path} of another attribute, "
                    f"{changes[path]!r}"
                )
    config = with_explicit_widths(replace_at(family.base, changes), *WIDTHS)
    for group in family.groups:
        config = group.read(normalized, config)
    written = {attribute.name: 0.0 for attribute in family.attributes if attribute.is_kept} | dict(family.defaults)
    written |= _label_names(len(attributes.get("id2label") or ()))
    extras = {name: value for name, value in attributes.items() if name in family.kept_names}
    if extras := {name: value for name, value in extras.items() if name not in written or value != written[name]}:
        config = keep(config, CONFIG, extras)
    architecture, *_ = normalized.get("architectures") or [""]
    return config.replace(head=family.heads[architecture](normalized)) if architecture in family.heads else config


def read_kept(config: ModelConfig) -> dict[str, Attributes]:
    """Return what a config keeps of a checkpoint: the attributes of each of its files, by the file's name.

    Raises:
      UserError: `ModelConfig.checkpoint` is not a JSON object of objects.
    """
    try:
        by_file = parse_json(config.checkpoint or "{}")
    except ValueError:
        by_file = None
    if not isinstance(by_file, dict) or not all(isinstance(value, dict) for value in by_file.values()):
        raise UserError(f"checkpoint is {config.checkpoint!r}; expected a JSON object with the attributes of each file")
    return by_file


def keep(config: ModelConfig, file: str, attributes: Attributes) -> ModelConfig:
    """Return the config, which keeps these attributes of a file."""
    return config.replace(checkpoint=json.dumps(read_kept(config) | {file: attributes}, sort_keys=True))


def kept_attributes(family: Family, config: ModelConfig) -> Attributes:
    """Return the attributes of config.json that a config keeps, as far as they fit a family and the classes."""
    labels = {"id2label", "label2id", "num_labels", "_num_labels"}
    attributes = read_kept(config).get(CONFIG, {})
    if not isinstance(config.head, Classifier) or len(attributes.get("id2label") or ()) == config.head.classes:
        labels = set()
    return {name: value for name, value in attributes.items() if name in family.kept_names - labels}


def rows_of(family: Family, config: ModelConfig) -> tuple[TensorRow, ...]:
    """Return the tensors of a family's model, with those of a head that classifies."""
    rows = _table_rows(family, config)
    if not isinstance(config.head, Classifier):
        return rows
    body = [row for row in rows if not row.paths[0].startswith("head/")]
    return (
        *body,
        *linear(family.classifier, "head/matrix")[:1],
        TensorRow(f"{family.classifier}.bias", ("head/bias",), VECTOR),
    )


def _table_rows(family: Family, config: ModelConfig) -> tuple[TensorRow, ...]:
    """Return the rows of a family's table."""
    text = family.tensors if isinstance(family.tensors, str) else family.tensors(config)
    layers = {"encoder": config.encoder.layers} if config.encoder is not None else {}
    kinds = family.kinds(config) if callable(family.kinds) else family.kinds
    return read_table(text, {"": config.layers, **layers}, {**KINDS, **kinds})


def final_vectors(attributes: Attributes) -> Head:
    """Return the head of a model without one: its output is the vector of each token."""
    return NoHead()


def classifier(pool: str, bias: bool) -> Callable[[Attributes], Head]:
    """Return the function from attributes to a head with as many classes as they have labels."""

    def head(attributes: Attributes) -> Head:
        count = len(attributes.get("id2label") or ()) or attributes.get("num_labels") or 2
        if attributes.get("problem_type") not in (None, "single_label_classification") or count < 2:
            raise UserError(
                f"config.json has 'problem_type' {attributes.get('problem_type')!r} and {count} labels; expected "
                "single_label_classification of at least 2 labels, the only supported kind"
            )
        return Classifier(classes=count, pool=pool, bias=bias)

    return head


def _check_known(family: Family, attributes: Attributes) -> None:
    fixed = {**FIXED, **family.fixed}
    mapped = [attribute.name for attribute in family.attributes]
    mapped += [name for group in family.groups for name in group.names]
    words = {**IGNORED, **family.ignored}.values()
    known = {*fixed, *mapped, *(name for listed in words for name in listed.split())}
    for name, value in attributes.items():
        if name not in known:
            raise UserError(
                f"config.json has '{name}' {value!r}, an unknown attribute of a {family.name} "
                f"model{did_you_mean(name, mapped)}"
            )
        if name in fixed and value is not None and value != fixed[name]:
            raise UserError(f"config.json has '{name}' {value!r}; expected {fixed[name]!r}, the only supported value")


def _label_names(classes: int) -> dict[str, dict[str, object]]:
    """Return the attributes with the names that transformers gives to labels without names."""
    names = [f"LABEL_{number}" for number in range(classes)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def write_attributes(family: Family, config: ModelConfig) -> Attributes:
    """Convert a config to the content of a config.json.

    Raises:
      UserError: no model of the family has this config; the message lists each field that differs.
    """
    config = with_explicit_widths(config, *WIDTHS)
    named = _label_names(getattr(config.head, "classes", 0))
    architectures = [name for name, make in family.heads.items() if make(named) == config.head]
    plain = config.replace(head=_base_head(family, config)) if architectures else config
    attributes = {
        "model_type": family.name,
        "architectures": [*architectures, family.architectures[0]][:1],
        **{attribute.name: attribute.write(plain) for attribute in family.attributes},
        **{name: value for group in family.groups for name, value in group.write(plain).items()},
        **(named if named["id2label"] else {}),
        **family.defaults,
        **kept_attributes(family, config),
    }
    nearest = read_attributes(family, attributes, {})
    if changed_fields := differences(canonical(_evaluation(config)), canonical(_evaluation(nearest))):
        raise UserError(
            f"the config is not that of a {family.name} model; its fields, and those of the nearest such model:\n  "
            + "\n  ".join(changed_fields)
        )
    return attributes


def _base_head(family: Family, config: ModelConfig) -> Head:
    """Return the head of a family's base, with the activation of the layers where it has one."""
    head = family.base.head
    return head.replace(transform=get_at(config, family.transform)) if family.transform else head


def _evaluation(config: ModelConfig) -> ModelConfig:
    """Return the config with defaults for fields that change neither the weights' shapes nor the evaluation."""
    config = with_explicit_widths(config, "d_value").replace(inputs=config.embedding)
    changes: dict[str, object] = {"initializer": Xavier(), "dropout": None, "d_memory": None, "checkpoint": ""}
    if isinstance(config.inputs, Tokens):
        changes |= {"inputs.lookup": "gather", "inputs.frozen": False, "inputs.std": 1.0}
    if isinstance(config.inputs, Patches):
        changes["inputs.std"] = 1.0
    if isinstance(config.head, LanguageModel):
        changes["head.wide_logits"] = True
    if isinstance(config.positions, LearnedPositions | RelativeBuckets):
        changes["positions.std"] = 0.0
    if config.encoder is not None:
        changes["encoder"] = _evaluation(config.encoder)
    return replace_at(config, changes)
