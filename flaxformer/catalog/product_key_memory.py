"""Product-key memory: a table of values, of which each token reads the few whose keys are pairs close to its query.

    y = Σ_h Σ_(i, j) softmax(q₁ · c_i + q₂ · c'_j) v_ij over the `active` largest pairs, with halves q₁, q₂ of query h

Family: feed-forward
Source: Lample et al. 2019, "Large Memory Layers with Product Keys", arXiv:1907.05242, section 3 (without its batch norm
of queries).
Claim: a model of 12 layers with a memory has lower perplexity than one of 24 layers, and is twice as fast in
inference.
Cost: n² values of width D; per token and query, 2 n products with keys and `active`² sums.
Verified: a loop over all n² keys in float64.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, FeedForward, Parameters, param, static
from flaxformer.nn.linear import linear


class ProductKeyMemory(FeedForward):
    """`queries` queries of width 2 · half per token, and keys² values; in the paper, 4, 512² and 32 active."""

    class Weights(Parameters):
        """Map to queries with their bias, the two sets of keys c and c' of each query, and the values."""

        query: Float[Array, "d_model queries sides half"] = param(fan_in="d_model")
        query_bias: Float[Array, "queries sides half"] = param(init="zeros", decay=False)
        key: Float[Array, "queries sides half keys"] = param(fan_in="half", batch_axis="queries sides")
        values: Float[Array, "slots d_model"] = param(std="std", decay=False)

    queries: int = static(4, at_least=1)
    keys: int = static(32, at_least=1)
    active: int = static(8, at_least=1)
    half: int = static(16, at_least=1)
    std: float = static(0.1, above=0)

    def problems(self) -> Iterator[str]:
        if self.active > self.keys:
            yield f"active is {self.active}; expected at most the number of keys, {self.keys}"

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"sides": 2, "slots": self.keys**2}

    def active_sizes(self) -> dict[str, int]:
        return {"slots": min(self.queries * self.active, self.keys**2)}

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        query = linear(x, weights.query, weights.query_bias, wide=True)
        scores = jnp.einsum("...hsd,hsdk->...hsk", query, weights.key)
        best, places = jax.lax.top_k(scores, self.active)  # of each half; the best pairs are among their pairs
        sums = best[..., 0, :, None] + best[..., 1, None, :]
        slots = self.keys * places[..., 0, :, None] + places[..., 1, None, :]
        logits, pairs = jax.lax.top_k(sums.reshape(*sums.shape[:-2], -1), self.active)
        slots = jnp.take_along_axis(slots.reshape(*slots.shape[:-2], -1), pairs, axis=-1)
        return jnp.einsum("...ha,...had->...d", jax.nn.softmax(logits), weights.values[slots]).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"32² values": {"model.feed_forward": ProductKeyMemory}}
