"""Inputs: the maps from tokens, vectors or images to the vectors of the residual stream."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.components.component import Component, OwnWeights
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, static
from flaxformer.nn.linear import linear, lookup


class Inputs(Component):
    """Base of the kinds of input."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """No weights; a subclass with an embedding table calls it `tokens`."""

    reads: ClassVar[str] = "vectors"
    """Kind of the inputs: "tokens", "vectors" or "images"."""
    has_table: ClassVar[bool] = False
    """True if there is an embedding table, which a tied head can share."""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return the shape of one input vector or image, given the sizes of the model; None for any."""
        return None

    @property
    def count(self) -> int:
        """Number of tokens per image."""
        raise NotImplementedError(f"{type(self).__name__} does not define `count`")

    def for_tied_head(self, d_model: int) -> "Inputs":
        """Return a copy with the default scales for a table that a tied head shares."""
        return self

    def apply(
        self,
        weights: OwnWeights,
        inputs: Array,
        token_types: Int[Array, "*batch T"] | None,
        table: Float[Array, "V D"] | None,
        sizes: Mapping[str, int],
    ) -> Float[Array, "*batch T d_embedding"]:
        """Return the vectors, without positions.

        Args:
          token_types: type of each token, for inputs that have types.
          table: embedding table of the decoder, for an encoder that shares it.
          sizes: sizes of the model, by axis.

        Raises:
          ValueError: inputs of the wrong type, rank or width.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")


class Tokens(Inputs):
    """Embedding of token ids, x = D^scale_exponent · (E[token] + S[type]), with tables E and S.

    lookup: by index ("gather"), or as the product of one-hot vectors and the table ("one-hot"), with equal results.
    scale_exponent: ½ for the √D of Vaswani et al. 2017, section 3.4; None for no factor.
    frozen: do not train the table.
    shared: use the table of the decoder, in an encoder.
    token_types: number of token types, such as the segments of BERT; None for no types.
    std: standard deviation of the initial table; None for 1, or for D^−scale_exponent with a tied head.

    With a tied head, and if neither number is given, scale_exponent is ¾. The initial variance of x is then 1, and that
    of the logits 1/√D; only the logit of the input token, whose row is part of x, is larger, up to D^¼. No Hugging Face
    model has this factor: give std for weights that are to be saved in that format.
    """

    class Weights(Parameters):
        """Tables with one row per token and one row per token type."""

        tokens: Float[Array, "vocabulary d_embedding"] | None = param(
            std="initial_std", decay=False, trained="is_trained", when="has_table"
        )
        types: Float[Array, "token_types d_embedding"] | None = param(
            std="initial_std", decay=False, when="token_types"
        )

    reads: ClassVar[str] = "tokens"
    lookup: str = static("gather", choices=("gather", "one-hot"))
    scale_exponent: float | None = leaf(None)
    frozen: bool = static(False)
    shared: bool = static(False)
    token_types: int | None = static(None, at_least=1)
    std: float | None = leaf(None, at_least=0)

    has_table = property(lambda self: not self.shared)
    is_trained = property(lambda self: not self.frozen)
    initial_std = property(lambda self: 1.0 if self.std is None else self.std)

    def for_tied_head(self, d_model: int) -> "Tokens":
        if self.std is not None:
            return self
        exponent = 0.75 if self.scale_exponent is None else self.scale_exponent
        return self.replace(scale_exponent=exponent, std=d_model**-exponent)

    def apply(
        self,
        weights: Weights,
        inputs: Array,
        token_types: Int[Array, "*batch T"] | None,
        table: Float[Array, "V D"] | None,
        sizes: Mapping[str, int],
    ) -> Float[Array, "*batch T d_embedding"]:
        table = weights.tokens if self.has_table else table
        if table is None:
            raise ValueError("inputs.shared is True; expected the decoder's embedding table to be given")
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(f"inputs have dtype {inputs.dtype}; expected integers, since they are token ids")
        if self.lookup == "gather":
            x = lookup(table, inputs)
        else:
            x = jax.nn.one_hot(inputs, table.shape[0], dtype=table.dtype) @ table
        if weights.types is not None:
            types = jnp.zeros_like(inputs) if token_types is None else token_types
            x = (x + weights.types[types]).astype(x.dtype)
        if self.scale_exponent is not None:
            x = (x * jnp.exp2(self.scale_exponent * jnp.log2(sizes["d_model"]))).astype(x.dtype)
        return x


class Projection(Parameters):
    """Matrix and bias of a linear map."""

    matrix: Float[Array, "d_input d_embedding"] = param(fan_in="d_input", role="input")
    matrix_bias: Float[Array, "d_embedding"] = param(init="zeros", decay=False)


class Vectors(Inputs):
    """Linear map of vectors of `width` entries to the width of the model."""

    class Weights(Projection):
        """Matrix and bias."""

    width: int = static(at_least=1)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_input": self.width}

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return (self.width,)

    def apply(
        self, weights: Weights, inputs: Array, token_types: Array | None, table: Array | None, sizes: Mapping[str, int]
    ) -> Float[Array, "*batch T d_embedding"]:
        return linear(_check_width(inputs, self.width), weights.matrix, weights.matrix_bias)


class Embeddings(Inputs):
    """Identity: precomputed vectors of the width of the model."""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return (sizes["d_embedding"],)

    def apply(
        self,
        weights: Parameters,
        inputs: Array,
        token_types: Array | None,
        table: Array | None,
        sizes: Mapping[str, int],
    ) -> Float[Array, "*batch T d_embedding"]:
        return _check_width(inputs, sizes["d_embedding"])


def _check_width(inputs: Array, width: int) -> Array:
    """Return the inputs if their last axis has this width."""
    if inputs.shape[-1] != width:
        raise ValueError(f"inputs have shape {inputs.shape}; expected vectors of width {width} on the last axis")
    return inputs


class Patches(Inputs):
    """Images [height, width, channels], as one vector per square patch of `size` × `size` pixels, row by row.

    class_token: put a learned vector before the patches.
    std: standard deviation of the initial class token.

    Source: Dosovitskiy et al. 2021.
    """

    class Weights(Projection):
        """Matrix and bias that all patches share, and the class token."""

        class_token: Float[Array, "d_embedding"] | None = param(std="std", decay=False, when="class_token")

    reads: ClassVar[str] = "images"
    height: int = static(at_least=1)
    width: int = static(at_least=1)
    size: int = static(at_least=1)
    channels: int = static(1, at_least=1)
    class_token: bool = static(False)
    std: float = leaf(1.0, at_least=0)

    def problems(self) -> Iterator[str]:
        for name in ("height", "width"):
            if getattr(self, name) % self.size:
                yield f"{name} is {getattr(self, name)}; expected a multiple of the patch size {self.size}"

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"d_input": self.size * self.size * self.channels}

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return (self.height, self.width, self.channels)

    @property
    def count(self) -> int:
        return (self.height // self.size) * (self.width // self.size) + self.class_token

    def apply(
        self, weights: Weights, inputs: Array, token_types: Array | None, table: Array | None, sizes: Mapping[str, int]
    ) -> Float[Array, "*batch T d_embedding"]:
        x = linear(cut_patches(inputs, self), weights.matrix, weights.matrix_bias)
        if weights.class_token is None:
            return x
        first = jnp.broadcast_to(weights.class_token, (*x.shape[:-2], 1, x.shape[-1]))
        return jnp.concatenate([first.astype(x.dtype), x], axis=-2)


def cut_patches(images: Float[Array, "*batch height width channels"], kind: Patches) -> Float[Array, "*batch T D"]:
    """Cut images into patches, row by row, each flattened in (row, column, channel) order.

    Source: Dosovitskiy et al. 2021, section 3.1.

    Raises:
      ValueError: images of another shape than `kind` gives.
    """
    expected = (kind.height, kind.width, kind.channels)
    if images.shape[-3:] != expected:
        raise ValueError(
            f"images have shape {images.shape}; expected [..., height, width, channels] with {expected} last"
        )
    batch, size = images.shape[:-3], kind.size
    rows, columns = kind.height // size, kind.width // size
    squares = images.reshape(*batch, rows, size, columns, size, kind.channels)
    return jnp.swapaxes(squares, -4, -3).reshape(*batch, rows * columns, size * size * kind.channels)
