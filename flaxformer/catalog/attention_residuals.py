"""Attention residuals: a branch reads a softmax-weighted average of the embeddings and all former updates.

    h_l = Σ_{i < l} softmax_i(w_l · RMSNorm(v_i)) v_i, with v_0 the embeddings and v_i = f_i(h_i) the update of branch i

Family: residuals and depth
Source: Kimi Team 2026, "Attention Residuals", arXiv:2603.15031 (the full form, without blocks of layers).
Claim: the loss of a model trained with 1.25 times the compute; sizes of activations that do not grow with depth.
Cost: a vector of width D and a gain per branch; all updates in memory.
Verified: a loop over branches in float64.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, param, static
from flaxformer.nn import rms_norm


class AttentionResiduals(Residual):
    """The residual stream has h in place 0, and v_i in place i + 1; the weights of branch l give h_{l+1}.

    branches: number of branches of a block.
    """

    class Weights(Parameters):
        """w is `query`, initially 0 (a plain mean); `gain` is that of the norm of the keys."""

        query: Float[Array, "d_model"] = param(init="zeros", decay=False)
        gain: Float[Array, "d_model"] = param(init="ones", decay=False)

    branches: int = static(2, at_least=1)

    def begin(self, x: Float[Array, "*batch T D"], layers: int) -> Float[Array, "*batch T n D"]:
        later = jnp.zeros((*x.shape[:-1], self.branches * layers, x.shape[-1]), x.dtype)
        return jnp.concatenate([x[..., None, :], x[..., None, :], later], axis=-2)

    def read(self, weights: Weights, x: Float[Array, "*batch T n D"], context: Context) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]

    def join(
        self, weights: Weights, x: Float[Array, "*batch T n D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T n D"]:
        layer = 0 if context.layer is None else context.layer
        place = layer * self.branches + context.branch + 1
        x = x.at[..., place + 1, :].set(update)
        values = x[..., 1:, :]
        wide = values.astype(jnp.promote_types(x.dtype, jnp.float32))
        logits = jnp.einsum("...nd,d->...n", rms_norm(wide, weights.gain, None, epsilon=1e-6), weights.query)
        attention = jax.nn.softmax(jnp.where(jnp.arange(values.shape[-2]) <= place, logits, -jnp.inf))
        h = jnp.einsum("...n,...nd->...d", attention, wide)
        return x.at[..., 0, :].set(h.astype(x.dtype))

    def end(self, x: Float[Array, "*batch T n D"]) -> Float[Array, "*batch T D"]:
        return x[..., 0, :]


VARIANTS: Mapping[str, Mapping[str, object]] = {"attention residuals": {"model.residual": AttentionResiduals}}
