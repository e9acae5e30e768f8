"""Initializers: the standard deviation of initial random matrices."""

from typing import ClassVar

from jaxtyping import Array

from flaxformer.core.params import Spec
from flaxformer.core.struct import Config, leaf


class Initializer(Config):
    """Base of the initializers."""

    is_abstract: ClassVar[bool] = True

    def std(self, spec: Spec) -> float | Array:
        """Return the standard deviation of a matrix."""
        raise NotImplementedError(f"{type(self).__name__} does not define `std`")


class Xavier(Initializer):
    """Initial variance gain² · 2 / (fan-in + fan-out) (Glorot & Bengio 2010).

    The matrix of a head with fewer outputs than inputs has variance gain² / fan-in, so that logits begin with variance
    gain².
    """

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        fan_out = max(spec.fan_in, spec.fan_out) if spec.init == "output" else spec.fan_out
        return self.gain * (2 / (spec.fan_in + fan_out)) ** 0.5


class LeCun(Initializer):
    """Initial variance gain² / fan-in (LeCun et al. 1998)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        return self.gain * spec.fan_in**-0.5


class Normal(Initializer):
    """The same initial standard deviation for every matrix (GPT-2: 0.02)."""

    deviation: float = leaf(0.02, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        return self.deviation
