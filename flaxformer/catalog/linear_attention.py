"""Linear attention: a product of positive features of queries and keys in place of the softmax.

    y_t = φ(q_t) S_t / (φ(q_t) z_tᵀ), S_t = S_{t−1} + φ(k_t)ᵀ v_t, z_t = z_{t−1} + φ(k_t), φ(x) = elu(x) + 1

Family: token mixers
Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
arXiv:2006.16236.
Claim: quality close to softmax attention, at a cost that is linear in the length.
Cost: the weights of attention without biases; a state of heads · d_key · (d_value + 1) numbers.
Verified: the recurrence, token by token, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import linear_recurrence


class LinearAttention(TokenMixer):
    """y_t = φ(q_t) S_t / (φ(q_t) z_tᵀ) W_O, with S_t = S_{t−1} + φ(k_t)ᵀ v_t and z_t = z_{t−1} + φ(k_t).

    φ(x) = elu(x) + 1, and the divisor has 1e-6 added. The state holds z as a further column of S.
    """

    class Weights(Parameters):
        """Matrices into the heads, and W_O out of them."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    epsilon: ClassVar[float] = 1e-6
    """Number added to the divisor."""
    heads: int = static(4, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads, "d_value": model["d_model"] // self.heads}

    def features(self, x: Float[Array, "*batch d_key"]) -> Float[Array, "*batch features"]:
        """Return φ(x), which is positive."""
        return jax.nn.elu(x) + 1

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        rows = self.features(weights.key[0, 0]).size
        return jnp.zeros((*batch, self.heads, rows, weights.value.shape[-1] + 1), jnp.promote_types(dtype, jnp.float32))

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        query, key, value = (linear(x, matrix, wide=True) for matrix in (weights.query, weights.key, weights.value))
        query, key = self.features(query), self.features(key)
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
        y, state = linear_recurrence(query, key, value, None, state, valid=context.valid)
        total = y[..., -1:] if context.valid is None else jnp.where(context.valid[..., None, None], y[..., -1:], 1)
        return linear((y[..., :-1] / (total + self.epsilon)).astype(x.dtype), weights.out, contract=2), state


VARIANTS: Mapping[str, Mapping[str, object]] = {"linear attention": {"model.attention": LinearAttention}}
