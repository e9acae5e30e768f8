"""Mixtures of experts: each token is computed by a few of many networks, and none is dropped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import experts as fast
from flaxformer.nn.formulations import with_formulations


@with_formulations("experts", fast.FORMULATIONS)
def mix_experts(
    x: Float[Array, "*batch D"],
    up: Float[Array, "experts D d_ff"],
    down: Float[Array, "experts d_ff D"],
    gates: Float[Array, "*batch active"],
    chosen: Int[Array, "*batch active"],
    activation: Callable[[Array], Array] = jax.nn.relu,
) -> Float[Array, "*batch D"]:
    """Return Σ_a g_a activation(x U_e) D_e with e = chosen_a, in the dtype of x.

    All experts compute all tokens here, and a gate of 0 discards a result. Source: Shazeer et al. 2017, equation 1.

    Args:
      up, down: U and D of each expert.
      gates: weights g of a token's experts.
      chosen: numbers of its experts; an expert may occur twice.
      activation: function of each entry.
    """
    weight = jnp.einsum("...a,...ae->...e", gates, jax.nn.one_hot(chosen, len(up), dtype=gates.dtype))
    hidden = activation(jnp.einsum("...d,edf->...ef", x, up))
    return jnp.einsum("...ef,efd->...d", weight.astype(x.dtype)[..., None] * hidden, down)
