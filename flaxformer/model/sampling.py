"""Choice of the next token from its logits: greedy, or random with temperature, top-k and top-p."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.core.struct import Config, leaf, static
from flaxformer.nn.widen import widen


class Sampling(Config):
    """Rule that chooses a token from its logits; by default greedy, the most probable token.

    temperature: draw from softmax(logits / temperature); None for greedy.
    top_k: draw among the k most probable tokens (Fan et al. 2018); None for all.
    top_p: draw among the smallest set of most probable tokens whose probabilities sum to p (Holtzman et al. 2020);
        None for all.
    """

    temperature: float | None = leaf(None, above=0, below=math.inf)
    top_k: int | None = static(None, at_least=1)
    top_p: float | None = leaf(None, above=0, at_most=1)

    def problems(self) -> Iterator[str]:
        for name in ("top_k", "top_p"):
            if self.temperature is None and getattr(self, name) is not None:
                yield f"{name} is {getattr(self, name)} with temperature None, which is greedy; expected a temperature"


def filter_logits(logits: Float[Array, "*batch V"], sampling: Sampling) -> Float[Array, "*batch V"]:
    """Return the logits of the distribution that a token is drawn from: −∞ at excluded tokens, at most 0.

    The order is temperature, top-k, top-p, as in Hugging Face's `generate`; top-p renormalises the probabilities that
    top-k leaves. Ties with the last included token are included, so that the order of ids does not matter.
    """
    logits = widen(logits)
    if sampling.temperature is None:
        return jnp.where(jax.nn.one_hot(most_probable(logits), logits.shape[-1], dtype=bool), 0.0, -jnp.inf)
    # Subtract first: large logits divided by a small temperature would overflow.
    logits = (logits - logits.max(-1, keepdims=True)) / sampling.temperature
    if sampling.top_k is not None:
        logits = _exclude_below(logits, jax.lax.top_k(logits, min(sampling.top_k, logits.shape[-1]))[0][..., -1:])
    if sampling.top_p is not None:
        rising = jnp.sort(logits, axis=-1)
        # A token is included if the more probable ones sum to less than p: itself and the rest then exceed 1 − p.
        is_included = jnp.cumsum(jax.nn.softmax(rising), axis=-1) > 1 - sampling.top_p
        logits = _exclude_below(logits, jnp.where(is_included, rising, rising[..., -1:]).min(-1, keepdims=True))
    return logits


def sample(
    key: Array | None, logits: Float[Array, "B V"], sampling: Sampling, row: Int[Array, "B"] | None = None
) -> Int[Array, "B"]:
    """Choose one token per row; the random numbers of a row depend only on the key and the row's number.

    Args:
      key: random key; None for greedy.
      row: numbers of the rows; None for 0, 1, 2 ….
    """
    if sampling.temperature is None:
        return most_probable(logits)
    assert key is not None, "sampling with a temperature needs a key"
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(logits)) if row is None else row)
    return jax.vmap(jax.random.categorical)(keys, filter_logits(logits, sampling)).astype(jnp.int32)


def most_probable(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Return the argmax over the tokens, the first of ties; two reductions are faster than XLA's argmax on a CPU."""
    last = logits.shape[-1] - 1
    return jnp.where(logits == logits.max(-1, keepdims=True), jnp.arange(last + 1), last).min(-1).astype(jnp.int32)


def _exclude_below(logits: Array, least: Array) -> Array:
    """Set logits below a threshold to −∞."""
    return jnp.where(logits >= least, logits, -jnp.inf)
