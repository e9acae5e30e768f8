"""Reduction of the tokens of a sequence to one vector."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

POOLS = ("mean", "first", "last", "none")
"""One vector per sequence: the mean of its tokens, the first or the last; "none" keeps one vector per token."""


def pool(x: Float[Array, "*batch T D"], kind: str, valid: Bool[Array, "*batch T"] | None) -> Float[Array, "..."]:
    """Reduce the tokens of a sequence, without padding, to their mean, the first or the last; "none" keeps all."""
    if kind == "none":
        return x
    if valid is None:
        return {"mean": x.mean(-2), "first": x[..., 0, :], "last": x[..., -1, :]}[kind]
    masked = jnp.where(valid[..., None], x, 0)
    if kind == "mean":
        return masked.sum(-2) / jnp.maximum(valid.sum(-1), 1)[..., None]
    length = valid.shape[-1]
    index = valid.argmax(-1) if kind == "first" else length - 1 - valid[..., ::-1].argmax(-1)
    return jnp.take_along_axis(masked, index[..., None, None], axis=-2)[..., 0, :]
