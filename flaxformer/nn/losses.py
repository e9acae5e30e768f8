"""Losses as (sum, count): divided once and globally, any split into micro-batches gives the same gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
    *,
    label_smoothing: float | Float[Array, ""] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum over tokens of w · (−Σ_v q_v log p_v), in nats, and the sum of w.

    p = softmax(logits) in float32 or wider; q is one at the target, or (1 − α) at the target plus α/V everywhere
    with label smoothing α (Szegedy et al. 2016). A target of weight 0 counts nothing, whatever its logits and its id.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if weights is None:
        weights = jnp.ones(targets.shape)
    weights = weights.astype(logits.dtype)
    # What counts nothing must not be read: its logits may be NaN, its target an ignored id such as −100.
    logits, targets = jnp.where(weights[..., None] > 0, logits, 0), jnp.where(weights > 0, targets, 0)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    losses = normaliser - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    if label_smoothing is not None:
        losses = (1 - label_smoothing) * losses + label_smoothing * (normaliser - logits.mean(-1))
    return (losses * weights).sum(), weights.sum()


def correct(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted number of targets that have the highest logit, and the sum of the weights."""
    return ((logits.argmax(-1) == targets) * weights).sum(), weights.sum()


def squared_error(
    outputs: Float[Array, "*batch outputs"],
    targets: Float[Array, "*batch outputs"],
    weights: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum over tokens of w · mean_k (y_k − t_k)², in float32 or wider, and the sum of w.

    A target of weight 0 counts nothing, whatever it is and whatever was said.
    """
    outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    weights = jnp.ones(outputs.shape[:-1], outputs.dtype) if weights is None else weights.astype(outputs.dtype)
    error = jnp.where(weights[..., None] > 0, outputs - targets, 0)
    return (jnp.square(error).mean(-1) * weights).sum(), weights.sum()
