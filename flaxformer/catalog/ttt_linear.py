"""TTT-Linear: the memory is a linear map that takes a step of gradient descent per token, from pairs of key and value.

    z_s = k_s W + b with the W and b before the mini-batch, loss_s = ½ |LN(z_s) − (v_s − k_s)|², and for token t of it
    W_t = W − c_t Σ_{s ≤ t} η_s k_sᵀ ∇_z loss_s (b_t likewise), y_t = q_t + LN(q_t W_t + b_t), c_t = max(0, 1/t + δ_t)

Family: token mixers
Source: Sun et al. 2024, "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", arXiv:2407.04620; the
authors' code, github.com/test-time-training/ttt-lm-pytorch, was read: `TTTLinear`, without gate and convolution.
Claim: perplexity that falls with longer contexts as a Transformer's does, and that of Mamba does not, at 125M to 1.3B
weights.
Cost: the weights of attention, D N for the rates, and two maps per head for its start and norm; a state of two maps per
head; here, one token after another, where the authors compute a mini-batch at once.
Verified: mini-batches in their dual form, without the maps W_t, in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, NoPositions, Parameters, TokenMixer, param, static
from flaxformer.nn import layer_norm
from flaxformer.nn.linear import linear
from flaxformer.nn.positions import rotate


class TTTLinear(TokenMixer):
    """LN(concatenated y_t) W_O, with the maps W and b of each head; queries and keys are rotated within a mini-batch.

    η = σ(x W_η + b_η) / d_head.

    mini_batch: number of tokens with gradients at the same W and b.
    """

    class Weights(Parameters):
        """Matrices into the heads, first W and b, δ, W_η and b_η, gains and biases of both norms, and W_O."""

        query: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        key: Float[Array, "d_model heads d_key"] = param(fan_in="d_model")
        value: Float[Array, "d_model heads d_value"] = param(fan_in="d_model", init="branch")
        first: Float[Array, "heads d_key d_value"] = param(std=0.02)
        first_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        place: Float[Array, "mini_batch"] = param(init="zeros", decay=False)
        rate: Float[Array, "d_model heads"] = param(fan_in="d_model")
        rate_bias: Float[Array, "heads"] = param(init="zeros", decay=False)
        inner_gain: Float[Array, "heads d_value"] = param(init="ones", decay=False)
        inner_bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        gain: Float[Array, "heads d_value"] = param(init="ones", decay=False)
        bias: Float[Array, "heads d_value"] = param(init="zeros", decay=False)
        out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value", init="branch")

    reads_mask: ClassVar[bool] = False
    heads: int = static(2, at_least=1)
    mini_batch: int = static(16, at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_key": model["d_model"] // self.heads, "d_value": model["d_model"] // self.heads}

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Array]:
        wide = jnp.promote_types(dtype, jnp.float32)
        both = jnp.concatenate([weights.first, weights.first_bias[:, None]], axis=-2).astype(wide)
        memory = jnp.broadcast_to(both, (*batch, *both.shape))
        return {"memory": memory, "sum": jnp.zeros_like(memory), "place": jnp.zeros(batch, jnp.int32)}

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Weights, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Array, Any]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x = jnp.where(valid[..., None], x, 0)
        count = state["place"][..., None] + jnp.cumsum(valid, axis=-1)
        place = jnp.where(valid, count - 1, 0) % self.mini_batch
        query, key, value = (linear(x, w, wide=True) for w in (weights.query, weights.key, weights.value))
        query, key = (rotate(heads, place) for heads in (query, key))
        rate = jax.nn.sigmoid(linear(x, weights.rate, weights.rate_bias, wide=True)) / key.shape[-1]
        share = jnp.maximum(1 / (place + 1) + weights.place[place], 0)

        def norm(z: Array) -> Array:
            return layer_norm(z, None, None, epsilon=1e-6) * weights.inner_gain + weights.inner_bias

        def with_one(x: Array) -> Array:
            return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)[..., None, :]

        def token(state: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
            memory, total = state
            query, key, value, rate, share, is_last, real = inputs
            prediction, gradient_of = jax.vjp(norm, (with_one(key) @ memory)[..., 0, :])
            [gradient] = gradient_of(prediction - (value - key))
            added = jnp.swapaxes(with_one(key), -1, -2) * (rate[..., None] * gradient)[..., None, :]
            total = total + jnp.where(real, added, 0)
            now = memory - share * total
            y = query + norm((with_one(query) @ now)[..., 0, :])
            after = jnp.where(is_last, now, memory), jnp.where(is_last, 0, total)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), after, state), y

        flags = [flag[..., None, None, None] for flag in (share, valid & (place == self.mini_batch - 1), valid)]
        inputs = tuple(jnp.moveaxis(z, x.ndim - 2, 0) for z in (query, key, value, rate, *flags))
        (memory, total), y = jax.lax.scan(token, (state["memory"], state["sum"]), inputs)
        y = jnp.moveaxis(y, 0, x.ndim - 2)
        flat = layer_norm(y.reshape(*x.shape[:-1], -1), None, None, epsilon=1e-6)
        y = (flat.reshape(y.shape) * weights.gain + weights.bias).astype(x.dtype)
        after = {"memory": memory, "sum": total, "place": count[..., -1] % self.mini_batch}
        return linear(y, weights.out, contract=2), after


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "TTT-Linear": {"model.attention": TTTLinear, "model.positions": NoPositions}
}
