"""Losses as (sum, count): with one division at the end, every split into micro-batches has the same gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.kernels.platform import platform


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
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if weights is None:
        weights = jnp.ones(targets.shape)
    weights = weights.astype(logits.dtype)
    # Where the weight is 0, the logits may be NaN, and the target an invalid id such as −100.
    logits, targets = jnp.where(weights[..., None] > 0, logits, 0), jnp.where(weights > 0, targets, 0)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    losses = normaliser - _at(logits, targets)
    if label_smoothing is not None:
        losses = (1 - label_smoothing) * losses + label_smoothing * (normaliser - logits.mean(-1))
    return (losses * weights).sum(), weights.sum()


def _at(logits: Float[Array, "*batch V"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return the logit of one id per token."""
    if platform().name == "cpu":
        return _gather(logits, ids)
    return _gather_with_dense_gradient(logits, ids)


def _gather(logits: Float[Array, "*batch V"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]


@jax.custom_jvp
def _gather_with_dense_gradient(logits: Float[Array, "*batch V"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return `_gather`, with a gradient that is fused with that of the normaliser; a scatter needs [*batch, V]."""
    return _gather(logits, ids)


@_gather_with_dense_gradient.defjvp
def _gather_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (logits, ids), (change, _) = primals, tangents
    at_id = jax.nn.one_hot(ids, logits.shape[-1], dtype=bool)
    return _gather(logits, ids), jnp.where(at_id, change, 0).sum(-1)


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
    outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    weights = jnp.ones(outputs.shape[:-1], outputs.dtype) if weights is None else weights.astype(outputs.dtype)
    error = jnp.where(weights[..., None] > 0, outputs - targets, 0)
    return (jnp.square(error).mean(-1) * weights).sum(), weights.sum()
