"""Scalings of rotary positions for sequences longer than those of training: other frequencies of the pairs of a head.

θ_i = base^(−2i/H) is the angle per position of pair i, 2π/θ_i its wavelength, and s the factor by which sequences are
longer.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.core.struct import Config, leaf, static
from flaxformer.nn.positions import rotary_frequencies


class RotaryScaling(Config):
    """Base of the scalings."""

    is_abstract: ClassVar[bool] = True

    def frequencies(self, width: int, base: float | Array) -> Float[Array, "half"]:
        """Return the angle per position of each pair of a head of this width."""
        raise NotImplementedError(f"{type(self).__name__} does not define `frequencies`")

    def magnitude(self) -> float | Array:
        """Return the factor on rotated queries and keys; the logits of the rotated entries have its square."""
        return 1.0


class LinearScaling(RotaryScaling):
    """Position interpolation, θ_i / s (Chen et al. 2023, arXiv:2306.15595)."""

    factor: float = leaf(at_least=1)

    def frequencies(self, width: int, base: float | Array) -> Float[Array, "half"]:
        return rotary_frequencies(width, base) / self.factor


class NTKScaling(RotaryScaling):
    """NTK-aware interpolation: the base times s^(H/(H−2)), so that the lowest frequency is θ / s and the highest stays.

    Source: Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.1.
    """

    factor: float = leaf(at_least=1)

    def frequencies(self, width: int, base: float | Array) -> Float[Array, "half"]:
        exponent = width / (width - 2) if width > 2 else 0.0  # a single pair is the highest frequency
        return rotary_frequencies(width, base * self.factor**exponent)


class YaRN(RotaryScaling):
    """Interpolation by parts: pairs of more than `fast` turns in a training sequence keep θ_i, others have θ_i / s.

    Between `fast` and `slow` turns, the two are mixed, linearly in the number of the pair, as in the authors' code. The
    rotated queries and keys are multiplied by `attention_factor`; None for `magnitude_slope` · ln s + 1.

    original_length: length of the sequences of training.
    truncate: round the numbers of the first and the last mixed pair down and up, as in the authors' code; False keeps
      their fractions (gpt-oss).
    Source: Peng et al. 2023, arXiv:2309.00071, definitions 2 and 3, with equation 22.
    """

    factor: float = leaf(at_least=1)
    original_length: float = leaf(at_least=1)
    fast: float = static(32.0, above=0)
    slow: float = static(1.0, above=0)
    magnitude_slope: float = leaf(0.1)
    attention_factor: float | None = leaf(None, above=0, omit_default=True)
    truncate: bool = static(True, omit_default=True)

    def problems(self) -> Iterator[str]:
        if self.fast <= self.slow:
            yield f"YaRN.fast is {self.fast}; expected more than slow, {self.slow}"

    def frequencies(self, width: int, base: float | Array) -> Float[Array, "half"]:
        original = rotary_frequencies(width, base)

        def pair_of(turns: float | Array) -> Array:
            """The number of the pair, as a fraction, that turns so often."""
            return width * jnp.log(self.original_length / (turns * 2 * math.pi)) / (2 * jnp.log(base))

        first, last = pair_of(self.fast), pair_of(self.slow)
        first, last = (jnp.floor(first), jnp.ceil(last)) if self.truncate else (first, last)
        first, last = jnp.maximum(first, 0), jnp.minimum(last, width - 1)
        share = jnp.clip((jnp.arange(width // 2) - first) / jnp.maximum(last - first, 1e-3), 0, 1)
        return original * (1 - share) + original / self.factor * share

    def magnitude(self) -> float | Array:
        if self.attention_factor is not None:
            return self.attention_factor
        return self.magnitude_slope * jnp.log(jnp.asarray(self.factor)) + 1


class Llama3Scaling(RotaryScaling):
    """Interpolation by wavelength: below `original_length` / high, θ_i; above `original_length` / low, θ_i / s.

    Between them, the two are mixed, linearly in the number of turns in `original_length` tokens.

    Source: Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783), as in its released code.
    """

    factor: float = leaf(8.0, at_least=1)
    low: float = static(1.0, above=0)
    high: float = static(4.0, above=0)
    original_length: float = leaf(8192.0, at_least=1)

    def problems(self) -> Iterator[str]:
        if self.high <= self.low:
            yield f"Llama3Scaling.high is {self.high}; expected more than low, {self.low}"

    def frequencies(self, width: int, base: float | Array) -> Float[Array, "half"]:
        original = rotary_frequencies(width, base)
        turns = self.original_length * original / (2 * math.pi)
        share = jnp.clip((turns - self.low) / (self.high - self.low), 0, 1)  # of the original frequency
        return original / self.factor * (1 - share) + original * share
