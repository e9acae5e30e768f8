"""Conversion between constructor arguments of torch.nn's Transformer modules and configs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flaxformer.components import Embeddings, NoHead, NoPositions, NormPlacement
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import canonical
from flaxformer.core.paths import get_at, replace_at
from flaxformer.core.struct import REQUIRED
from flaxformer.interop.widths import with_explicit_widths
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.system.errors import UserError, did_you_mean, not_supported
from flaxformer.system.json_differences import flatten


class Argument(NamedTuple):
    """Conversion of one argument to fields of a config by path, and from a config."""

    to_fields: Callable[[Any], dict[str, object]]
    from_config: Callable[[ModelConfig], object]


def _field(path: str, otherwise: object = 1) -> Argument:
    """Return the conversion of an argument that equals a field.

    `otherwise` is the argument of a config whose component has no such field; `arguments_of` then raises an error.
    """

    def from_config(config: ModelConfig) -> object:
        try:
            return get_at(config, path)
        except UserError:
            return otherwise

    return Argument(lambda value: {path: value}, from_config)


def _activation_name(value: object) -> object:
    """Return the name of an activation that was given as a function or module of torch; other values unchanged."""
    if isinstance(value, str) or not callable(value):
        return value
    name = str(getattr(value, "__name__", type(value).__name__)).lower()
    name = "gelu_tanh" if name == "gelu" and getattr(value, "approximate", "none") == "tanh" else name
    if name not in ACTIVATIONS:
        raise UserError(f"activation is {value!r}{not_supported(name, ACTIVATIONS)}")
    return name


ARGUMENTS = {
    "d_model": _field("d_model"),
    "embed_dim": _field("d_model"),
    "nhead": _field("attention.heads"),
    "num_heads": _field("attention.heads"),
    "dim_feedforward": _field("feed_forward.d_ff"),
    "kdim": _field("d_memory"),
    "vdim": Argument(lambda n: {}, lambda config: config.d_memory),
    "num_layers": _field("layers"),
    "num_decoder_layers": _field("layers"),
    "num_encoder_layers": Argument(lambda n: {}, lambda config: (config.encoder or config).layers),
    "dropout": Argument(lambda rate: {"dropout": rate or None}, lambda config: config.dropout or 0.0),
    "activation": Argument(
        lambda value: {"feed_forward.activation": _activation_name(value)},
        _field("feed_forward.activation", "relu").from_config,
    ),
    "layer_norm_eps": _field("norm_kind.epsilon", 1e-5),
    "batch_first": Argument(lambda is_first: {}, lambda config: True),
    "norm_first": Argument(
        lambda is_first: {"norm.pre": is_first, "norm.post_residual": not is_first},
        lambda config: config.norm.pre is not None,
    ),
    "norm": Argument(lambda has_norm: {"norm.final": has_norm}, lambda config: config.norm.final is not None),
    "bias": Argument(
        lambda has_bias: (
            dict.fromkeys(("attention.bias", "attention.out_bias", "feed_forward.bias"), has_bias)
            | {"norm_kind.affine": "gain+bias" if has_bias else "gain"}
        ),
        _field("attention.out_bias", True).from_config,
    ),
    "add_bias_kv": Argument(lambda has_bias: {}, lambda config: False),
    "add_zero_attn": Argument(lambda has_zero: {}, lambda config: False),
}
BASE = ModelConfig(
    layers=1,
    inputs=Embeddings(),
    head=NoHead(),
    positions=NoPositions(),
    mask_pattern="bidirectional",
    norm=NormPlacement(final=True),  # unless the argument `norm` of a stack is False
)


class Constructor(NamedTuple):
    """Arguments of a class of torch.nn with their defaults."""

    defaults: dict[str, object]
    free: str
    """Fields of the config, including those inside them, that do not affect the module."""
    memory: bool = False
    """True if it reads a memory of its own width."""
    only: Mapping[str, object] = {}
    """Arguments of which only one value has a counterpart, and that value."""


LAYER: dict[str, object] = {
    "d_model": REQUIRED,
    "nhead": REQUIRED,
    "dim_feedforward": 2048,
    "dropout": 0.1,
    "activation": "relu",
}
LAYER |= {"layer_norm_eps": 1e-5, "batch_first": False, "norm_first": False, "bias": True}
STACK = LAYER | {"num_layers": REQUIRED, "norm": False}
BOTH = LAYER | {"d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6}
ATTENTION: dict[str, object] = {
    "embed_dim": REQUIRED,
    "num_heads": REQUIRED,
    "dropout": 0.0,
    "bias": True,
    "add_bias_kv": False,
}
ATTENTION |= {"add_zero_attn": False, "kdim": None, "vdim": None, "batch_first": False}

IN_A_STACK = "vocabulary initializer mask_pattern attention.window"
IN_A_LAYER = f"{IN_A_STACK} layers distinct_blocks sharing inputs head encoder norm.final norm.embedding"
IN_ATTENTION = (
    f"{IN_A_LAYER} norm norm_kind residual attention_residual cross_attention_residual feed_forward_residual parallel "
    "feed_forward dropout"
)
CONSTRUCTORS = {
    "MultiheadAttention": Constructor(ATTENTION, IN_ATTENTION, only={"add_bias_kv": False, "add_zero_attn": False}),
    "TransformerEncoderLayer": Constructor(LAYER, IN_A_LAYER),
    "TransformerDecoderLayer": Constructor(LAYER, IN_A_LAYER, memory=True),
    "TransformerEncoder": Constructor(STACK, IN_A_STACK),
    "TransformerDecoder": Constructor(STACK, IN_A_STACK, memory=True),
    "Transformer": Constructor(BOTH, IN_A_STACK),
}


def config_of(kind: str, **arguments: object) -> ModelConfig:
    """Return the config of a torch.nn module, given the arguments of its constructor; others have torch's defaults.

    A stack has the arguments of its layers, `num_layers`, and `norm`: whether it ends in a
    LayerNorm(d_model, layer_norm_eps, bias=bias), as both stacks of Transformer do. `activation` is "relu", "gelu", or
    this package's name of a function that was passed to torch. With bias=False, LayerNorms have no bias either, as in
    torch since 2.1. `batch_first` has no effect: sequences are [*batch, T, D] in this package.

    Evaluation equals torch's. Training differs in dropout: this package applies it to the residual branches and to the
    inputs of a stack; torch applies it to the residual branches, the attention weights and the hidden layer.

    Raises:
      UserError: an unknown kind or argument, a missing one, or a value that has no counterpart.
    """
    constructor = _find_constructor(kind)
    values = _complete_arguments(kind, arguments)
    fields = {path: value for name in values for path, value in ARGUMENTS[name].to_fields(values[name]).items()}
    if constructor.memory:
        fields["d_memory"] = values["d_model"]
    config = replace_at(BASE, fields)
    return config.with_encoder(layers=values["num_encoder_layers"]) if kind == "Transformer" else config


def _complete_arguments(kind: str, arguments: dict[str, object]) -> dict[str, object]:
    """Return all arguments of a constructor; raise an error for unknown ones, and for those without a counterpart."""
    constructor = _find_constructor(kind)
    for name in arguments:
        if name not in constructor.defaults:
            raise UserError(f"torch.nn.{kind} has no argument '{name}'{did_you_mean(name, constructor.defaults)}")
    values = constructor.defaults | arguments
    for name, value in values.items():
        if value is REQUIRED:
            raise UserError(f"torch.nn.{kind} has no {name}; expected a value")
        if name in constructor.only and value != constructor.only[name]:
            only = constructor.only[name]
            raise UserError(f"torch.nn.{kind} has {name} {value!r}; expected {only}, the only supported value")
    if kind == "MultiheadAttention":
        kdim, vdim = (values["embed_dim"] if values[name] is None else values[name] for name in ("kdim", "vdim"))
        if kdim != vdim:
            raise UserError(f"kdim is {kdim} and vdim is {vdim}, which is not supported; expected equal widths")
    return values


def arguments_of(kind: str, config: ModelConfig) -> dict[str, object]:
    """Return the arguments with which torch.nn's class makes the module of a config; the inverse of `config_of`.

    Fields that are not part of the module are ignored: masks, initial values and, for a layer, those of the stack.

    Raises:
      UserError: a field of the config has a value that no module of this kind has; the message has its path.
    """
    constructor, config = _find_constructor(kind), _with_widths(kind, config)
    arguments = {name: constructor.only.get(name, ARGUMENTS[name].from_config(config)) for name in constructor.defaults}
    theirs, ours = (flatten(canonical(c)) for c in (_with_widths(kind, config_of(kind, **arguments)), config))
    for path in dict.fromkeys([*ours, *theirs]):
        places = (path, path.removeprefix("encoder."))
        is_free = any(f"{place}.".startswith(f"{name}.") for place in places for name in constructor.free.split())
        if ours.get(path) != theirs.get(path) and not is_free:
            raise UserError(f"{path} is {ours.get(path)!r}; expected {theirs.get(path)!r}, for a torch.nn.{kind}")
    return arguments


def _find_constructor(kind: str) -> Constructor:
    if kind not in CONSTRUCTORS:
        raise UserError(f"kind is '{kind}'{not_supported(kind, CONSTRUCTORS)}")
    return CONSTRUCTORS[kind]


def _with_widths(kind: str, config: ModelConfig) -> ModelConfig:
    """Return the config with explicit widths, so that equal models have equal configs."""
    if kind == "MultiheadAttention" and config.reads_memory:  # the module is the cross-attention
        config = config.replace(attention=config.cross, cross_attention=None)
    config = with_explicit_widths(config, "key_value_heads", "d_head", "d_value", "d_ff")
    return config.replace(d_memory=config.sizes["d_memory"] or None)
