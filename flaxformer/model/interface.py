"""The functions that every model has, whatever its kind; the config's class says which kind."""

from types import ModuleType
from typing import Any, Unpack

from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig, RecurrentConfig
from flaxformer.model import recurrent, transformer
from flaxformer.model.call import Given
from flaxformer.model.layout import Layout
from flaxformer.model.transformer import Outcome
from flaxformer.struct import did_you_mean

KINDS: dict[type, ModuleType] = {ModelConfig: transformer, RecurrentConfig: recurrent}
"""Where each kind of config, and its subclasses, have `specs`, `init`, `with_layout`, `run` and `new_cache`."""


def _functions(config: Any) -> ModuleType:
    for kind in type(config).__mro__:
        if kind in KINDS:
            return KINDS[kind]
    raise TypeError(f"{config!r} is no model; expected a ModelConfig or a RecurrentConfig")


def specs(config: ModelConfig | RecurrentConfig) -> Any:
    """Every weight's declaration under a config: shapes, axes, initialisers, decay."""
    return _functions(config).specs(config)


def init(key: Array, config: ModelConfig | RecurrentConfig, layout: Layout = "unrolled") -> Any:
    """Draw the weights. The numbers depend on key and path alone, never on the layout or on other weights."""
    return _functions(config).init(key, config, layout)


def with_layout(params: Any, config: ModelConfig | RecurrentConfig, layout: Layout) -> Any:
    """The same weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    return _functions(config).with_layout(params, layout)


def run(params: Any, config: ModelConfig | RecurrentConfig, inputs: Array, given: Given, **how: Any) -> Outcome:
    """One call of the model with all that it produces: see `transformer.run`.

    Raises:
      TypeError: given something that no model is given, with the nearest name.
    """
    for name in given:
        if name not in Given.__annotations__:
            raise TypeError(f"no model is given '{name}'{did_you_mean(name, list(Given.__annotations__))}")
    return _functions(config).run(params, config, inputs, given, **how)


def apply(
    params: Any,
    config: ModelConfig | RecurrentConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[Given],
) -> Float[Array, "..."]:
    """What the model says: logits [*batch, T, V] of a language model, or what its head gives.

    Args:
      params, config: weights as `init` made them, in either layout, and the config they were made with.
      inputs: token ids [*batch, T] in [0, vocabulary) (ids outside are the caller's to refuse, since indexing clamps
        them), vectors [*batch, T, width], or images [*batch, height, width, channels], as `config.inputs` says.
      dropout_key: gives training behaviour (dropout, a BatchNorm's batch statistics); None evaluates.
      given: padding, positions, a source to translate and so on; see `Given`.
    """
    return run(params, config, inputs, given, dropout_key=dropout_key).output


def apply_with_intermediates(
    params: Any,
    config: ModelConfig | RecurrentConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[Given],
) -> tuple[Float[Array, "..."], Any]:
    """`apply`, and what every stage produced, attention logits and weights too; under `jit` only what is used costs."""
    outcome = run(params, config, inputs, given, dropout_key=dropout_key, keep=True)
    return outcome.output, outcome.intermediates


def new_cache(
    params: Any, config: ModelConfig | RecurrentConfig, batch: tuple[int, ...], slots: int, **given: Unpack[Given]
) -> Any:
    """An empty cache for `slots` tokens of each sequence of a batch; what is computed of a source is in it already.

    Raises:
      UserError: a model whose tokens see later ones, or more slots than the model has positions for.
    """
    return _functions(config).new_cache(params, config, batch, slots, **given)


def extend(
    params: Any,
    config: ModelConfig | RecurrentConfig,
    inputs: Array,
    cache: Any,
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    prefix: Int[Array, "*batch"] | None = None,
) -> tuple[Float[Array, "..."], Any]:
    """`apply` to tokens that follow those of a cache: what it says of them, and the cache with them.

    Any number of tokens at a time, so that a prompt is read in one call, or in several; but what a prefix-LM is to see
    whole (`prefix`, counted in slots from the first) must come in one.
    """
    outcome = run(params, config, inputs, {"valid": valid, "prefix": prefix}, cache=cache)
    return outcome.output, outcome.cache
