"""The constructor arguments of torch.nn's Transformer modules, and the configs that are equal to them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flaxformer.config import Embeddings, ModelConfig, NoHead, NoPositions, NormPlacement
from flaxformer.interop.widths import explicit
from flaxformer.struct import REQUIRED, UserError, canonical, did_you_mean, flatten, get_at, replace_at


class Argument(NamedTuple):
    """The fields of the config that an argument decides, and the argument read off the config."""

    to: Callable[[Any], dict[str, Any]]
    back: Callable[[ModelConfig], Any]


def _field(path: str, otherwise: Any = 1) -> Argument:
    """An argument that is a field; `otherwise` stands in where a component has no such field, which is refused then."""

    def back(config: ModelConfig) -> Any:
        try:
            return get_at(config, path)
        except UserError:
            return otherwise

    return Argument(lambda value: {path: value}, back)


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
    "activation": _field("feed_forward.activation", "relu"),
    "layer_norm_eps": _field("norm_kind.epsilon", 1e-5),
    "batch_first": Argument(lambda is_coordinator: {}, lambda config: True),
    "norm_first": Argument(
        lambda is_coordinator: {"norm.pre": is_coordinator, "norm.post_residual": not is_coordinator},
        lambda config: config.norm.pre is not None,
    ),
    "norm": Argument(lambda has_norm: {"norm.final": has_norm}, lambda config: config.norm.final is not None),
    "bias": Argument(
        lambda has_bias: (
            dict.fromkeys(("attention.bias", "attention.out_bias", "feed_forward.bias"), has_bias)
            | {"norm_kind.affine": "gain+bias" if has_bias else "gain"}
        ),
        _field("attention.out_bias", True).back,
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
    norm=NormPlacement(final=True),  # unless a stack says otherwise
)


class Constructor(NamedTuple):
    """A class of torch.nn: its arguments with their defaults; those of which only one value has a counterpart."""

    defaults: dict[str, Any]
    free: str
    """Fields of the config that say nothing about the module, and what they hold."""
    memory: bool = False
    """True if it reads a memory of its own width."""
    only: Mapping[str, Any] = {}


LAYER = {"d_model": REQUIRED, "nhead": REQUIRED, "dim_feedforward": 2048, "dropout": 0.1, "activation": "relu"}
LAYER |= {"layer_norm_eps": 1e-5, "batch_first": False, "norm_first": False, "bias": True}
STACK = LAYER | {"num_layers": REQUIRED, "norm": False}
BOTH = LAYER | {"d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6}
ATTENTION = {"embed_dim": REQUIRED, "num_heads": REQUIRED, "dropout": 0.0, "bias": True, "add_bias_kv": False}
ATTENTION |= {"add_zero_attn": False, "kdim": None, "vdim": None, "batch_first": False}

IN_A_STACK = "vocabulary initializer mask_pattern attention.window"
IN_A_LAYER = f"{IN_A_STACK} layers distinct_blocks sharing inputs head encoder norm.final norm.embedding"
IN_ATTENTION = (
    f"{IN_A_LAYER} norm norm_kind residual attention_residual cross_attention_residual feed_forward_residual parallel "
    "feed_forward dropout"
)
CONSTRUCTORS = {
    "MultiheadAttention": Constructor(
        ATTENTION, IN_ATTENTION, only={"dropout": 0.0, "add_bias_kv": False, "add_zero_attn": False}
    ),
    "TransformerEncoderLayer": Constructor(LAYER, IN_A_LAYER),
    "TransformerDecoderLayer": Constructor(LAYER, IN_A_LAYER, memory=True),
    "TransformerEncoder": Constructor(STACK, IN_A_STACK),
    "TransformerDecoder": Constructor(STACK, IN_A_STACK, memory=True),
    "Transformer": Constructor(BOTH, IN_A_STACK),
}


def config_of(kind: str, **arguments: Any) -> ModelConfig:
    """The config of a torch.nn module, from the arguments of its constructor; those left out are at torch's defaults.

    A stack takes the arguments of its layers, beside `num_layers` and `norm`: whether it ends in a
    LayerNorm(d_model, layer_norm_eps, bias=bias), as both stacks of Transformer do. `activation` is "relu", "gelu", or
    flaxformer's name for the function that torch was given. Without `bias` the LayerNorms have none either, as in torch
    since 2.1. `batch_first` changes nothing: sequences are [*batch, T, D] here.

    Evaluation is torch's; training is not quite: `dropout` is that of the residual branches, and of what a stack reads,
    where torch has it in the attention weights and in the hidden layer too, and not on what is read.

    Raises:
      UserError: an unknown kind or argument, a missing one, or a value that has no counterpart.
    """
    constructor = _constructor(kind)
    values = _complete(kind, arguments)
    fields = {path: value for name in values for path, value in ARGUMENTS[name].to(values[name]).items()}
    if constructor.memory:
        fields["d_memory"] = values["d_model"]
    config = replace_at(BASE, fields)
    return config.with_encoder(layers=values["num_encoder_layers"]) if kind == "Transformer" else config


def _complete(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a constructor; refuses those that it does not have and those without a counterpart."""
    constructor = _constructor(kind)
    for name in arguments:
        if name not in constructor.defaults:
            raise UserError(f"torch.nn.{kind} has no argument '{name}'{did_you_mean(name, constructor.defaults)}")
    values = constructor.defaults | arguments
    for name, value in values.items():
        if value is REQUIRED:
            raise UserError(f"torch.nn.{kind} is without {name}; expected it to be given")
        if name in constructor.only and value != constructor.only[name]:
            raise UserError(f"torch.nn.{kind} has {name} {value!r}; expected {constructor.only[name]}, as here")
    if kind == "MultiheadAttention":
        kdim, vdim = (values["embed_dim"] if values[name] is None else values[name] for name in ("kdim", "vdim"))
        if kdim != vdim:
            raise UserError(f"kdim is {kdim} and vdim {vdim}; expected one width, that of the memory")
    return values


