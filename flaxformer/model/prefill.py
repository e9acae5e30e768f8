"""Prefill: a prompt is read into a cache, whole or in parts of equal size."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.points import Edits
from flaxformer.model.cache import Cache
from flaxformer.model.call import ForwardInputs, PrefixInputs
from flaxformer.model.interface import extend_edited
from flaxformer.model.states import empty_states
from flaxformer.model.transformer import new_cache
from flaxformer.model.weights import Transformer


def read_prompt(
    params: Transformer,
    config: ModelConfig,
    prompt: Int[Array, "*batch T"],
    valid: Bool[Array, "*batch T"],
    prefix_inputs: PrefixInputs,
    capacity: int,
    chunk: int | None = None,
    edits: Edits | None = None,
) -> tuple[Cache, Float[Array, "*batch V"]]:
    """Return a cache of this capacity that contains the prompt, and the logits of the token that follows.

    The prompt is read with a cache of its own length, so that attention does not compute empty entries.

    Args:
      chunk: number of tokens that are read at a time, the first part being what is left; None for all.
      edits: functions to apply at points; the caller checks that each has matched one.
    """
    batch, length = prompt.shape[:-1], prompt.shape[-1]
    cache = new_cache(params, config, batch, length, edits=edits, **prefix_inputs)

    def read(cache: Cache, tokens: Array, valid: Array) -> tuple[Cache, Array]:
        inputs: ForwardInputs = {"valid": valid, "prefix": jnp.full(batch, length)}
        logits, cache = extend_edited(params, config, tokens, inputs, cache, edits, last_only=True)
        return cache, logits

    size = length if chunk is None else min(chunk, length)
    first = length % size or size
    cache, logits = read(cache, prompt[..., :first], valid[..., :first])

    def read_next(state: tuple[Cache, Array], part: tuple[Array, Array]) -> tuple[tuple[Cache, Array], None]:
        (cache, earlier), (tokens, valid) = state, part
        cache, later = read(cache, tokens, valid)
        return (cache, jnp.where(valid.any(-1, keepdims=True), later, earlier)), None

    if first < length:

        def split(x: Array) -> Array:
            return jnp.moveaxis(x[..., first:].reshape(*batch, -1, size), -2, 0)

        (cache, logits), _ = jax.lax.scan(read_next, (cache, logits), (split(prompt), split(valid)))
    return cache.pad_to(capacity, empty_states(params, config, batch, capacity)), logits
