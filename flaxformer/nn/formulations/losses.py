"""Formulations of the numbers of the logits that the cross-entropy reads."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import ACCELERATORS, Formulation
from flaxformer.nn.formulations.element_pairs import join_pairs, split_pairs, unsuitable_reason
from flaxformer.nn.widen import widen

Summary = tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]]
"""log Σ_v e^z_v, z at the target, and the mean of z over v, of each token, in float32 or wider."""


@jax.custom_vjp
def summary_of_pairs(logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]) -> Summary:
    """Return the summary of logits that are read two at a time."""
    even, odd = split_pairs(logits)
    highest = jnp.maximum(even, odd).max(-1)
    exponentials = jnp.exp(even - highest[..., None]) + jnp.exp(odd - highest[..., None])
    mean = (even + odd).sum(-1) / logits.shape[-1]
    return highest + jnp.log(exponentials.sum(-1)), _gather(logits, targets).astype(mean.dtype), mean


def _of_pairs_forward(logits: Array, targets: Array) -> tuple[Summary, tuple[Array, Array, Array]]:
    summary = summary_of_pairs(logits, targets)
    return summary, (logits, targets, summary[0])


def _of_pairs_backward(residuals: tuple[Array, Array, Array], gradient: Summary) -> tuple[Array, None]:
    logits, targets, normaliser = residuals[0], *(x[..., None] for x in residuals[1:])
    of_normaliser, at_target, of_mean = (x[..., None] for x in gradient)

    def of_half(half: Array, ids: Array) -> Array:
        softmax = jnp.exp(half - normaliser)
        return of_normaliser * softmax + jnp.where(ids == targets, at_target, 0) + of_mean / logits.shape[-1]

    even, odd = split_pairs(logits)
    ids = 2 * jnp.arange(even.shape[-1]).reshape((1,) * (even.ndim - 1) + (-1,))
    return join_pairs(of_half(even, ids), of_half(odd, ids + 1)), None


summary_of_pairs.defvjp(_of_pairs_forward, _of_pairs_backward)


def summary_with_dense_gradient(logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]) -> Summary:
    """Return the summary, with a gradient at the target that is fused with that of the normaliser."""
    logits = widen(logits)
    return jax.nn.logsumexp(logits, axis=-1), _gather_with_dense_gradient(logits, targets), logits.mean(-1)


def _gather(logits: Float[Array, "*batch V"], ids: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]


_gather_with_dense_gradient = jax.custom_jvp(_gather)


@_gather_with_dense_gradient.defjvp
def _gather_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (logits, ids), (change, _) = primals, tangents
    at_id = jax.nn.one_hot(ids, logits.shape[-1], dtype=bool)
    return _gather(logits, ids), jnp.where(at_id, change, 0).sum(-1)


FORMULATIONS = {
    "pairs": Formulation(
        summary_of_pairs,
        gain="the memory's bandwidth: 1.02 × tokens/s of GPT-2 on an H200, with activations (bench formulations)",
        platforms=("gpu",),
        unsuitable_reason=lambda logits, targets: unsuitable_reason(logits),
    ),
    "dense gradient": Formulation(
        summary_with_dense_gradient,
        gain="no array [*batch, V] for a scatter, which a CPU computes in place",
        platforms=ACCELERATORS,
    ),
}
