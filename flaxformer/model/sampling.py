"""Choice of the next token: the most probable one, or one drawn from a tempered and truncated distribution."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.struct import Config, leaf, static


class Sampling(Config):
    """Rule by which a token is chosen from its logits: by default, the most probable one (greedy).

    temperature: draw from softmax(logits / temperature); None is greedy, the limit of 0.
    top_k: draw among the k most probable tokens (Fan et al. 2018).
    top_p: draw among the fewest most probable tokens that have probability p together (Holtzman et al. 2020).
    """

    temperature: float | None = leaf(None, above=0)
    top_k: int | None = static(None, at_least=1)
    top_p: float | None = leaf(None, above=0, at_most=1)

    def problems(self) -> Iterator[str]:
        for name in ("top_k", "top_p"):
            if self.temperature is None and getattr(self, name) is not None:
                yield f"{name} is {getattr(self, name)} with temperature None, which is greedy; expected a temperature"


def filtered_logits(logits: Float[Array, "*batch V"], sampling: Sampling) -> Float[Array, "*batch V"]:
    """The logits of the distribution that a token is drawn from, −∞ at what it excludes; the highest is 0.

    The order is temperature, top-k, top-p (as in Hugging Face's `generate`), so that top-p counts the probability
    that is left. Tokens as probable as the last one kept are kept too, so that no choice hangs on the order of ids.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if sampling.temperature is None:
        return jnp.where(jax.nn.one_hot(most_probable(logits), logits.shape[-1], dtype=bool), 0.0, -jnp.inf)
    # Shifted first: divided by a small temperature, two large logits would both be infinite.
    logits = (logits - logits.max(-1, keepdims=True)) / sampling.temperature
    if sampling.top_k is not None:
        logits = _at_least(logits, jax.lax.top_k(logits, min(sampling.top_k, logits.shape[-1]))[0][..., -1:])
    if sampling.top_p is not None:
        rising = jnp.sort(logits, axis=-1)
        # Kept is what the more probable have less than p without: with the less probable, it has more than 1 − p.
        kept = jnp.cumsum(jax.nn.softmax(rising), axis=-1) > 1 - sampling.top_p
        logits = _at_least(logits, jnp.where(kept, rising, rising[..., -1:]).min(-1, keepdims=True))
    return logits


def sample(
    key: Array | None, logits: Float[Array, "B V"], sampling: Sampling, row: Int[Array, "B"] | None = None
) -> Int[Array, "B"]:
    """One token of each row. A row's randomness is of the key and its number, whatever rows stand beside it.

    Args:
      key: None will do where the most probable token is chosen.
      row: the rows' numbers; None counts them from 0.
    """
    if sampling.temperature is None:
        return most_probable(logits)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(logits)) if row is None else row)  # type: ignore[arg-type]
    return jax.vmap(jax.random.categorical)(keys, filtered_logits(logits, sampling)).astype(jnp.int32)


def most_probable(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """argmax over the tokens, the first of equals; as two reductions of numbers, for XLA's own is slow on a CPU."""
    last = logits.shape[-1] - 1
    return jnp.where(logits == logits.max(-1, keepdims=True), jnp.arange(last + 1), last).min(-1).astype(jnp.int32)


def _at_least(logits: Array, least: Array) -> Array:
    return jnp.where(logits >= least, logits, -jnp.inf)
