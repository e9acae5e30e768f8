"""How a model knows the order of its tokens: each scheme acts in one place, and is nothing in the others."""

from typing import ClassVar

from jaxtyping import Array, Float, Int

from flaxformer.nn.positions import alibi, relative, relative_buckets, rotate, sinusoidal
from flaxformer.struct import Config, leaf, static


class Positions(Config):
    """Base of the schemes: nothing added, nothing turned, no bias."""

    max_length: ClassVar[int | None] = None
    """The longest sequence, where there is one."""
    learned: ClassVar[bool] = False
    has_buckets: ClassVar[bool] = False
    width: ClassVar[int] = 0
    """How many of the numbers of an embedding are the position's own."""

    def encode(self, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"] | None:
        """What is added to the embeddings."""
        return None

    def turn(self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]) -> Float[Array, "*batch T N H"]:
        """What becomes of queries and keys."""
        return x

    def bias(
        self,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        table: Float[Array, "buckets N"] | None,
        both_ways: bool,
    ) -> Float[Array, "*batch N T S"] | None:
        """What is added to the logits of self-attention; `both_ways` where a query may see later keys."""
        return None


class NoPositions(Positions):
    """Order enters through the causal mask alone, or not at all."""


class Sinusoidal(Positions):
    """Sines and cosines of geometric wavelengths from 2π to base · 2π, added; interleaved, or split in two halves."""

    base: float = leaf(10_000.0, above=0)
    layout: str = static("interleaved", choices=("interleaved", "split"))

    def encode(self, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"]:
        return sinusoidal(positions, d_model, base=self.base, interleaved=self.layout == "interleaved")


class LearnedPositions(Positions):
    """One learned vector a position, up to max_length, added; std is that of its initial values."""

    max_length: int = static(at_least=1)  # type: ignore[misc]
    std: float = leaf(0.02, at_least=0)
    learned: ClassVar[bool] = True


class ConcatenatedIndex(Positions):
    """The index itself, times scale, in place of an embedding's first number: (n, x_n), unbounded.

    Source: "What Happens in A Transformer Layer", second appendix.
    """

    scale: float = leaf(1.0)
    width: ClassVar[int] = 1


class Rotary(Positions):
    """Queries and keys turned by angles n / base^(2i/H); pairs are split halves (Llama) or neighbours (Su et al.)."""

    base: float = leaf(10_000.0, above=0)
    layout: str = static("split", choices=("interleaved", "split"))

    def turn(self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]) -> Float[Array, "*batch T N H"]:
        return rotate(x, positions, base=self.base, interleaved=self.layout == "interleaved")


class Alibi(Positions):
    """−m_h · |i − j| added to the logits of head h, m_h geometric in h (Press et al. 2022)."""

    def bias(
        self, query_positions: Array, key_positions: Array, heads: int, table: Array | None, both_ways: bool
    ) -> Float[Array, "*batch N T S"]:
        return alibi(query_positions, key_positions, heads)


class RelativeBuckets(Positions):
    """A learned bias for each head and each bucket of distances, shared by all layers (Raffel et al. 2020)."""

    buckets: int = static(32, at_least=4)
    max_distance: int = static(128, at_least=2)
    std: float = leaf(0.02, at_least=0)
    has_buckets: ClassVar[bool] = True

    def problems(self):  # type: ignore[no-untyped-def]
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance is {self.max_distance}; expected above half the buckets, {self.buckets // 2}"

    def bias(
        self, query_positions: Array, key_positions: Array, heads: int, table: Array | None, both_ways: bool
    ) -> Float[Array, "*batch N T S"]:
        numbers = relative_buckets(
            relative(query_positions, key_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=both_ways,
        )
        by_head = table[numbers]  # type: ignore[index]  # [*batch, T, S, N]
        return by_head.transpose(*range(numbers.ndim - 2), -1, -3, -2)
