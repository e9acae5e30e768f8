"""The public functions of a forward pass: the output, the output with intermediates, and the output with a cache."""

from typing import Any, Unpack

from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import ForwardInputs
from flaxformer.model.transformer import run


def apply(
    params: Any,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[ForwardInputs],
) -> Float[Array, "..."]:
    """Output of the model: logits [*batch, T, V] of a language model, or what its head gives.

    Args:
      params, config: weights as `init` made them, in either layout, and the config they were made with.
      inputs: token ids [*batch, T] in [0, vocabulary) (ids outside are the caller's to refuse, since indexing clamps
        them), vectors [*batch, T, width], or images [*batch, height, width, channels], as `config.inputs` says.
      dropout_key: gives training behaviour (dropout, a BatchNorm's batch statistics); None evaluates.
      given: padding, positions, a source to translate and so on; see `ForwardInputs`.
    """
    return run(params, config, inputs, given, dropout_key=dropout_key).output


def apply_with_intermediates(
    params: Any,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[ForwardInputs],
) -> tuple[Float[Array, "..."], Any]:
    """`apply`, and what every stage produced, attention logits and weights too; under `jit` only what is used costs."""
    outcome = run(params, config, inputs, given, dropout_key=dropout_key, return_intermediates=True)
    return outcome.output, outcome.intermediates


def extend(
    params: Any,
    config: ModelConfig,
    inputs: Array,
    cache: Any,
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    prefix: Int[Array, "*batch"] | None = None,
) -> tuple[Float[Array, "..."], Any]:
    """`apply` to tokens that follow those of a cache: their output, and the cache with them.

    Any number of tokens at a time, so that a prompt is read in one call, or in several; but what a prefix-LM is to see
    whole (`prefix`, counted in positions from the first) must come in one.
    """
    outcome = run(params, config, inputs, {"valid": valid, "prefix": prefix}, cache=cache)
    return outcome.output, outcome.cache
