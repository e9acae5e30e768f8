"""Position encodings: functions of positions, added to the embeddings before the first layer."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def sinusoidal(
    positions: Int[Array, "*batch T"], d_model: int, *, base: float | Float[Array, ""] = 10_000.0
) -> Float[Array, "*batch T D"]:
    """r_n[2i] = sin(n / base^(2i/D)), r_n[2i+1] = cos(n / base^(2i/D)): sine and cosine interleaved.

    Sources: Vaswani et al. 2017, section 3.5; "Transformer (encoder-decoder walk-through)";
    "What Happens in A Transformer Layer", second appendix.
    """
    exponents = np.arange(0, d_model, 2) / d_model
    frequencies = jnp.expand_dims(jnp.power(base, -exponents), range(positions.ndim))
    angles = positions[..., None] * frequencies
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :d_model]
