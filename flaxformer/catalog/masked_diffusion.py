"""Masked diffusion: a bidirectional model learns to fill in any share of masked tokens, and generates in any order.

    −log p(x) ≤ E_k [L/k Σ_{masked i} −log p(x_i | unmasked)], where k of the L tokens, drawn from 1 … L, are masked

Family: objectives
Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models", arXiv:2406.07524; Nie et al. 2025,
"Large Language Diffusion Models", arXiv:2502.09992 (LLaDA), in its form with a drawn number of masked tokens in place
of a drawn probability t and the factor 1/t. Abstracts and descriptions of both were read.
Claim: perplexities (as bounds) near those of autoregressive models; at 8B weights, competitive with Llama 3.
Cost: none; a loss is a bound for a share of the tokens, and so noisier. Generation of n tokens in n passes or fewer.
Verified: with exact conditional probabilities, the bound is the entropy, and samples have the joint distribution.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import Batch, MaskedText


class MaskedDiffusion(MaskedText):
    """Windows of L tokens of a text, of which k are masked, with k uniform in 1 … L; these are scored with L / k each.

    The loss per window is a bound of its negative log-likelihood, per token. The mask token is the id after the text's.
    """

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        count_key, place_key = jax.random.split(key)
        count = jax.random.randint(count_key, (), 1, window.size + 1)
        masked = jax.random.permutation(place_key, jnp.arange(window.size) < count)
        weights = jnp.where(masked, window.size / count, 0).astype(jnp.float32)
        return Batch(inputs=jnp.where(masked, self.mask, window), targets=window, weights=weights)

    def fill_in(
        self,
        logits_of: Callable[[Int[Array, "B T"]], Float[Array, "B T V"]],
        tokens: Int[Array, "B T"],
        key: Array,
    ) -> Int[Array, "B T"]:
        return fill_in(logits_of, tokens, key, mask=self.mask, passes=tokens.shape[-1])  # at most one token per pass


def fill_in(
    logits_of: Callable[[Int[Array, "*batch T"]], Float[Array, "*batch T V"]],
    tokens: Int[Array, "*batch T"],
    key: Array,
    *,
    mask: int,
    passes: int,
    temperature: float = 1.0,
    certain_first: bool = False,
) -> Int[Array, "*batch T"]:
    """Return tokens with all masked ones filled in by samples of a model, about as many in each pass.

    Args:
      logits_of: the model, such as `lambda tokens: apply(params, config, tokens)`.
      tokens: known tokens, and `mask` at all others.
      mask: id of the mask token, which is never generated.
      passes: number of calls of the model; with as many as masked tokens, each is sampled given all before it.
      temperature: of the samples; 0 takes the most probable token.
      certain_first: True fills in the tokens whose samples are the most probable (LLaDA); False, tokens at random.
    """
    count = jnp.max((tokens == mask).sum(-1))

    def one_pass(number: Int[Array, ""], tokens: Int[Array, "*batch T"]) -> Int[Array, "*batch T"]:
        is_masked = tokens == mask
        token_key, order_key = jax.random.split(jax.random.fold_in(key, number))
        logits = logits_of(tokens).at[..., mask].set(-jnp.inf)
        noise = jax.random.gumbel(token_key, logits.shape, logits.dtype)
        sample = jnp.argmax(logits / jnp.maximum(temperature, 1e-6) + (temperature > 0) * noise, axis=-1)
        chance = jnp.take_along_axis(jax.nn.log_softmax(logits), sample[..., None], axis=-1)[..., 0]
        score = chance if certain_first else jax.random.uniform(order_key, tokens.shape)
        score = jnp.where(is_masked, score, -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-score, axis=-1), axis=-1)
        remaining = count * (passes - 1 - number) // passes  # masked tokens after this pass
        now = is_masked & (rank < is_masked.sum(-1, keepdims=True) - remaining)
        return jnp.where(now, sample, tokens).astype(tokens.dtype)

    return jax.lax.fori_loop(0, passes, one_pass, tokens)


BYTES = 256
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "masked diffusion": {
        "task": MaskedDiffusion,
        "model.mask_pattern": "bidirectional",
        "model.vocabulary": BYTES + 1,
    }
}
