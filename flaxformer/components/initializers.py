"""Initializers: the distribution of initial random weights."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from flaxformer.core.params import Spec, matrix_places
from flaxformer.core.struct import Config, leaf, static

TRUNCATED_AT, TRUNCATED_STD = 2.0, 0.8796256610342398
"""Where N(0, 1) is truncated, at ± this number, and the standard deviation of what remains."""
MOST_STEPS = 100
"""Steps to an orthogonal matrix: enough for a condition number of 10¹⁵."""


class Initializer(Config):
    """Base of the initializers: a standard deviation per weight, and the distribution of its entries."""

    is_abstract: ClassVar[bool] = True

    def std(self, spec: Spec) -> float | Array:
        """Return the standard deviation of a weight."""
        raise NotImplementedError(f"{type(self).__name__} does not define `std`")

    def entries(self, normal: Float[Array, "*shape"], spec: Spec) -> Float[Array, "*shape"]:
        """Return the weight divided by its standard deviation.

        Args:
          normal: independent numbers of N(0, 1), as many as the weight has.
          spec: of the weight.
        """
        return normal

    @property
    def is_normal(self) -> bool:
        """True if `entries` gives the normal numbers themselves."""
        return type(self).entries is Initializer.entries

    reads_fans: ClassVar[bool] = True
    """True if a weight needs a fan-in."""


class Scaled(Initializer):
    """Base of the initializers of independent entries.

    distribution: of the entries; "truncated" is a normal distribution without what is beyond 2 σ, scaled so that the
        entries have the standard deviation of the initializer. Where another library truncates N(0, σ²), that is
        0.8796 σ.
    """

    is_abstract: ClassVar[bool] = True
    distribution: str = static("normal", choices=("normal", "truncated", "uniform"), omit_default=True)

    def entries(self, normal: Float[Array, "*shape"], spec: Spec) -> Float[Array, "*shape"]:
        """Return numbers of the distribution with the same quantiles."""
        if self.distribution == "normal":
            return normal
        share = ndtr(normal)  # uniform between 0 and 1
        if self.distribution == "uniform":
            return 3**0.5 * (2 * share - 1)
        least = ndtr(jnp.asarray(-TRUNCATED_AT, normal.dtype))
        return ndtri(least + share * (1 - 2 * least)) / TRUNCATED_STD

    @property
    def is_normal(self) -> bool:
        return self.distribution == "normal" and type(self).entries is Scaled.entries


class Xavier(Scaled):
    """Initial variance gain² · 2 / (fan-in + fan-out) (Glorot & Bengio 2010).

    The matrix of a head with fewer outputs than inputs has variance gain² / fan-in, so that logits begin with variance
    gain².
    """

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        fan_out = max(spec.fan_in, spec.fan_out) if spec.init == "output" else spec.fan_out
        return self.gain * (2 / (spec.fan_in + fan_out)) ** 0.5


class LeCun(Scaled):
    """Initial variance gain² / fan-in (LeCun et al. 1998)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        return self.gain * spec.fan_in**-0.5


class Normal(Scaled):
    """The same initial standard deviation for every matrix (GPT-2: 0.02)."""

    deviation: float = leaf(0.02, at_least=0)
    reads_fans: ClassVar[bool] = False

    def std(self, spec: Spec) -> float | Array:
        return self.deviation


class Orthogonal(Initializer):
    """gain · Q with orthonormal columns, or rows if there are fewer of them, drawn uniformly (Saxe et al. 2014).

    A map into or out of heads is one matrix, all heads together.
    """

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        return self.gain * max(spec.fan_in, spec.fan_out) ** -0.5

    def entries(self, normal: Float[Array, "*shape"], spec: Spec) -> Float[Array, "*shape"]:
        """Return Q · √max(fan-in, fan-out), with the orthogonal factor Q of the polar decomposition of the numbers."""
        outer, inner, result = matrix_places(spec.axes, spec.summed, spec.stacked)
        order = (*outer, *inner, *result)
        heads = normal.transpose(order)
        matrix = heads.reshape(*heads.shape[: len(outer)], spec.fan_in, spec.fan_out)
        is_wide = spec.fan_in < spec.fan_out
        q = polar_factor(jnp.swapaxes(matrix, -1, -2) if is_wide else matrix)
        q = (jnp.swapaxes(q, -1, -2) if is_wide else q) * max(spec.fan_in, spec.fan_out) ** 0.5
        return q.reshape(heads.shape).transpose(sorted(range(len(order)), key=order.__getitem__))


def polar_factor(z: Float[Array, "*stacked n_in n_out"]) -> Float[Array, "*stacked n_in n_out"]:
    """Return Z (Zᵀ Z)^(−½), with orthonormal columns; no more columns than rows.

    Newton and Schulz's X ← X (3 − Xᵀ X) / 2 (Higham 2008, section 8.3), in products of matrices alone: LAPACK's QR of
    many matrices in one program can stop a CPU of few cores.
    """
    product = functools.partial(jnp.einsum, precision="highest")
    identity = jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=z.dtype), (*z.shape[:-2], z.shape[-1], z.shape[-1]))

    def error(x: Array) -> Array:
        return product("...mi,...mj->...ij", x, x) - identity

    def step(x: Array) -> Array:
        return x - product("...mi,...ij->...mj", x, error(x)) / 2

    def is_far(loop: tuple[Array, Array]) -> Array:
        return (abs(error(loop[0])).max() > 1e-2) & (loop[1] < MOST_STEPS)

    x = z / jnp.linalg.norm(z, axis=(-2, -1), keepdims=True)
    x, _ = jax.lax.while_loop(is_far, lambda loop: (step(loop[0]), loop[1] + 1), (x, jnp.int32(0)))
    return step(step(step(x)))  # each squares the error
