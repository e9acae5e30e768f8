"""Losses as (sum, count): with one division at the end, every split into micro-batches has the same gradient."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.element_pairs import has_pairs, join_pairs, split_pairs
from flaxformer.nn.kernels.platform import platform
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
    of = _summary_of_pairs if has_pairs(logits) else _summary
    normaliser, at_target, mean = of(logits, targets)
    losses = normaliser - at_target
    if label_smoothing is not None:
        losses = (1 - label_smoothing) * losses + label_smoothing * (normaliser - mean)
    return (losses * weights).sum(), weights.sum()


class _Summary(NamedTuple):
    """Numbers of the logits of a token that the cross-entropy reads, in float32 or wider.

    Args:
      normaliser: log Σ_v e^z_v.
      at_target: z at the target.
      mean: mean of z over v.
    """

    normaliser: Float[Array, "*batch"]
    at_target: Float[Array, "*batch"]
    mean: Float[Array, "*batch"]


def _summary(logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]) -> _Summary:
    logits = widen(logits)
    return _Summary(jax.nn.logsumexp(logits, axis=-1), _at(logits, targets), logits.mean(-1))


@jax.custom_vjp
def _summary_of_pairs(logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]) -> _Summary:
    """`_summary` of logits in bfloat16 on a GPU."""
    even, odd = split_pairs(logits)
    highest = jnp.maximum(even, odd).max(-1)
    exponentials = jnp.exp(even - highest[..., None]) + jnp.exp(odd - highest[..., None])
    mean = (even + odd).sum(-1) / logits.shape[-1]
    return _Summary(highest + jnp.log(exponentials.sum(-1)), _gather(logits, targets).astype(mean.dtype), mean)


def _of_pairs_forward(logits: Array, targets: Array) -> tuple[_Summary, tuple[Array, Array, Array]]:
    found = _summary_of_pairs(logits, targets)
    return found, (logits, targets, found.normaliser)


def _of_pairs_backward(residuals: tuple[Array, Array, Array], gradient: _Summary) -> tuple[Array, None]:
    logits, targets, normaliser = residuals[0], *(x[..., None] for x in residuals[1:])
    of_normaliser, at_target, of_mean = (x[..., None] for x in gradient)

    def one(half: Array, ids: Array) -> Array:
        softmax = jnp.exp(half - normaliser)
        return of_normaliser * softmax + jnp.where(ids == targets, at_target, 0) + of_mean / logits.shape[-1]

    even, odd = split_pairs(logits)
    ids = 2 * jnp.arange(even.shape[-1]).reshape((1,) * (even.ndim - 1) + (-1,))
    return join_pairs(one(even, ids), one(odd, ids + 1)), None


_summary_of_pairs.defvjp(_of_pairs_forward, _of_pairs_backward)


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
