"""What turns the vectors of the stream into the answer."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.config.base import SequenceModel
from flaxformer.model.call import Call
from flaxformer.model.norm import Norm, normalise
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.params import Parameters, param, subtree


class Transform(Parameters):
    """A linear map, an activation and a norm before the head's matrix (BERT)."""

    matrix: Float[Array, "d_model d_transform"] = param(fan_in="d_model")
    bias: Float[Array, "d_transform"] = param(init="zeros", decay=False)
    norm: Norm = subtree()


class Head(Parameters):
    """A matrix; a tied head has none of its own and uses the embedding's (one leaf, used twice)."""

    transform: Transform | None = subtree(when="head.transform")
    matrix: Float[Array, "d_model outputs"] | None = param(fan_in="d_model", when="head.has_matrix")
    bias: Float[Array, "outputs"] | None = param(init="zeros", decay=False, when="head.bias")


def predict(
    params: Head,
    config: SequenceModel,
    x: Float[Array, "*batch T D"],
    table: Float[Array, "V D"] | None,
    call: Call,
) -> tuple[Float[Array, "..."], Head]:
    """x G + b of every token, or of one vector a sequence; x Eᵀ when tied; x itself without a head.

    The answer is float32 or wider. Returns it and the head after it, whose norm's running statistics may have moved.
    """
    head = config.head
    if head.loss is None:
        return x, params
    if params.transform is not None:
        hidden = ACTIVATIONS[config.activation](linear(x, params.transform.matrix, params.transform.bias))
        x, norm = normalise(params.transform.norm, config, hidden, call)
        params = params.replace(transform=params.transform.replace(norm=norm))
    x = pool(x, head.pool, call.valid)
    if head.scale_exponent is not None:
        x = (x * jnp.exp2(-head.scale_exponent * jnp.log2(config.d_model))).astype(x.dtype)
    return linear(x, table.T if params.matrix is None else params.matrix, params.bias, wide=True), params  # type: ignore[union-attr]


def pool(x: Float[Array, "*batch T D"], kind: str, valid: Bool[Array, "*batch T"] | None) -> Float[Array, "..."]:
    """One vector of a sequence's tokens: their mean, the first, the last; padding does not count. "none" keeps all."""
    if kind == "none":
        return x
    if valid is None:
        return {"mean": x.mean(-2), "first": x[..., 0, :], "last": x[..., -1, :]}[kind]
    real = jnp.where(valid[..., None], x, 0)
    if kind == "mean":
        return real.sum(-2) / jnp.maximum(valid.sum(-1), 1)[..., None]
    length = valid.shape[-1]
    place = valid.argmax(-1) if kind == "first" else length - 1 - valid[..., ::-1].argmax(-1)
    return jnp.take_along_axis(real, place[..., None, None], axis=-2)[..., 0, :]
