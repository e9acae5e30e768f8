"""How a branch's update meets the stream: stream(skip · x + gain · post(branch(pre(x))))."""

from typing import ClassVar

from flaxformer.struct import Config, leaf, static


class Residual(Config):
    """x + f(x); base of the other ways."""

    gain: ClassVar[str] = "none"
    """Whether the update has a learned gain: none, a scalar, or a vector."""
    initial: ClassVar[float] = 1.0

    has_scalar = property(lambda self: self.gain == "scalar")
    has_vector = property(lambda self: self.gain == "vector")

    def skip(self, layers: int, reads_memory: bool) -> float | None:
        """What multiplies x; None is 1."""
        return None

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        """What multiplies the initial standard deviation of a branch's value, output and feed-forward matrices."""
        return 1.0


class ReZero(Residual):
    """x + g · f(x) with a learned number g a branch, at first 0 (Bachlechner et al. 2021)."""

    initial: float = leaf(0.0)  # type: ignore[misc]
    gain: ClassVar[str] = "scalar"


class LayerScale(Residual):
    """x + g ⊙ f(x) with a learned vector g a branch, at first small (Touvron et al. 2021)."""

    initial: float = leaf(0.1)  # type: ignore[misc]
    gain: ClassVar[str] = "vector"


class DeepNorm(Residual):
    """α x + f(x), with the matrices of f drawn β times as large; for post-norm (Wang et al. 2022, table 1).

    One stack of L layers: α = (2L)^¼, β = (8L)^−¼. A decoder of M layers that reads memory: α = (3M)^¼,
    β = (12M)^−¼; its encoder of N layers, told M by decoder_layers: α = 0.81 (N⁴M)^1/16, β = 0.87 (N⁴M)^−1/16.
    """

    decoder_layers: int | None = static(None, at_least=1)

    def skip(self, layers: int, reads_memory: bool) -> float:
        if self.decoder_layers is not None:
            return 0.81 * (layers**4 * self.decoder_layers) ** (1 / 16)
        return ((3 if reads_memory else 2) * max(layers, 1)) ** 0.25

    def branch_gain(self, layers: int, reads_memory: bool) -> float:
        if self.decoder_layers is not None:
            return 0.87 * (layers**4 * self.decoder_layers) ** (-1 / 16)
        return ((12 if reads_memory else 8) * max(layers, 1)) ** -0.25
