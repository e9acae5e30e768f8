"""Adaptive computation time: a looped model in which each token stops after a number of passes that it chooses.

    p_n = σ(x_n · w + b); a token halts in the first pass n with Σ_{m ≤ n} p_m > 1 − ε, whose weight is then what is
    left to 1; y ← u_n s_n + (1 − u_n) y after pass n, with its weight u_n (0 for a token that has halted) and state s_n

Family: residuals and depth
Source: Dehghani et al. 2019, "Universal Transformers", arXiv:1807.03819, with the halting of Graves 2016, "Adaptive
Computation Time for Recurrent Neural Networks", arXiv:1603.08983; the form of the authors' code in tensor2tensor, whose
sinusoids of the pass are left out. Here, p reads what the attention reads.
Claim: better than a Transformer in algorithmic tasks, bAbI and LAMBADA, where halting helps further.
Cost: D + 1 weights for all passes; here, all passes are computed for all tokens.
Verified: a loop over tokens and passes in NumPy, with the loss; gradients of a loop in float64.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Attention, Aux, Context, Parameters, Residual, leaf, param, static

EPSILON = 0.01
"""ε: a token halts in the pass in which the sum of its probabilities exceeds 1 − ε."""


class HaltingAttention(Attention):
    """Attention that carries the weight u of the pass for `AdaptiveDepth`; its loss is `ponder` · (passes + remainder).

    ponder: weight of the loss, the mean over tokens of the number of passes and of the last pass's weight.
    """

    class Weights(Attention.Weights):
        """Weights of `Attention`, w and b."""

        halt: Float[Array, "d_model"] = param(init="zeros", decay=False)
        halt_bias: Float[Array, ""] = param(init="ones", decay=False)

    ponder: float = leaf(0.01, at_least=0)

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        zeros = jnp.zeros(x.shape[:-1], jnp.promote_types(x.dtype, jnp.float32))
        return {"halting": zeros, "pass_weight": zeros}

    def halted(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Aux:
        """Return the sum of the probabilities after this pass, the weight of the pass, and the loss."""
        before = context.carried["halting"]
        real = jnp.ones(before.shape, bool) if context.valid is None else context.valid
        x = jnp.where(real[..., None], x, 0).astype(before.dtype)
        p = jax.nn.sigmoid(x @ weights.halt.astype(before.dtype) + weights.halt_bias)
        runs = before < 1
        halts = runs & (before + p > 1 - EPSILON)
        weight = jnp.where(halts, 1 - before, jnp.where(runs, p, 0)).astype(before.dtype)
        after = jnp.where(halts, 1, before + weight)
        cost = jnp.where(real, runs + jnp.where(halts, weight, 0), 0).sum() / jnp.maximum(real.sum(), 1)
        carried = {"halting": after.astype(before.dtype), "pass_weight": weight}
        return Aux(carried=carried, losses={"ponder": self.ponder * cost}, statistics={"running": runs.mean()})

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        y, aux = super().apply(weights, x, context)
        return y, aux if context.is_cross else aux.merge(self.halted(weights, x, context))

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Any, context: Context) -> tuple[Any, Any]:
        (y, aux), state = super().step(weights, x, state, context)
        return (y, aux.merge(self.halted(weights, x, context))), state


class AdaptiveDepth(Residual):
    """The residual stream has the state s in place 0 and y in place 1, which the head reads.

    Without a `HaltingAttention`, the weight of a pass is 1, and y is the last state.

    branches: number of branches of a block; the last ends a pass.
    """

    branches: int = static(2, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        return jnp.stack([x, jnp.zeros_like(x)], axis=-2)

    def read(self, weights: Parameters, x: Float[Array, "*batch T n D"], context: Context) -> Array:
        return x[..., 0, :]

    def join(
        self,
        weights: Parameters,
        x: Float[Array, "*batch T n D"],
        update: Float[Array, "*batch T D"],
        context: Context,
    ) -> Float[Array, "*batch T n D"]:
        state, y = x[..., 0, :] + update, x[..., 1, :]
        if context.branch == self.branches - 1:
            u = context.carried.get("pass_weight", jnp.ones(y.shape[:-1]))[..., None]
            y = (u * state + (1 - u) * y).astype(x.dtype)
        return jnp.stack([state, y], axis=-2)

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x[..., 1, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "halting": {
        "model.attention": HaltingAttention,
        "model.residual": AdaptiveDepth,
        "model.distinct_blocks": 1,
    }
}
