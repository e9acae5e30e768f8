"""Based linear attention: linear attention whose features give the Taylor series of exp up to the square.

    φ(q) φ(k)ᵀ = 1 + z + z²/2, z = q kᵀ / √d_key; y_t = φ(q_t) S_t / (φ(q_t) z_tᵀ)

Family: token mixers
Source: Arora et al. 2024, "Simple linear attention language models balance the recall-throughput tradeoff",
arXiv:2402.18668.
Claim: with sliding windows in other layers, at up to 1.3B weights, the perplexity of Mamba, and 6.22 points more
accuracy in tasks of recall.
Cost: a state of heads · (1 + d_key + d_key²) · (d_value + 1) numbers, with d_key = 16.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import static
from flaxformer.catalog import LinearAttention


class TaylorAttention(LinearAttention):
    """y_t = φ(q_t) S_t / (φ(q_t) z_tᵀ) W_O, with S_t = S_{t−1} + φ(k_t)ᵀ v_t and z_t = z_{t−1} + φ(k_t).

    φ(x) = [1, x / d_key^¼, vec(x xᵀ) / √(2 d_key)]. The state holds z as a further column of S. The published model has
    short convolutions and attention over a window in other layers: give those as other blocks of a pattern.
    """

    epsilon: ClassVar[float] = 0.0  # φ(q) φ(k)ᵀ is at least ½
    heads: int = static(4, at_least=1)
    d_key: int = static(16, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": self.d_key}

    def features(self, x: Float[Array, "*batch d_key"]) -> Float[Array, "*batch features"]:
        """Return φ(x), for which φ(q) φ(k)ᵀ ≥ ½."""
        squares = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1) / (2 * x.shape[-1]) ** 0.5
        return jnp.concatenate([jnp.ones_like(x[..., :1]), x / x.shape[-1] ** 0.25, squares], axis=-1)


VARIANTS: Mapping[str, Mapping[str, object]] = {"Based": {"model.attention": TaylorAttention}}
