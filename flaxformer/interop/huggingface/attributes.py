"""Conversion between attributes of a config.json and fields of a `ModelConfig`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from flaxformer.config import ModelConfig
from flaxformer.core.paths import get_at
from flaxformer.core.struct import REQUIRED
from flaxformer.system.errors import UserError

CONFIG, GENERATION = "config.json", "generation_config.json"
"""Files with the attributes of a model and of its generation."""
Attributes = Mapping[str, Any]
"""Content of a config.json."""
Fields = Mapping[str, object]
"""Values of a `ModelConfig` by dotted path."""


class Attribute(NamedTuple):
    """Conversion of one attribute.

    read: function from its value to the fields that it determines.
    write: function from a config to its value.
    default: its value if it is missing or null; may be a function of the attributes. REQUIRED if there is none.
    is_kept: True if it determines no field, and its value is kept as it was read.
    may_be_null: True if null is a value of its own, and not the default.
    """

    name: str
    read: Callable[..., Fields]
    write: Callable[[ModelConfig], object]
    default: object = REQUIRED
    is_kept: bool = False
    may_be_null: bool = False

    def value(self, attributes: Attributes) -> object:
        """Return its value in a config.json, or its default.

        Raises:
          UserError: it is missing and has no default.
        """
        value = attributes.get(self.name)
        if value is not None or (self.may_be_null and self.name in attributes):
            return value
        if self.default is REQUIRED:
            raise UserError(f"config.json has no '{self.name}'; expected a value")
        return self.default(attributes) if callable(self.default) else self.default


def number(name: str, *paths: str, default: object = REQUIRED) -> Attribute:
    """Return the conversion of an attribute that equals one field or several fields."""
    return Attribute(name, lambda value: dict.fromkeys(paths, value), lambda config: get_at(config, paths[0]), default)


def optional(name: str, *paths: str, default: float | None) -> Attribute:
    """Return the conversion of a number that may be null, for None."""
    return number(name, *paths, default=default)._replace(may_be_null=True)


def flag(name: str, *paths: str, default: object = REQUIRED) -> Attribute:
    """Return the conversion of an attribute that is True or False, as one field or several fields are."""
    return choice(name, {value: dict.fromkeys(paths, value) for value in (False, True)}, default)


class Group(Protocol):
    """Conversion of several attributes that depend on each other."""

    @property
    def names(self) -> tuple[str, ...]:
        """Attributes that are read."""

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config, whose other fields have been read, with the fields that the attributes determine."""

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return the attributes of a config."""


def rate(name: str, *paths: str, default: float) -> Attribute:
    """Return the conversion of a dropout rate, of which 0 means no dropout."""
    read = lambda value: dict.fromkeys(paths, value or None)  # noqa: E731
    return Attribute(name, read, lambda config: get_at(config, paths[0]) or 0.0, default)


def unused_attribute(name: str) -> Attribute:
    """Return the conversion of a dropout rate that this package does not have: kept for `save`, else written as 0."""
    return Attribute(name, lambda value: {}, lambda config: 0.0, 0.0, is_kept=True)


def choice(name: str, values: Mapping[bool, Fields] | Mapping[str, Fields], default: object = REQUIRED) -> Attribute:
    """Return the conversion of an attribute with a few values, each of which determines some fields."""

    def read(value: object) -> Fields:
        for known, fields in values.items():
            if value == known:
                return fields
        raise UserError(f"config.json has '{name}' {value!r}; expected one of {', '.join(map(repr, values))}")

    def write(config: ModelConfig) -> object:
        for value, fields in values.items():
            if all(get_at(config, path) == expected for path, expected in fields.items()):
                return value
        current = _list_fields(config, next(iter(values.values())))
        raise UserError(f"{current}; expected the fields of a value of '{name}': {', '.join(map(repr, values))}")

    return Attribute(name, read, write, default)


def _list_fields(config: ModelConfig, fields: Fields) -> str:
    return ", ".join(f"{path} is {get_at(config, path)!r}" for path in fields)


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
"""Names in this package by name in config.json. Names of the tanh approximation differ only in rounding."""


def activation(name: str, *paths: str, default: str) -> Attribute:
    """Return the conversion of the activation of the feed-forward layer."""
    return choice(name, {there: dict.fromkeys(paths, here) for there, here in ACTIVATIONS.items()}, default)


FIXED: dict[str, object] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "is_encoder_decoder": False,
}
"""Attributes of which this package supports one value; families add others."""

PROVENANCE = "how the file came to be"
NUMBERS = "the type of the numbers; they are read as float32"
EXECUTION = "how it is computed, and what is returned"
IGNORED = {
    PROVENANCE: "_name_or_path _commit_hash transformers_version model_type architectures",
    NUMBERS: "torch_dtype dtype use_bfloat16",
    EXECUTION: (
        "attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal "
        "chunk_size_feed_forward gradient_checkpointing torchscript use_cache return_dict use_return_dict "
        "output_attentions output_hidden_states output_past output_scores return_dict_in_generate cache_implementation"
    ),
    "the tokenizer, and tokens that mean something to it": (
        "tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id"
    ),
    "how text is generated": (
        "forced_bos_token_id forced_eos_token_id force_bos_token_to_be_generated "
        "max_length min_length do_sample early_stopping num_beams "
        "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
        "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values "
        "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens task_specific_params"
    ),
    "heads other than the language model's": (
        "finetuning_task id2label label2id num_labels _num_labels problem_type classifier_dropout classif_dropout "
        "tf_legacy_loss"
    ),
    "initial values, which the file replaces": "initializer_range initializer_factor init_std",
}
"""Attributes that do not change the model's function, by their purpose; families add others."""
WRITTEN_AGAIN = (PROVENANCE, NUMBERS, EXECUTION)
"""Purposes of attributes that are not kept: the writer knows them better."""
