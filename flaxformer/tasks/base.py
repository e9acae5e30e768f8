"""Bases of all tasks: a `Task` describes what a model learns; its `Source` holds the data and makes batches."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.core.struct import Config, static
from flaxformer.tasks.batch import Source
from flaxformer.tasks.overlap import SAMPLE, Overlap, count_overlap

BITS_PER_BYTE = "bits_per_byte"
"""Name of the score of a text that does not depend on its tokens."""


def loss_metrics(has_accuracy: bool) -> tuple[str, ...]:
    """Return the names of the scores that every evaluation has, for a head with or without an accuracy."""
    return ("loss", "accuracy") if has_accuracy else ("loss",)


class Task(Config):
    """Base of every task, with the fields that all tasks share.

    Runs of a group, which differ only in leaves, share one `Source`: the data depend on static fields alone. A task
    whose batches depend on leaves too, such as the weights of a mixture, has a source that defines `with_numbers`.

    evaluation_batches: number of batches of the evaluation set.
    evaluation_batch_size: examples per batch of the evaluation set; None for `batch_size`. A study with an axis over
      task.batch_size sets it to the batch size of the baseline, so that all arms are evaluated on the same examples.
    """

    is_abstract: ClassVar[bool] = True

    batch_size: int = static(16, at_least=1)
    evaluation_batches: int = static(16, at_least=1)
    evaluation_batch_size: int | None = static(None, at_least=1, omit_default=True)

    targets_in_inputs: ClassVar[bool] = True
    """True if targets are among the later inputs, where a bidirectional model could read them."""

    @property
    def evaluation_shape(self) -> tuple[int, int]:
        """Number of batches of the evaluation set, and examples per batch."""
        return self.evaluation_batches, self.evaluation_batch_size or self.batch_size

    @property
    def vocabulary(self) -> int:
        """Number of token ids; 0 for a task without tokens."""
        raise NotImplementedError(f"{type(self).__name__} does not define `vocabulary`")

    @property
    def sequence_length(self) -> int:
        """T, the number of tokens in a sequence that the model (with an encoder, the decoder) reads."""
        raise NotImplementedError(f"{type(self).__name__} does not define `sequence_length`")

    @property
    def source_length(self) -> int:
        """S, the number of tokens that an encoder reads; 0 for a task without a source."""
        return 0

    @property
    def packs_documents(self) -> bool:
        """True if a sequence may hold several documents with separate attention (`Batch.segments`)."""
        return False

    def tokens_read(self, model: ModelConfig) -> int:
        """Return the number of tokens per example that a model reads, including its encoder."""
        return self.sequence_length + self.source_length

    def tokens_per_batch(self, model: ModelConfig) -> int:
        """Return the number of tokens per training batch that a model reads, including padding."""
        return self.batch_size * self.tokens_read(model)

    def metrics(self, has_accuracy: bool) -> tuple[str, ...]:
        """Return the names of the scores of an evaluation, without standard errors.

        Args:
          has_accuracy: whether the model's head has an accuracy.
        """
        return loss_metrics(has_accuracy)

    @property
    def bits_per_nat(self) -> float | None:
        """Bits per byte of text at a loss of one nat per token; None if evaluations do not give bits per byte."""
        return None

    def evaluation_text(self) -> str:
        """Return a digest of the text that evaluations read, whatever its tokens; only for tasks with bits per byte."""
        raise NotImplementedError(f"{type(self).__name__} does not define `evaluation_text`")

    def evaluation_parts(self) -> "dict[str, Task]":
        """Return the tasks whose evaluation sets, one after another, are this task's, by name; empty for a single one.

        Each part has columns of its own in the results, NAME_loss and so on.
        """
        return {}

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        """Yield the reasons for which a model cannot learn this task.

        This definition is for language modelling; other tasks override it.
        """
        yield from next_token_problems(model, self.vocabulary)
        if self.targets_in_inputs and model.mask_pattern == "bidirectional":
            yield 'model.mask_pattern is "bidirectional"; expected "causal" or "prefix": the inputs contain the targets'
        if self.packs_documents:
            for path, mixer in model.mixers_without_mask.items():
                kind = type(mixer).__name__
                yield f"model.{path} is {kind}, which reads no mask; expected a mixer that can separate documents"
        yield from self.length_problems(model)
        yield from self.source_problems(model)

    def length_problems(self, model: ModelConfig) -> Iterator[str]:
        """Yield a message if the sequences are too long for a model."""
        yield from model_length_problems(model, self.sequence_length)

    def source_problems(self, model: ModelConfig) -> Iterator[str]:
        """Yield the reasons for which a model cannot read the task's source, or needs one that the task lacks."""
        encoder = model.encoder
        if model.reads_memory and encoder is None:
            yield f"model.d_memory is {model.d_memory}; expected None, since no task has a memory"
        if encoder is not None and not self.source_length:
            form = getattr(self, "form", None)
            hint = "" if form is None else f' with form "{form}"; form="paired" has one'
            yield f"model.encoder is given; expected None, since the task has no source{hint}"
        if encoder is None and self.source_length:
            yield "model.encoder is None; expected one, as model.with_encoder() makes, to read the task's source"
        if encoder is not None and self.source_length:
            yield from token_problems("model.encoder", encoder, self.vocabulary)
            yield from _length_problems("model.encoder", encoder, self.source_length)

    def load(self) -> Source:
        """Read the data and return them, usually on the device.

        Raises:
          UserError: the data are missing or invalid.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `load`")

    def fingerprint(self) -> dict[str, object]:
        """Return digests and counts that identify the data on this machine, beyond the task's fields."""
        return {}

    def overlap(self, sample: int = SAMPLE) -> Overlap:
        """Return the number of evaluation examples, and of those that also occur in training.

        Examples are equal if the model reads the same and the same targets are scored. They are compared with all
        training examples if the source has a table of them (`Source.training_examples`), else with drawn ones.

        Args:
          sample: number of training examples to draw.
        """
        return count_overlap(self.load(), sample)

    def training_tokens(self, tokenizer: str | None) -> "list[np.ndarray]":
        """Return the training texts as tokens of a tokenizer; empty if the task has none in these tokens."""
        return []

    def notes(self) -> list[str]:
        """Return sentences on the data: sizes, split, what is cut or repeated, and the score of a constant answer."""
        return []

    def preview(self, rows: int = 3) -> list[str]:
        """Return a line per training example, of some, as a model reads it; empty for a task that draws them."""
        return []

    @property
    def ceiling(self) -> float | None:
        """Expected accuracy of a perfect solver; None if unknown.

        It is below 1 where the inputs do not determine every scored target. With numbers as targets, it is the least
        expected squared error.
        """
        return None

    @property
    def chance(self) -> float | None:
        """Expected accuracy of a uniform guess among the tokens that can stand where a target stands; None if unknown.

        With numbers as targets, it is the expected squared error of the best constant.
        """
        return None

    def references(self) -> dict[str, float]:
        """Return losses of simple models on the evaluation set, for comparison (nats per token, or squared error)."""
        return {}


def next_token_problems(model: ModelConfig, vocabulary: int) -> Iterator[str]:
    """Yield a message if a model does not read or predict the tokens of a vocabulary."""
    yield from token_problems("model", model, vocabulary)
    if model.head.predicts != "tokens":
        yield f"model.head is {model.head}; expected LanguageModel(), since the task's targets are tokens"


def model_length_problems(model: ModelConfig, length: int) -> Iterator[str]:
    """Yield a message if sequences are too long for a model."""
    yield from _length_problems("model", model, length)


def token_problems(where: str, model: ModelConfig, vocabulary: int) -> Iterator[str]:
    """Yield a message if a model, called `where`, does not read the tokens of a vocabulary."""
    if model.inputs.reads != "tokens":
        yield f"{where}.inputs is {model.inputs}; expected Tokens(), since the task's inputs are tokens"
    if model.vocabulary < vocabulary:
        yield f"{where}.vocabulary is {model.vocabulary}; expected at least the task's {vocabulary} tokens"


def _length_problems(where: str, model: ModelConfig, length: int) -> Iterator[str]:
    if model.max_length is not None and model.max_length < length:
        yield f"{where}.positions.max_length is {model.max_length}; expected at least the task's {length} tokens"
