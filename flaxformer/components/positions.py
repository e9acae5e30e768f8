"""Position schemes: the ways in which a model receives the order of its tokens."""

from collections.abc import Iterator
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.components.component import Component, Context, OwnWeights
from flaxformer.components.rotary_scaling import RotaryScaling
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, part, static
from flaxformer.nn.positions import alibi, relative_buckets, relative_positions, rotate, sinusoidal


class Positions(Component):
    """Base of the position schemes; all layers share the weights of the scheme."""

    is_abstract: ClassVar[bool] = True
    max_length: ClassVar[int | None] = None
    """Longest sequence that the scheme can encode; None for no limit."""
    width: ClassVar[int] = 0
    """Number of leading entries of each embedding that hold the position."""

    def encode(
        self, weights: OwnWeights, positions: Int[Array, "*batch T"], d_model: int
    ) -> Float[Array, "*batch T D"] | None:
        """Return the vectors to add to the embeddings; None for none."""
        return None

    def rotate(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        """Rotate queries, and by default keys too, according to their positions."""
        return x

    def rotate_key(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        """Rotate keys, where they are not rotated as queries are."""
        return self.rotate(x, positions)

    def bias(
        self,
        weights: OwnWeights,
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        heads: int,
        bidirectional: bool,
    ) -> Float[Array, "*batch N T S"] | None:
        """Return the bias of the logits of self-attention, which all layers share; None for none.

        Args:
          heads: number of query heads N.
          bidirectional: True if a query may attend to later keys.
        """
        return None

    def query_bias(
        self,
        weights: OwnWeights,
        query: Float[Array, "*batch T N H"],
        key: Float[Array, "*batch S N H"],
        query_positions: Int[Array, "*batch T"],
        key_positions: Int[Array, "*batch S"],
        mask: Bool[Array, "*batch N T S"],
    ) -> Float[Array, "*batch N T S"] | None:
        """Return the bias of the logits in a layer, if it depends on the queries; None for none.

        Args:
          key: the keys, repeated to one per query head.
          mask: False where a query may not attend to a key, such as a later one, padding, one outside the window, or
            an unused entry of a cache.
        """
        return None

    @property
    def reads_query(self) -> bool:
        """True if the scheme overrides `query_bias`."""
        return type(self).query_bias is not Positions.query_bias


class NoPositions(Positions):
    """No encoding: only a causal mask tells the order of the tokens."""


class Sinusoidal(Positions):
    """Added sines and cosines with geometric wavelengths from 2π to base · 2π (Vaswani et al. 2017, section 3.5).

    layout: "interleaved" sines and cosines, or "split" into two halves.
    """

    base: float = leaf(10_000.0, above=0)
    layout: str = static("interleaved", choices=("interleaved", "split"))

    def encode(
        self, weights: Parameters | None, positions: Int[Array, "*batch T"], d_model: int
    ) -> Float[Array, "*batch T D"]:
        return sinusoidal(positions, d_model, base=self.base, interleaved=self.layout == "interleaved")


class LearnedPositions(Positions):
    """One learned vector per position, added.

    max_length: number of positions.
    std: standard deviation of the initial values.
    """

    class Weights(Parameters):
        """Table with one row per position."""

        table: Float[Array, "max_length d_model"] = param(std="std", decay=False)

    max_length: int = static(at_least=1)  # type: ignore[misc]
    std: float = leaf(0.02, at_least=0)

    def encode(self, weights: Weights, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"]:
        return weights.table[positions]


class ConcatenatedIndex(Positions):
    """Position n times `scale`, as the first entry of each embedding: (scale · n, x_n).

    Source: "What Happens in A Transformer Layer", second appendix.
    """

    scale: float = leaf(1.0)
    width: ClassVar[int] = 1


class Rotary(Positions):
    """Rotation of queries and keys by the angles n / base^(2i/H) (Su et al. 2021).

    layout: pairs are the two halves of a head ("split", as in Llama) or neighbours ("interleaved", as in Su et al.).
    rotated_width: number of entries of each head that are rotated, the first ones, as in GPT-J and GPT-NeoX; H is this
      width then. None for all.
    scaling: other angles for longer sequences, such as YaRN(factor=4, original_length=4096); None for none.
    """

    base: float = leaf(10_000.0, above=0)
    layout: str = static("split", choices=("interleaved", "split"))
    rotated_width: int | None = static(None, at_least=2, omit_default=True)
    scaling: RotaryScaling | None = part(None, omit_default=True)

    def problems(self) -> Iterator[str]:
        if self.rotated_width is not None and self.rotated_width % 2:
            yield f"rotated_width is {self.rotated_width}; expected an even number, since Rotary rotates pairs"

    def rotate(
        self, x: Float[Array, "*batch T N H"], positions: Int[Array, "*#batch T"]
    ) -> Float[Array, "*batch T N H"]:
        turned, unrotated = jnp.split(x, [self.rotated_width or x.shape[-1]], axis=-1)
        interleaved, scaling = self.layout == "interleaved", self.scaling
        frequencies = None if scaling is None else scaling.frequencies(turned.shape[-1], self.base)
        turned = rotate(turned, positions, base=self.base, interleaved=interleaved, frequencies=frequencies)
        if scaling is not None:
            turned = (turned * scaling.magnitude()).astype(x.dtype)
        return turned if not unrotated.shape[-1] else jnp.concatenate([turned, unrotated], axis=-1)


class Alibi(Positions):
    """Bias −m_h · |i − j| of the logits of head h, with m_h geometric in h (Press et al. 2022)."""

    def bias(
        self, weights: Parameters | None, query_positions: Array, key_positions: Array, heads: int, bidirectional: bool
    ) -> Float[Array, "*batch N T S"]:
        return alibi(query_positions, key_positions, heads)


class RelativeBuckets(Positions):
    """Learned bias per head and bucket of distances, shared by all layers (Raffel et al. 2020, section 2.1).

    buckets, max_distance: see `nn.positions.relative_buckets`.
    std: standard deviation of the initial values.
    """

    class Weights(Parameters):
        """Table with one row per bucket."""

        table: Float[Array, "buckets heads"] = param(std="std", decay=False)

    buckets: int = static(32, at_least=4)
    max_distance: int = static(128, at_least=2)
    std: float = leaf(0.02, at_least=0)

    def problems(self) -> Iterator[str]:
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance is {self.max_distance}; expected more than half the buckets, {self.buckets // 2}"

    def bias(
        self, weights: Weights, query_positions: Array, key_positions: Array, heads: int, bidirectional: bool
    ) -> Float[Array, "*batch N T S"]:
        numbers = relative_buckets(
            relative_positions(query_positions, key_positions),
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=bidirectional,
        )
        by_head = weights.table[numbers]  # [*batch, T, S, N]
        return by_head.transpose(*range(numbers.ndim - 2), -1, -3, -2)


def logit_bias(
    context: Context,
    query: Float[Array, "*batch T N H"],
    key: Float[Array, "*batch S K H"],
    allowed: Bool[Array, "..."],
) -> Float[Array, "*batch N T S"] | None:
    """Return the bias of the logits of a layer, with the part of the position scheme that depends on the queries.

    Args:
      allowed: the mask, [*batch, N, T, S].
    """
    scheme = context.scheme
    if scheme is None or not scheme.reads_query:
        return context.bias
    per_query_head = jnp.repeat(key, query.shape[-2] // key.shape[-2], axis=-2)
    positions = (context.query_positions, context.key_positions)
    bias = scheme.query_bias(context.scheme_weights, query, per_query_head, *positions, allowed)
    if context.bias is None or bias is None:
        return context.bias if bias is None else bias
    return context.bias + bias
