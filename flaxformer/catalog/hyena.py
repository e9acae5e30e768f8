"""Hyena: gates and convolutions as long as the sequence, whose kernels a small network gives for each distance.

    z = v, then z = x_n ⊙ (h_n ∗ z) for n = 1, …, order; h(t) = e^(−α t) network(t)

Family: token mixers
Source: Poli et al. 2023, "Hyena Hierarchy: Towards Larger Convolutional Language Models", arXiv:2302.10866. The
settings of the kernels are ours.
Claim: the quality of a Transformer (WikiText-103, The Pile) with 20% less compute for training at length 2K.
Cost: (order + 2) d_model² weights and the networks; convolutions by FFT; decoding reads the whole prefix at every step.
Verified: a loop over tokens in NumPy in float64, and its finite differences.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Context, Parameters, TokenMixer, leaf, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.linear_recurrence import short_convolution


class Hyena(TokenMixer):
    """y = z W_O + b_O, with z = v, then z = x_n ⊙ (h_n ∗ z + d_n ⊙ z) for each n up to the order.

    v and x_1, … are short convolutions of u W + b. With t from 0 to 1 at `length`, the network reads t and the cosine
    and sine of 2π k t for each band k, and has two hidden layers with the activation sin(frequency · x). The rates α
    differ over the features, so that e^(−α t) is `target` at t = slow, …, fast. Padding is left out of the sequence.
    """

    class Weights(Parameters):
        """Matrix and kernel of v, x_1, …; the network; the skips d; W_O."""

        input: Float[Array, "d_model maps d_model"] = param(fan_in="d_model", init="branch")
        input_bias: Float[Array, "maps d_model"] = param(init="zeros", decay=False)
        kernel: Float[Array, "width maps d_model"] = param(std=0.33)
        first: Float[Array, "d_time hidden"] = param(fan_in="d_time")
        first_bias: Float[Array, "hidden"] = param(init="zeros", decay=False)
        second: Float[Array, "hidden hidden"] = param(fan_in="hidden")
        second_bias: Float[Array, "hidden"] = param(init="zeros", decay=False)
        last: Float[Array, "hidden order d_model"] = param(fan_in="hidden")
        skip: Float[Array, "order d_model"] = param(std=1.0, decay=False)
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model", init="branch")
        out_bias: Float[Array, "d_model"] = param(init="zeros", decay=False)

    reads_mask: ClassVar[bool] = False
    order: int = static(2, at_least=1)
    width: int = static(3, at_least=2)
    hidden: int = static(64, at_least=1)
    bands: int = static(16, at_least=1)
    length: int = static(1024, at_least=2)
    frequency: float = leaf(10.0, above=0)
    slow: float = leaf(1.5, above=0)
    fast: float = leaf(0.3, above=0)
    target: float = leaf(0.01, above=0)

    @property
    def max_length(self) -> int:
        """Longest sequence."""
        return self.length

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"maps": self.order + 1, "d_time": 2 * self.bands + 1}

    def kernels(self, weights: Weights, length: int) -> Float[Array, "T order d_model"]:
        """Return h(t) of each distance, order and feature."""
        t = jnp.arange(length, dtype=jnp.promote_types(weights.skip.dtype, jnp.float32)) / (self.length - 1)
        angle = 2 * jnp.pi * jnp.arange(1, self.bands + 1) * t[:, None]
        x = jnp.concatenate([t[:, None], jnp.cos(angle), jnp.sin(angle)], axis=-1)
        for matrix, bias in ((weights.first, weights.first_bias), (weights.second, weights.second_bias)):
            x = jnp.sin(self.frequency * linear(x, matrix, bias, wide=True))
        places = jnp.linspace(self.slow, self.fast, weights.skip.shape[-1])
        rate = -jnp.log(self.target) / places
        return linear(x, weights.last, wide=True) * jnp.exp(-rate * t[:, None])[:, None]

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        order = jnp.argsort(~valid, axis=-1, stable=True)  # padding last
        u = jnp.take_along_axis(jnp.where(valid[..., None], x, 0), order[..., None], axis=-2)
        u = linear(u, weights.input, weights.input_bias, wide=True)
        start = jnp.zeros((*x.shape[:-2], self.width - 1, *u.shape[-2:]), u.dtype)
        u, _ = short_convolution(u, weights.kernel, start)
        length, h = x.shape[-2], self.kernels(weights, x.shape[-2])
        z = u[..., 0, :]
        for n in range(self.order):
            spectrum = jnp.fft.rfft(z, 2 * length, axis=-2) * jnp.fft.rfft(h[:, n], 2 * length, axis=-2)
            z = u[..., n + 1, :] * (jnp.fft.irfft(spectrum, 2 * length, axis=-2)[..., :length, :] + weights.skip[n] * z)
        z = jnp.take_along_axis(z, jnp.argsort(order, axis=-1)[..., None], axis=-2)
        return linear(z.astype(x.dtype), weights.out, weights.out_bias)


VARIANTS: Mapping[str, Mapping[str, object]] = {"Hyena": {"model.attention": Hyena}}
