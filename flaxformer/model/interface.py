"""Public functions of a forward pass: output, output with intermediates, and decoding with a cache."""

from typing import Unpack

from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.cache import Cache
from flaxformer.model.call import ForwardInputs
from flaxformer.model.transformer import Intermediates, run
from flaxformer.model.weights import Transformer


def apply(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[ForwardInputs],
) -> Float[Array, "..."]:
    """Return the output of a model: logits [*batch, T, V] of a language model, or the output of its head.

    Args:
      params: weights in either layout, as `init` returns them.
      config: the config of these weights.
      inputs: depending on `config.inputs`, token ids [*batch, T] in [0, vocabulary) (other ids are not detected, since
        indexing clamps them), vectors [*batch, T, width], or images [*batch, height, width, channels].
      dropout_key: random key of training (dropout, batch statistics of BatchNorm); None evaluates.
      given: padding, positions, a source to translate and so on; see `ForwardInputs`.

    Raises:
      TypeError: an unknown argument in `given`.
      UserError: a mask that a token mixer would ignore.
      ValueError: inputs of the wrong type or width, or beyond `max_length`.
    """
    return run(params, config, inputs, given, dropout_key=dropout_key).output


def apply_with_intermediates(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    **given: Unpack[ForwardInputs],
) -> tuple[Float[Array, "..."], Intermediates]:
    """Return the output of `apply`, and the intermediates, such as attention weights; `jit` removes unused ones."""
    result = run(params, config, inputs, given, dropout_key=dropout_key, return_intermediates=True)
    assert result.intermediates is not None
    return result.output, result.intermediates


def extend(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    cache: Cache,
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    prefix: Int[Array, "*batch"] | None = None,
) -> tuple[Float[Array, "..."], Cache]:
    """Return the output of `apply` for tokens that follow those of a cache, and the cache with these tokens.

    Args:
      inputs: any number of tokens per sequence; a prompt may be read in one call or in several.
      valid: False at padding.
      prefix: number of tokens at the start that all tokens attend to, with mask_pattern "prefix"; one call must contain
        them all.

    Raises:
      ValueError: more tokens than the capacity of the cache.
    """
    result = run(params, config, inputs, {"valid": valid, "prefix": prefix}, cache=cache)
    assert result.cache is not None
    return result.output, result.cache
