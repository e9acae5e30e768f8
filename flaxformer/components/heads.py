"""Heads: the output of a model (logits of tokens or classes, numbers, or the vectors themselves) and its loss."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.components.component import (
    Aux,
    Component,
    ComponentResult,
    Context,
    OwnWeights,
    is_more_derived,
    with_aux,
)
from flaxformer.components.norms import Norm
from flaxformer.core.params import Parameters, param, subtree
from flaxformer.core.pytree import Node
from flaxformer.core.struct import leaf, static
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.nn.losses import count_correct, cross_entropy, squared_error
from flaxformer.nn.pooling import POOLS, pool
from flaxformer.nn.widen import widen

LossSum = tuple[Float[Array, ""], Float[Array, ""]]
"""Loss as the sum over scored targets and their (weighted) count."""


class Transform(Parameters):
    """A linear map, an activation and a norm before the head's matrix (BERT)."""

    matrix: Float[Array, "d_model d_transform"] = param(fan_in="d_model")
    bias: Float[Array, "d_transform"] | None = param(init="zeros", decay=False, when="transform_bias")
    norm: Parameters = subtree(component="model.norm_kind")


class Head(Component):
    """Base of the heads.

    `apply` maps the final vectors to the output, `loss` compares the output with the targets, and `accuracy` counts the
    correct outputs. With `project` in place of `apply`, the loss can be computed from some of the tokens at a time.
    """

    is_abstract: ClassVar[bool] = True
    predicts: ClassVar[str | None] = None
    """Kind of the output: "tokens" (a logit per token of the vocabulary), "classes", "numbers", or None for no task."""
    loss_name: ClassVar[str | None] = "cross_entropy"
    """"cross_entropy" (nats), "squared_error", or another name for a custom loss; None for a head without a loss."""
    by_token: ClassVar[bool] = True
    """True if `loss`, `training_loss` and `accuracy` are sums over the targets, each read with its own output alone. A
    class that overrides one of them gives `by_token` again; without it, all outputs are computed at once."""

    @property
    def can_split(self) -> bool:
        """True if the loss can be computed from some of the tokens at a time: by `project`, and `by_token`."""
        kind, losses = type(self), ("loss", "training_loss", "accuracy")
        has_project = kind.project is not Head.project and not is_more_derived(kind, "apply", "project")
        return has_project and kind.by_token and not any(is_more_derived(kind, name, "by_token") for name in losses)

    @property
    def has_own_loss(self) -> bool:
        """True if a subclass overrides `loss` or `training_loss`."""
        return type(self).loss is not Head.loss or type(self).training_loss is not Head.training_loss

    @property
    def tied(self) -> bool:
        """True if the matrix of the head is the embedding table."""
        return False

    @property
    def pool(self) -> str:
        """Reduction of the tokens to one vector per sequence, from `POOLS`."""
        return "none"

    @property
    def has_accuracy(self) -> bool:
        """True if an output can be correct: with the cross-entropy, or if a subclass overrides `accuracy`."""
        return self.loss_name == "cross_entropy" or type(self).accuracy is not Head.accuracy

    def outputs(self, vocabulary: int) -> int:
        """Return the number of outputs per token, or per sequence if pooled."""
        raise NotImplementedError(f"{type(self).__name__} does not define `outputs`")

    def apply(
        self,
        weights: OwnWeights,
        x: Float[Array, "*batch T D"],
        table: Float[Array, "V D"] | None,
        context: Context,
        norm: Norm,
    ) -> ComponentResult:
        """Return the output, in float32 or wider, or the output and an `Aux`.

        Args:
          x: output of the final norm.
          table: embedding table, for a tied head.
          norm: `norm_kind` of the model.
        """
        features, aux = with_aux(self.features(weights, x, context, norm))
        return widen(self.project(weights, features, table if self.tied else None)), aux

    def features(
        self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context, norm: Norm
    ) -> ComponentResult:
        """Return the vectors that `project` reads, one per target; by default, x."""
        return x

    def project(
        self, weights: OwnWeights, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        """Return the output of each vector; no vector reads another. `apply` widens it to float32.

        Args:
          table: embedding table, if the head is `tied`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `apply`")

    def apply_with_aux(
        self, weights: Parameters | None, x: Array, table: Array | None, context: Context, norm: Norm
    ) -> tuple[Float[Array, "..."], "OutputProjection | None", Aux]:
        """Return the output of `apply`, its last step if it can be computed from some tokens, and the `Aux`."""
        if not self.can_split:
            output, aux = with_aux(self.apply(weights, x, table, context, norm))
            return output, None, aux
        features, aux = with_aux(self.features(weights, x, context, norm))
        projection = OutputProjection(self, weights, features, table if self.tied else None)
        return projection.outputs(features), projection, aux

    def loss(
        self, output: Array, targets: Array, weights: Array, label_smoothing: float | Array | None = None
    ) -> LossSum:
        """Return the loss as (sum over scored targets, their count).

        Args:
          weights: weight of each target; 0 for a target that is not scored.
        """
        if self.loss_name == "squared_error":
            return squared_error(output, targets, weights)
        return cross_entropy(output, targets, weights, label_smoothing=label_smoothing)

    def training_loss(
        self, output: Array, aux: Aux, targets: Array, weights: Array, label_smoothing: float | Array | None = None
    ) -> LossSum:
        """Return the loss of a training step, for a head that trains on more than the evaluated output.

        Args:
          aux: further outputs of the model; those of `apply` have names that begin with "head/".
        """
        return self.loss(output, targets, weights, label_smoothing)

    def accuracy(self, output: Array, targets: Array, weights: Array) -> LossSum | None:
        """Return the correct outputs as (sum, count); None if there is no such measure."""
        return count_correct(output, targets, weights) if self.loss_name == "cross_entropy" else None


class OutputProjection(Node):
    """Last step of a head, from features to outputs, for all tokens or for some of them."""

    head: Head
    weights: Parameters | None
    features: Float[Array, "*batch D"]
    table: Float[Array, "V D"] | None

    def outputs(self, features: Float[Array, "*batch D"]) -> Float[Array, "*batch outputs"]:
        """Return the outputs of some features, in float32 or wider."""
        return widen(self.project(features))

    def project(self, features: Float[Array, "*batch D"]) -> Float[Array, "*batch outputs"]:
        """Return the outputs of some features as `project` gives them, in its precision."""
        return self.head.project(self.weights, features, self.table)


class LinearHead(Head):
    """Base of the linear heads, x G + b per token or per sequence."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """Matrix G, absent if tied, and bias b."""

        matrix: Float[Array, "d_model outputs"] | None = param(fan_in="d_model", init="output", when="has_matrix")
        bias: Float[Array, "outputs"] | None = param(init="zeros", decay=False, when="bias")

    has_matrix = property(lambda self: not self.tied)

    @property
    def wide_logits(self) -> bool:
        """True if outputs have the precision of the product's sum, False if they are rounded to that of x and G."""
        return True

    @property
    def scale_exponent(self) -> float | Array | None:
        """Exponent of D^−scale_exponent, by which x is multiplied; None for no factor."""
        return None

    def features(
        self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context, norm: Norm
    ) -> ComponentResult:
        x = pool(x, self.pool, context.valid)
        if self.scale_exponent is None:
            return x
        return (x * jnp.exp2(-self.scale_exponent * jnp.log2(x.shape[-1]))).astype(x.dtype)

    def project(
        self, weights: OwnWeights, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        """Return x G + b of the features x; if tied, x Eᵀ + b with the embedding table E."""
        matrix = weights.matrix
        if matrix is None:
            if table is None:
                raise ValueError("head.tied is True; expected the embedding table to be given")
            matrix = table.T
        return linear(features, matrix, weights.bias, wide=self.wide_logits)


class LanguageModel(LinearHead):
    """Logits over the vocabulary: of the next token in a decoder, of a masked token in an encoder.

    tied: use the embedding table as the matrix.
    transform: activation of a transform before the matrix: a linear map of width D, the activation, and a norm (the
        masked-language-model head of BERT); None for no transform. transform_bias: its map has a bias.
    scale_exponent: multiply the logits by D^−scale_exponent (T5: ½); None for no factor.
    logit_cap: bound the logits z smoothly, cap · tanh(z / cap) (Gemma 2: 30); None for no bound.
    wide_logits: False rounds the logits to the precision of the run before the softmax, which is still computed in
        float32: with training.precision="bfloat16", they take half of the memory and its traffic. In float32
        it changes nothing.
    """

    class Weights(LinearHead.Weights):
        """Matrix, bias, and the transform before them."""

        transform: Transform | None = subtree(when="transform")

    predicts: ClassVar[str | None] = "tokens"
    tied: bool = static(False)
    bias: bool = static(False)
    transform: str | None = static(None, choices=ACTIVATIONS)
    transform_bias: bool = static(True, omit_default=True)
    scale_exponent: float | None = leaf(None)
    logit_cap: float | None = leaf(None, above=0, omit_default=True)
    wide_logits: bool = static(True, omit_default=True)

    def outputs(self, vocabulary: int) -> int:
        return vocabulary

    def features(
        self, weights: Weights, x: Float[Array, "*batch T D"], context: Context, norm: Norm
    ) -> ComponentResult:
        aux, transform = Aux(), weights.transform
        if transform is not None and self.transform is not None:
            hidden = ACTIVATIONS[self.transform](linear(x, transform.matrix, transform.bias))
            x, aux = with_aux(norm.apply(transform.norm, hidden, context))
        scaled, _ = with_aux(super().features(weights, x, context, norm))
        return scaled, aux.within("transform/norm")

    def project(
        self, weights: Weights, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        logits = super().project(weights, features, table)
        if self.logit_cap is None:
            return logits
        return (self.logit_cap * jnp.tanh(widen(logits) / self.logit_cap)).astype(logits.dtype)


class Classifier(LinearHead):
    """Logits over classes, per sequence or (pool="none") per token."""

    predicts: ClassVar[str | None] = "classes"
    classes: int = static(at_least=2)
    pool: str = static("mean", choices=POOLS)
    bias: bool = static(True)

    def outputs(self, vocabulary: int) -> int:
        return self.classes


class Regressor(LinearHead):
    """Numbers, per sequence or (pool="none") per token, trained by the squared error."""

    class Weights(LinearHead.Weights):
        """Matrix and bias."""

        matrix: Float[Array, "d_model outputs"] | None = param(fan_in="d_model", role="output")

    predicts: ClassVar[str | None] = "numbers"
    numbers: int = static(1, at_least=1)
    pool: str = static("none", choices=POOLS)
    bias: bool = static(True)
    loss_name: ClassVar[str | None] = "squared_error"

    def outputs(self, vocabulary: int) -> int:
        return self.numbers


class NoHead(Head):
    """Identity: the output is the final vectors, as of an encoder that another model reads."""

    loss_name: ClassVar[str | None] = None

    def outputs(self, vocabulary: int) -> int:
        return 0

    def apply(self, weights: Parameters | None, x: Array, table: Array | None, context: Context, norm: Norm) -> Array:
        return x


LanguageModel.named = {"tied": LanguageModel(tied=True)}
