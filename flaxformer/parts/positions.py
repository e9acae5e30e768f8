"""Position schemes: how a model knows the order of its tokens. Each acts in one place."""

from collections.abc import Iterator
from typing import Any, ClassVar

from jaxtyping import Array, Bool, Float, Int

from flaxformer.component import Component
from flaxformer.nn.positions import alibi, relative, relative_buckets, rotate, sinusoidal
from flaxformer.params import Parameters, param
from flaxformer.struct import leaf, static


class Positions(Component):
    """Base of the schemes: nothing added, nothing rotated, no bias. All layers share the scheme's weights."""

    is_abstract: ClassVar[bool] = True
    max_length: ClassVar[int | None] = None
    """The longest sequence, where there is one."""
    width: ClassVar[int] = 0
    """Number of entries of an embedding that are the position's own."""

    def encode(
        self, weights: Any, positions: Int[Array, "*batch T"], d_model: int
    ) -> Float[Array, "*batch T D"] | None:
        """Return what is added to the embeddings."""
        return None

    def rotate(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        """The queries or the keys, with their positions in them."""
        return x

    def bias(
        self,
        weights: Any,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        bidirectional: bool,
    ) -> Float[Array, "*batch N T S"] | None:
        """Return what is added to the logits of self-attention; `bidirectional` where a query may see later keys."""
        return None

    def query_bias(
        self,
        weights: Any,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S N H"],
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        mask: Bool[Array, "*batch N T S"],
    ) -> Float[Array, "*batch N T S"] | None:
        """Return what is added to the logits in each layer, where it depends on the query.

        `key` has a row per query head; `mask` is False where a query may not read a key, be it later, padding, outside
        the window or an entry of a cache that is not written yet.
        """
        return None

    @property
    def reads_query(self) -> bool:
        """True if the scheme has a `query_bias` of its own."""
        return type(self).query_bias is not Positions.query_bias


class NoPositions(Positions):
    """Order enters through the causal mask alone, or not at all."""


class Sinusoidal(Positions):
    """Sines and cosines of geometric wavelengths from 2π to base · 2π, added; interleaved, or split in two halves."""

    base: float = leaf(10_000.0, above=0)
    layout: str = static("interleaved", choices=("interleaved", "split"))

    def encode(self, weights: Any, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"]:
        return sinusoidal(positions, d_model, base=self.base, interleaved=self.layout == "interleaved")


class LearnedPositions(Positions):
    """One learned vector per position, up to max_length, added; std is that of its initial values."""

    class Weights(Parameters):
        """A row per position."""

        table: Float[Array, "max_length d_model"] = param(std="std", decay=False)

    max_length: int = static(at_least=1)  # type: ignore[misc]
    std: float = leaf(0.02, at_least=0)

    def encode(self, weights: Any, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"]:
        return weights.table[positions]


class ConcatenatedIndex(Positions):
    """The index itself, times scale, in place of an embedding's first number: (n, x_n), unbounded.

    Source: "What Happens in A Transformer Layer", second appendix.
    """

    scale: float = leaf(1.0)
    width: ClassVar[int] = 1


class Rotary(Positions):
    """Queries and keys rotated by angles n / base^(2i/H); pairs are split halves (Llama) or neighbours (Su et al.)."""

    base: float = leaf(10_000.0, above=0)
    layout: str = static("split", choices=("interleaved", "split"))

    def rotate(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        return rotate(x, positions, base=self.base, interleaved=self.layout == "interleaved")


class Alibi(Positions):
    """−m_h · |i − j| added to the logits of head h, m_h geometric in h (Press et al. 2022)."""

    def bias(
        self, weights: Any, query_positions: Array, key_positions: Array, heads: int, bidirectional: bool
    ) -> Float[Array, "*batch N T S"]:
        return alibi(query_positions, key_positions, heads)


class RelativeBuckets(Positions):
    """A learned bias for each head and each bucket of distances, shared by all layers (Raffel et al. 2020)."""

    class Weights(Parameters):
        """A row per bucket."""

        table: Float[Array, "buckets heads"] = param(std="std", decay=False)

    buckets: int = static(32, at_least=4)
    max_distance: int = static(128, at_least=2)
    std: float = leaf(0.02, at_least=0)

    def problems(self) -> Iterator[str]:
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance is {self.max_distance}; expected above half the buckets, {self.buckets // 2}"

    def bias(
        self, weights: Any, query_positions: Array, key_positions: Array, heads: int, bidirectional: bool
    ) -> Float[Array, "*batch N T S"]:
        numbers = relative_buckets(
            relative(query_positions, key_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=bidirectional,
        )
        by_head = weights.table[numbers]  # [*batch, T, S, N]
        return by_head.transpose(*range(numbers.ndim - 2), -1, -3, -2)
