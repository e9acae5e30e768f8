"""Value residual: later layers average their values with those of the first layer (ResFormer).

    V ← (1 − share) V + share · V_1, with V_1 of the same token in the first layer

Family: attention
Source: Zhou et al. 2024, "Value Residual Learning", arXiv:2410.17897 (ResFormer; the form with equal, fixed
shares).
Claim: the validation loss of a Transformer with fewer weights and less training data.
Cost: no weights; the values of the first layer are carried to the later ones.
Verified: the model without the values of its later layers.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    Attention,
    Aux,
    Context,
    KeysValues,
    leaf,
)


class ValueResidual(Attention):
    """Attention with the values V ← (1 − share) V + share · V_1 of the same token, with V_1 of the first layer.

    V_1 is carried from layer to layer. The decoding state holds the averaged values.
    """

    share: float = leaf(0.5, at_least=0, at_most=1)

    def initial_carry(self, x: Float[Array, "*batch T D"]) -> dict[str, Array]:
        sizes = self.axis_sizes({"d_model": x.shape[-1]})
        return {"first_value": jnp.zeros((*x.shape[:-1], sizes["key_value_heads"], sizes["d_value"]), x.dtype)}

    def keys_and_values(
        self, weights: Any, source: Float[Array, "*batch S D"], context: Context
    ) -> KeysValues | tuple[KeysValues, Aux]:
        keys_values = super().keys_and_values(weights, source, context)
        if context.is_cross:  # its tokens are the encoder's, and the carried values are not
            return keys_values
        first = jnp.where(context.layer == 0, keys_values.value, context.carried["first_value"])
        mixed = ((1 - self.share) * keys_values.value + self.share * first).astype(keys_values.value.dtype)
        return keys_values.replace(value=mixed), Aux(carried={"first_value": first})


VARIANTS: Mapping[str, Mapping[str, object]] = {"value residual": {"model.attention": ValueResidual}}
