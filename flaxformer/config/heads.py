"""What a model says: the next token, a class, numbers, or the vectors themselves."""

from typing import ClassVar

from flaxformer.struct import Config, leaf, static


class Head(Config):
    """Base of the heads."""

    tied: ClassVar[bool] = False
    bias: ClassVar[bool] = False
    transform: ClassVar[bool] = False
    pool: ClassVar[str] = "none"
    scale_exponent: ClassVar[float | None] = None
    loss: ClassVar[str | None] = "cross_entropy"
    """The loss that trains it, by name; None for a model that another reads."""
    has_matrix: ClassVar[bool] = True

    def outputs(self, vocabulary: int) -> int:
        """Numbers for each token, or for each sequence when pooled."""
        raise NotImplementedError


class LanguageModel(Head):
    """A logit for every token of the vocabulary: the next token of a decoder, the masked token of an encoder.

    tied: the matrix is the embedding table, one leaf used twice.
    transform: a linear map of width D, the activation and a norm come first (BERT's masked-language-model head).
    scale_exponent: the logits are multiplied by D^−scale_exponent (T5: ½); None for not at all.
    """

    tied: bool = static(False)  # type: ignore[misc]
    bias: bool = static(False)  # type: ignore[misc]
    transform: bool = static(False)  # type: ignore[misc]
    scale_exponent: float | None = leaf(None)  # type: ignore[misc]

    has_matrix = property(lambda self: not self.tied)

    def outputs(self, vocabulary: int) -> int:
        return vocabulary


POOLS = ("mean", "first", "last", "none")
"""One vector a sequence: the mean of its tokens, its first or its last; or none, an answer for every token."""


class Classifier(Head):
    """A logit for every class, of the whole sequence or (pool="none") of each token."""

    classes: int = static(at_least=2)
    pool: str = static("mean", choices=POOLS)  # type: ignore[misc]
    bias: bool = static(True)  # type: ignore[misc]

    def outputs(self, vocabulary: int) -> int:
        return self.classes


class Regressor(Head):
    """Numbers, of the whole sequence or (pool="none") of each token, trained by their squared error."""

    numbers: int = static(1, at_least=1)
    pool: str = static("none", choices=POOLS)  # type: ignore[misc]
    bias: bool = static(True)  # type: ignore[misc]
    loss: ClassVar[str | None] = "squared_error"

    def outputs(self, vocabulary: int) -> int:
        return self.numbers


class NoHead(Head):
    """The vectors themselves: an encoder whose output another model reads."""

    loss: ClassVar[str | None] = None
    has_matrix: ClassVar[bool] = False

    def outputs(self, vocabulary: int) -> int:
        return 0
