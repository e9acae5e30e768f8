"""A norm's weights, and what it computes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.config.base import SequenceModel
from flaxformer.model.call import Call
from flaxformer.nn.norms import batch_norm, batch_statistics, running_statistics
from flaxformer.params import Parameters, param, subtree


class Running(Parameters):
    """A BatchNorm's running statistics: weights that the forward pass moves, and no gradient."""

    mean: Float[Array, "d_model"] = param(init="zeros", decay=False, trained=False)
    variance: Float[Array, "d_model"] = param(init="ones", decay=False, trained=False)


class Norm(Parameters):
    """The affine part of one normalisation, and a BatchNorm's running statistics; None where it has none."""

    gain: Float[Array, "d_model"] | None = param(init="ones", decay=False, when="norm_kind.has_gain")
    bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="norm_kind.has_bias")
    running: Running | None = subtree(when="norm_kind.running")


class HeadNorm(Parameters):
    """The affine part of the norm of queries or keys, which all heads share."""

    gain: Float[Array, "d_head"] | None = param(init="ones", decay=False, when="has_query_key_gain")
    bias: Float[Array, "d_head"] | None = param(init="zeros", decay=False, when="has_query_key_bias")


def normalise(
    norm: Norm | None, config: SequenceModel, x: Float[Array, "*batch T D"], call: Call
) -> tuple[Float[Array, "*batch T D"], Norm | None]:
    """The config's kind of norm, and the norm after it: in training, a BatchNorm's running statistics have moved.

    An empty slot (None) is the identity.
    """
    if norm is None:
        return x, None
    kind, running = config.norm_kind, norm.running
    if call.valid is not None and (kind.running or kind.leaks):
        # Where tokens share statistics, a NaN in the padding would reach the gradients of all: 0 · NaN is NaN.
        x = jnp.where(call.valid[..., None], x, 0)
    if running is None:
        return kind.apply(x, norm.gain, norm.bias, call.valid), norm
    if not call.training:
        return batch_norm(x, running.mean, running.variance, norm.gain, norm.bias, epsilon=kind.epsilon), norm
    statistics = batch_statistics(x, call.valid)
    y = batch_norm(x, *statistics[:2], norm.gain, norm.bias, epsilon=kind.epsilon)
    mean, variance = running_statistics((running.mean, running.variance), statistics, kind.momentum)
    return y, norm.replace(running=Running(mean=mean, variance=variance))
