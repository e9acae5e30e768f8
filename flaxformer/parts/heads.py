"""Heads: the answer of a model (the next token, a class, numbers, or the vectors themselves), and its loss."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.component import Aux, Component, Context, with_aux
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.nn.losses import correct, cross_entropy, squared_error
from flaxformer.params import Parameters, param, subtree
from flaxformer.parts.norms import Norm
from flaxformer.struct import leaf, static

LossSum = tuple[Float[Array, ""], Float[Array, ""]]
"""A loss as the sum over scored targets and their count."""


class Transform(Parameters):
    """A linear map, an activation and a norm before the head's matrix (BERT)."""

    matrix: Float[Array, "d_model d_transform"] = param(fan_in="d_model")
    bias: Float[Array, "d_transform"] = param(init="zeros", decay=False)
    norm: Any = subtree(component="model.norm_kind")


class Head(Component):
    """Base of the heads.

    `apply` maps the vectors of the last block to the answer; `loss` compares the answer with the targets, and
    `accuracy` counts the right ones, where there is such a thing.
    """

    is_abstract: ClassVar[bool] = True
    tied: ClassVar[bool] = False
    """True if the head's matrix is the embedding table."""
    pool: ClassVar[str] = "none"
    predicts: ClassVar[str | None] = None
    """Kind of the answer: "tokens" (a logit for each of the vocabulary), "classes", "numbers", or None for no task."""
    loss_name: ClassVar[str | None] = "cross_entropy"
    """"cross_entropy" (nats), "squared_error", or another name for a loss of one's own; None is never trained."""

    @property
    def has_accuracy(self) -> bool:
        """True if an answer is right or wrong: with the cross-entropy, or where `accuracy` is a head's own."""
        return self.loss_name == "cross_entropy" or type(self).accuracy is not Head.accuracy

    def outputs(self, vocabulary: int) -> int:
        """Numbers for each token, or for each sequence when pooled."""
        raise NotImplementedError(f"{type(self).__name__} does not define `outputs`")

    def apply(
        self,
        weights: Any,
        x: Float[Array, "*batch T D"],
        table: Float[Array, "V D"] | None,
        context: Context,
        norm: Norm,
    ) -> Any:
        """The answer, in float32 or wider; or the answer and an `Aux`.

        Args:
          table: the embedding table, for a tied head.
          norm: the model's `norm_kind`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")

    def answer(
        self, weights: Any, x: Array, table: Array | None, context: Context, norm: Norm
    ) -> tuple[Float[Array, "..."], Aux]:
        """`apply`, with an `Aux` in any case."""
        return with_aux(self.apply(weights, x, table, context, norm))

    def loss(
        self, output: Array, targets: Array, weights: Array, label_smoothing: float | Array | None = None
    ) -> LossSum:
        """The loss as (sum over scored targets, their count); `weights` is how much each target counts."""
        if self.loss_name == "squared_error":
            return squared_error(output, targets, weights)
        return cross_entropy(output, targets, weights, label_smoothing=label_smoothing)

    def training_loss(
        self, output: Array, aux: Aux, targets: Array, weights: Array, label_smoothing: float | Array | None = None
    ) -> LossSum:
        """`loss` of a training step, where a head trains on more than the output that is evaluated.

        `aux` has what `apply` gave beside the output, its names after "head/".
        """
        return self.loss(output, targets, weights, label_smoothing)

    def accuracy(self, output: Array, targets: Array, weights: Array) -> LossSum | None:
        """The right answers as (sum, count); None where an answer is not right or wrong."""
        return correct(output, targets, weights) if self.loss_name == "cross_entropy" else None


class LinearHead(Head):
    """Base of the heads that are a matrix, and a bias, of every token or of one vector per sequence."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """A matrix, unless it is the embedding table, and a bias."""

        matrix: Float[Array, "d_model outputs"] | None = param(fan_in="d_model", init="output", when="has_matrix")
        bias: Float[Array, "outputs"] | None = param(init="zeros", decay=False, when="bias")

    scale_exponent: ClassVar[Any] = None
    has_matrix = property(lambda self: not self.tied)

    def apply(
        self,
        weights: Any,
        x: Float[Array, "*batch T D"],
        table: Float[Array, "V D"] | None,
        context: Context,
        norm: Norm,
    ) -> Any:
        """x G + b; x Eᵀ when tied."""
        x = pool(x, self.pool, context.valid)
        if self.scale_exponent is not None:
            x = (x * jnp.exp2(-self.scale_exponent * jnp.log2(x.shape[-1]))).astype(x.dtype)
        matrix = table.T if weights.matrix is None else weights.matrix  # type: ignore[union-attr]
        return linear(x, matrix, weights.bias, wide=True)


class LanguageModel(LinearHead):
    """A logit for every token of the vocabulary: the next token of a decoder, the masked token of an encoder.

    tied: the matrix is the embedding table, one leaf used twice.
    transform: a linear map of width D, this activation and a norm come first (BERT's masked-language-model head).
    scale_exponent: the logits are multiplied by D^−scale_exponent (T5: ½); None for not at all.
    """

    class Weights(LinearHead.Weights):
        """A transform before the matrix."""

        transform: Transform | None = subtree(when="transform")

    predicts: ClassVar[str | None] = "tokens"
    tied: bool = static(False)  # type: ignore[misc]
    bias: bool = static(False)
    transform: str | None = static(None, choices=ACTIVATIONS)
    scale_exponent: float | None = leaf(None)  # type: ignore[misc]

    def outputs(self, vocabulary: int) -> int:
        return vocabulary

    def apply(
        self,
        weights: Any,
        x: Float[Array, "*batch T D"],
        table: Float[Array, "V D"] | None,
        context: Context,
        norm: Norm,
    ) -> Any:
        aux = Aux()
        if self.transform is not None:
            own = weights.transform
            hidden = ACTIVATIONS[self.transform](linear(x, own.matrix, own.bias))
            x, aux = with_aux(norm.apply(own.norm, hidden, context))
        return super().apply(weights, x, table, context, norm), aux.within("transform/norm")


POOLS = ("mean", "first", "last", "none")
"""One vector per sequence: the mean of its tokens, its first or its last; or none, an answer for every token."""


class Classifier(LinearHead):
    """A logit for every class, of the whole sequence or (pool="none") of each token."""

    predicts: ClassVar[str | None] = "classes"
    classes: int = static(at_least=2)
    pool: str = static("mean", choices=POOLS)  # type: ignore[misc]
    bias: bool = static(True)

    def outputs(self, vocabulary: int) -> int:
        return self.classes


class Regressor(LinearHead):
    """Numbers, of the whole sequence or (pool="none") of each token, trained by their squared error."""

    class Weights(LinearHead.Weights):
        """A matrix and a bias."""

        matrix: Float[Array, "d_model outputs"] | None = param(fan_in="d_model")

    predicts: ClassVar[str | None] = "numbers"
    numbers: int = static(1, at_least=1)
    pool: str = static("none", choices=POOLS)  # type: ignore[misc]
    bias: bool = static(True)
    loss_name: ClassVar[str | None] = "squared_error"

    def outputs(self, vocabulary: int) -> int:
        return self.numbers


class NoHead(Head):
    """The vectors themselves: an encoder whose output another model reads."""

    loss_name: ClassVar[str | None] = None

    def outputs(self, vocabulary: int) -> int:
        return 0

    def apply(self, weights: Any, x: Array, table: Array | None, context: Context, norm: Norm) -> Array:
        return x


LanguageModel.named = {"tied": LanguageModel(tied=True)}


def pool(x: Float[Array, "*batch T D"], kind: str, valid: Bool[Array, "*batch T"] | None) -> Float[Array, "..."]:
    """One vector of a sequence's tokens: their mean, the first, the last; padding does not count. "none" keeps all."""
    if kind == "none":
        return x
    if valid is None:
        return {"mean": x.mean(-2), "first": x[..., 0, :], "last": x[..., -1, :]}[kind]
    real = jnp.where(valid[..., None], x, 0)
    if kind == "mean":
        return real.sum(-2) / jnp.maximum(valid.sum(-1), 1)[..., None]
    length = valid.shape[-1]
    place = valid.argmax(-1) if kind == "first" else length - 1 - valid[..., ::-1].argmax(-1)
    return jnp.take_along_axis(real, place[..., None, None], axis=-2)[..., 0, :]
