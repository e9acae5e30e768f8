"""LayerDrop: in training, whole layers are left out at random; in evaluation, all or every n-th of them are used.

    x + b f(x) for each branch of a layer, with one draw b ~ Bernoulli(1 − p) per layer

Family: residuals and depth
Source: Fan, Grave and Joulin 2020, "Reducing Transformer Depth on Demand with Structured Dropout", arXiv:1909.11556.
Claim: better results in translation, language modelling, summarisation and question answering; models of any smaller
depth from one training without further training, of which small BERTs are better than those trained from scratch.
Cost: no weights; here, a layer that is left out is computed nevertheless.
Verified: a loop over layers in NumPy; the share of layers that are kept in training, branches of a layer together.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, Residual, leaf, static


class LayerDrop(Residual):
    """x + b f(x), where the branches of a layer share the draw b in a part of the batch; in evaluation, x + f(x).

    rate: p, the probability with which a layer is left out in training.
    every: in evaluation, every how many-th layer is left out, from the last of each group on; None for no layer.
    """

    rate: float = leaf(0.2, at_least=0, below=1)
    every: int | None = static(None, at_least=2)

    def join(
        self, weights: Parameters, x: Float[Array, "*batch T D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T D"]:
        if context.training and context.layer_key is not None:
            return jnp.where(jax.random.bernoulli(context.layer_key, 1 - self.rate), x + update, x)
        if self.every is None or context.layer is None:
            return x + update
        return jnp.where((context.layer + 1) % self.every == 0, x, x + update)


VARIANTS: Mapping[str, Mapping[str, object]] = {"LayerDrop": {"model.residual": LayerDrop}}