def arguments_of(kind: str, config: ModelConfig) -> dict[str, Any]:
    """The arguments with which torch.nn's class makes the module of that config: the inverse of `config_of`.

    Masks, initial values, and for a layer what stands around it, are no part of the module: they may be anything.

    Raises:
      UserError: names a field of the config with a value that no module of this kind has.
    """
    constructor, config = _constructor(kind), _resolved(kind, config)
    arguments = {name: constructor.only.get(name, ARGUMENTS[name].back(config)) for name in constructor.defaults}
    theirs, ours = (flatten(canonical(c)) for c in (_resolved(kind, config_of(kind, **arguments)), config))
    for path in dict.fromkeys([*ours, *theirs]):
        places = (path, path.removeprefix("encoder."))
        free = any(f"{place}.".startswith(f"{name}.") for place in places for name in constructor.free.split())
        if ours.get(path) != theirs.get(path) and not free:
            raise UserError(f"{path} is {ours.get(path)!r}; expected {theirs.get(path)!r}, for a torch.nn.{kind}")
    return arguments


def _constructor(kind: str) -> Constructor:
    if kind not in CONSTRUCTORS:
        raise UserError(f"kind is '{kind}'{did_you_mean(kind, CONSTRUCTORS)}")
    return CONSTRUCTORS[kind]


def _resolved(kind: str, config: ModelConfig) -> ModelConfig:
    """The config with every width written out, so that equal models are equal configs."""
    if kind == "MultiheadAttention" and config.reads_memory:  # the attention to the memory is the module
        config = config.replace(attention=config.cross, cross_attention=None)
    config = explicit(config, "key_value_heads", "d_head", "d_value", "d_ff")
    return config.replace(d_memory=config.sizes["d_memory"] or None)
