"""Public functions of a forward pass: output, activations at named points, and decoding with a cache."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit, Edits, unknown_point
from flaxformer.model.cache import Cache
from flaxformer.model.call import ForwardInputs
from flaxformer.model.context import last_index
from flaxformer.model.output import Intermediates, ModelOutput
from flaxformer.model.transformer import run
from flaxformer.model.weights import Transformer


def apply(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    edit: Mapping[str, Edit] | None = None,
    **arguments: Unpack[ForwardInputs],
) -> Float[Array, "..."]:
    """Return the output of a model: logits [*batch, T, V] of a language model, or the output of its head.

    Args:
      params: weights in either layout, as `init` returns them.
      config: the config of these weights.
      inputs: depending on `config.inputs`, token ids [*batch, T] in [0, vocabulary) (other ids are not detected, since
        indexing clamps them), vectors [*batch, T, width], or images [*batch, height, width, channels].
      dropout_key: random key of training (dropout, batch statistics of BatchNorm); None evaluates.
      edit: functions of the activations at points of the forward pass, by path or pattern, such as
        {"blocks/3/attention/output": jnp.zeros_like}. Each returns an array of the same shape and dtype, with which the
        forward pass continues. In a pattern, `*` stands for any characters. `points` lists the paths. Edited logits or
        weights of an attention are computed without a fused kernel.
      arguments: padding, positions, a source to translate and so on; see `ForwardInputs`.

    Raises:
      TypeError: an unknown argument.
      UserError: a mask that a token mixer would ignore; an edit that matches no point, or returns another shape.
      ValueError: inputs of the wrong type or width, or beyond `max_length`.
    """
    return _run_edited(params, config, inputs, arguments, edit, dropout_key=dropout_key).output


def apply_with_intermediates(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    *,
    dropout_key: Array | None = None,
    edit: Mapping[str, Edit] | None = None,
    **arguments: Unpack[ForwardInputs],
) -> tuple[Float[Array, "..."], Intermediates]:
    """Return the output of `apply`, and the intermediates, such as attention weights; `jit` removes unused ones."""
    result = _run_edited(params, config, inputs, arguments, edit, dropout_key=dropout_key, return_intermediates=True)
    assert result.intermediates is not None
    return result.output, result.intermediates


def activations_at(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    at: str | Sequence[str],
    *,
    dropout_key: Array | None = None,
    edit: Mapping[str, Edit] | None = None,
    **arguments: Unpack[ForwardInputs],
) -> dict[str, PyTree]:
    """Return the activations of a forward pass at some points, by path, in the order of computation.

    They are those that an edit at the same path is given; with an edit there, those that it returns.

    Args:
      at: paths of points, or patterns of paths, such as "blocks/*/attention/weights".
      inputs, dropout_key, edit, arguments: as for `apply`.

    Raises:
      UserError: a pattern that matches no point, and as for `apply`.
    """
    patterns = [at] if isinstance(at, str) else list(at)
    result = _run_edited(params, config, inputs, arguments, edit, dropout_key=dropout_key, return_intermediates=True)
    activations = result.at_points()
    for pattern in patterns:
        if not fnmatch.filter(activations, pattern):
            raise unknown_point("at", pattern, list(activations))
    return {
        path: x for path, x in activations.items() if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
    }


def points(
    params: Transformer, config: ModelConfig, inputs: Array, **arguments: Unpack[ForwardInputs]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype of the activation at every point of a forward pass, by path, without computing it."""
    return _shapes_at_points(params, config, inputs, arguments, None)


def extend(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    cache: Cache,
    *,
    valid: Bool[Array, "*batch T"] | None = None,
    prefix: Int[Array, "*batch"] | None = None,
    edit: Mapping[str, Edit] | None = None,
) -> tuple[Float[Array, "..."], Cache]:
    """Return the output of `apply` for tokens that follow those of a cache, and the cache with these tokens.

    Args:
      inputs: any number of tokens per sequence; a prompt may be read in one call or in several.
      valid: False at padding.
      prefix: number of tokens at the start that all tokens attend to, with mask_pattern "prefix"; one call must contain
        them all.
      edit: as for `apply`, for the activations of these tokens; the cache has their keys and values after the edits.
        Edits of `interpret` with `positions` count from the first token of the cache. Keys and values of
        cross-attention, and what is within a token mixer without a decoding state, are not points.

    Raises:
      ValueError: more tokens than the capacity of the cache.
      UserError: an edit that matches no point, or returns another shape.
    """
    result = _run_edited(params, config, inputs, {"valid": valid, "prefix": prefix}, edit, cache=cache)
    assert result.cache is not None
    return result.output, result.cache


def _run_edited(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    arguments: ForwardInputs,
    edit: Mapping[str, Edit] | None,
    *,
    dropout_key: Array | None = None,
    cache: Cache | None = None,
    return_intermediates: bool = False,
) -> ModelOutput:
    """Run a forward pass with the edits of a call, each of which must match a point."""
    edits = Edits.of(edit)
    if edits is not None and cache is not None:
        edits = edits.after(cache.used)
    result = run(
        params,
        config,
        inputs,
        arguments,
        dropout_key=dropout_key,
        cache=cache,
        return_intermediates=return_intermediates,
        edits=edits,
    )
    if edits is not None:
        result = result.replace(output=edits.apply("output", result.output, None))
        edits.check_matched(lambda: list(_shapes_at_points(params, config, inputs, arguments, cache)))
    return result


def extend_edited(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    arguments: ForwardInputs,
    cache: Cache,
    edits: Edits | None,
    *,
    last_only: bool = False,
) -> tuple[Float[Array, "*batch V"] | Float[Array, "*batch T V"], Cache]:
    """Return what `extend` returns, without the check that each edit matches a point of this call.

    Args:
      edits: edits of the call; points within a token mixer without a decoding state are edited for all tokens.
      last_only: return the output of the last token of each sequence that is not padding, [*batch, V].
    """
    later_edits = None if edits is None else dataclasses.replace(edits.after(cache.used), edits_prefix=True)
    is_edited = later_edits is not None and later_edits.reach("output")
    result = run(
        params, config, inputs, arguments, cache=cache, last_only=last_only and not is_edited, edits=later_edits
    )
    assert result.cache is not None
    output = result.output if later_edits is None else later_edits.apply("output", result.output, None)
    if not last_only:
        return output, result.cache
    return _last_output(output, arguments.get("valid")) if is_edited else output.squeeze(-2), result.cache


def _last_output(output: Float[Array, "*batch T V"], valid: Bool[Array, "*batch T"] | None) -> Float[Array, "*batch V"]:
    """Return the output of the last token of each sequence that is not padding."""
    return jnp.take_along_axis(output, last_index(output.shape[:-1], valid)[..., None], axis=-2).squeeze(-2)


def _shapes_at_points(
    params: Transformer, config: ModelConfig, inputs: Array, arguments: ForwardInputs, cache: Cache | None
) -> dict[str, jax.ShapeDtypeStruct]:
    names: list[str] = []  # in the order of computation, which a traced dictionary does not keep

    def at_points() -> tuple[PyTree, ...]:
        activations = run(params, config, inputs, arguments, cache=cache, return_intermediates=True).at_points()
        names[:] = activations
        return tuple(activations.values())

    shapes = jax.eval_shape(at_points)
    return dict(zip(names, shapes, strict=True))
