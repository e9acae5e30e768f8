"""Losses as (sum, count): with one division at the end, every split into micro-batches has the same gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import losses as fast
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.widen import widen


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
    *,
    label_smoothing: float | Float[Array, ""] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the sum over tokens of w · (−Σ_v q_v log p_v), in nats, and the sum of the weights w.

    p = softmax(logits), in float32 or wider. q is 1 at the target; with label smoothing α, it is (1 − α) at the target
    plus α/V everywhere (Szegedy et al. 2016). Where the weight is 0, logits and target are not read.
    """
    weights = jnp.ones(targets.shape) if weights is None else weights
    weights = weights.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # Where the weight is 0, the logits may be NaN, and the target an invalid id such as −100.
    logits, targets = jnp.where(weights[..., None] > 0, logits, 0), jnp.where(weights > 0, targets, 0)
    normaliser, at_target, mean = summarise(logits, targets)
    losses = normaliser - at_target
    if label_smoothing is not None:
        losses = (1 - label_smoothing) * losses + label_smoothing * (normaliser - mean)
    return (losses * weights).sum(), weights.sum()


@with_formulations("cross-entropy", fast.FORMULATIONS)
def summarise(logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]) -> fast.Summary:
    """Return log Σ_v e^z_v, z at the target, and the mean of z over v, of each token, in float32 or wider."""
    logits = widen(logits)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return normaliser, at_target, logits.mean(-1)


def mean(total: Float[Array, "..."], count: Float[Array, ""]) -> Float[Array, "..."]:
    """Return total / count for every positive count, also below 1; and the total, which is 0, where the count is 0."""
    return total / jnp.where(count > 0, count, 1)


def count_correct(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the weighted number of targets with the highest logit, and the sum of the weights."""
    return ((logits.argmax(-1) == targets) * weights).sum(), weights.sum()


def squared_error(
    outputs: Float[Array, "*batch outputs"],
    targets: Float[Array, "*batch outputs"],
    weights: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the sum over tokens of w · mean_k (y_k − t_k)², in float32 or wider, and the sum of the weights w.

    Where the weight is 0, output and target are not read.
    """
    outputs = widen(outputs)
    weights = jnp.ones(outputs.shape[:-1], outputs.dtype) if weights is None else weights.astype(outputs.dtype)
    error = jnp.where(weights[..., None] > 0, outputs - targets, 0)
    return (jnp.square(error).mean(-1) * weights).sum(), weights.sum()
