"""The standard deviation that random matrices start with."""

from jaxtyping import Array

from flaxformer.params import Spec
from flaxformer.struct import Config, leaf


class Xavier(Config):
    """Initial matrices of variance gain² · 2 / (fan-in + fan-out) (Glorot & Bengio 2010)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.gain * (2 / (spec.fan_in + spec.fan_out)) ** 0.5


class LeCun(Config):
    """Initial matrices of variance gain² / fan-in (LeCun et al. 1998)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.gain * spec.fan_in**-0.5


class Normal(Config):
    """Initial matrices of one standard deviation whatever their shape (GPT-2: 0.02)."""

    deviation: float = leaf(0.02, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.deviation
