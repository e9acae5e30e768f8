"""Language modelling: predict each token of a text, a byte or a tokenizer's token, from the tokens before it."""

import hashlib
import math
from types import ModuleType
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from flaxformer.core.struct import static
from flaxformer.data.corpus import Corpus, count_model_losses, read_text_files, standard_library
from flaxformer.data.token_files import TextSize
from flaxformer.data.tokenizer import check_restored, read_tokenizer
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.tasks.base import BITS_PER_BYTE, Task
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.examples import scale_weights
from flaxformer.tasks.overlap import SAMPLE, Overlap, windows_in_text

COUNTED = 2**24
"""Number of training tokens, from the start of the text, that evaluation windows are compared with and the reference
models are fitted to."""


class TokenTask(Task):
    """Base of language modelling on windows of `length` tokens: random ones in training, evenly spaced ones else.

    bits_per_byte: evaluations also give the loss in bits per byte of text, (loss / ln 2) · tokens / bytes of the
      validation text (Gao et al. 2020, "The Pile", arXiv:2101.00027, section 3.1), which compares tokenizers.
    """

    is_abstract: ClassVar[bool] = True

    length: int = static(32, at_least=1)
    bits_per_byte: bool = static(False, omit_default=True)

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def unit(self) -> str:
        """Name of a token in messages."""
        return "tokens"

    def tokens(self) -> tuple[UInt[np.ndarray, "train_tokens"], UInt[np.ndarray, "validation_tokens"]]:
        """Return the tokens of the training text and of the validation text."""
        raise NotImplementedError

    def validation_text(self) -> TextSize:
        """Return the size and the digest of the validation text, in bytes.

        Raises:
          UserError: the text is not known, or its tokens do not restore it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `validation_text`")

    def metrics(self, has_accuracy: bool) -> tuple[str, ...]:
        return (*super().metrics(has_accuracy), *((BITS_PER_BYTE,) if self.bits_per_byte else ()))

    @property
    def bits_per_nat(self) -> float | None:
        return self.tokens()[1].size / (self.validation_text()["bytes"] * math.log(2)) if self.bits_per_byte else None

    def evaluation_text(self) -> str:
        """Return a digest of the validation text and of the number and length of the windows."""
        content = self.validation_text()["sha256"], math.prod(self.evaluation_shape), self.length
        return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()

    def checked_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `tokens()`.

        Raises:
          UserError: a text is shorter than a window.
        """
        train, validation = self.tokens()
        for side, data in (("training", train), ("validation", validation)):
            if data.size <= self.length:
                expected = f"expected more than length {self.length}"
                raise UserError(f"{type(self).__name__}: the {side} text has {data.size} {self.unit}; {expected}")
        return train, validation

    def load(self) -> Source:
        train, validation = self.checked_tokens()
        return TextSource(jnp.asarray(train), jnp.asarray(validation), self)

    def overlap(self, sample: int = SAMPLE) -> Overlap:
        """Return the number of evaluation windows, and of those whose tokens follow each other in the training text.

        Of a longer training text, the first 2²⁴ tokens are compared.
        """
        train, validation = self.checked_tokens()
        starts = evaluation_starts(np, self, validation.size).reshape(-1, 1)
        is_in_training = windows_in_text(np.asarray(validation)[starts + np.arange(self.length + 1)], train[:COUNTED])
        return Overlap(
            len(is_in_training), int(is_in_training.sum()), min(train.size, COUNTED) if train.size > COUNTED else None
        )

    def notes(self) -> list[str]:
        size, count = self.checked_tokens()[1].size, math.prod(self.evaluation_shape)
        apart = (size - 1) // self.length
        overlapping = (
            f"The {count:,} evaluation windows overlap: a validation text of {size:,} {self.unit} has {apart:,} of "
            f"{self.length:,} targets that share none, so that standard errors over windows are too small."
        )
        return [*super().notes(), *([overlapping] if count > apart else [])]

    def training_tokens(self, tokenizer: str | None) -> list[np.ndarray]:
        """Return the first 2²⁴ training tokens; none if they are those of another tokenizer."""
        return [self.checked_tokens()[0][:COUNTED]] if getattr(self, "tokenizer", None) == tokenizer else []

    def references(self) -> dict[str, float]:
        evaluation = jax.device_get(self.load().evaluation())
        return count_model_losses(self.tokens()[0], evaluation.inputs, evaluation.targets, self.vocabulary)


class TextTask(TokenTask):
    """Base of language modelling on the text of files.

    tokenizer: the path of a tokenizer.json, which determines the vocabulary; None for bytes.
    training_size: number of tokens at the start of the training text that are used; None for all of them.
    """

    is_abstract: ClassVar[bool] = True

    tokenizer: str | None = static(None)
    training_size: int | None = static(None, at_least=2, omit_default=True)

    @property
    def vocabulary(self) -> int:
        return read_tokenizer(self.tokenizer).vocabulary

    @property
    def unit(self) -> str:
        return "bytes" if self.tokenizer is None else "tokens"

    def corpus(self) -> Corpus:
        """Return the text."""
        raise NotImplementedError

    def tokens(self) -> tuple[UInt[np.ndarray, "train_tokens"], UInt[np.ndarray, "validation_tokens"]]:
        train, validation = tokenise(self.corpus(), self.tokenizer)
        if self.training_size is not None and self.training_size > train.size:
            raise UserError(
                f"task.training_size is {self.training_size:,}; expected at most {train.size:,}, the {self.unit} of "
                "the training text"
            )
        return train[: self.training_size], validation

    def validation_text(self) -> TextSize:
        return _validation_text(self.corpus(), self.tokenizer)

    def fingerprint(self) -> dict[str, object]:
        fingerprint = self.corpus().fingerprint()
        if self.tokenizer is None:
            return fingerprint
        train, validation = self.tokens()
        counts = {"train_tokens": train.size, "validation_tokens": validation.size}
        return fingerprint | read_tokenizer(self.tokenizer).fingerprint | counts


@remembered
def tokenise(corpus: Corpus, path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides of a corpus as tokens of `read_tokenizer(path)`."""
    encode = read_tokenizer(path).encode
    return encode(corpus.train.tobytes()), encode(corpus.validation.tobytes())


@remembered
def _validation_text(corpus: Corpus, path: str | None) -> TextSize:
    """Return the size and the digest of the validation side of a corpus, which a tokenizer restores."""
    sha256 = hashlib.sha256(corpus.validation.tobytes()).hexdigest()
    check_restored(read_tokenizer(path), [tokenise(corpus, path)[1]], sha256, str(path))
    return {"bytes": corpus.validation.size, "sha256": sha256}


class TextSource(Source):
    """Tokens of both sides of a text on the device, and the starts of documents, if windows separate them."""

    train: UInt[Array, "train_tokens"]
    validation: UInt[Array, "validation_tokens"]
    task: TokenTask = flax.struct.field(pytree_node=False)
    train_documents: Int[Array, "documents_and_end"] | None = None
    validation_documents: Int[Array, "documents_and_end"] | None = None

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        starts = random_starts(jnp, key, step, self.task, self.train.size)
        return windows(jnp, self.train, self.train_documents, starts, self.task.length)

    def evaluation(self) -> Batch:
        starts = evaluation_starts(jnp, self.task, self.validation.size)
        return windows(jnp, self.validation, self.validation_documents, starts, self.task.length)

    def test(self) -> Batch | None:
        """Return windows of the validation text between those of the evaluation set; None if there is no room."""
        return test_windows(jnp, self.validation, self.validation_documents, self.task)


WIDEST = 2**24
"""Largest range of one draw: `jax.random.randint` is biased by about range / 2³²."""


def random_starts(
    xp: ModuleType, key: Array, step: int | Int[Array, ""], task: TokenTask, size: int
) -> Int[Array, "*batch"] | Int[np.ndarray, "*batch"]:
    """Return the starts of a batch's windows, uniform over a text of `size` tokens; in two draws if it is long.

    `xp` is numpy or jax.numpy, here and below.
    """
    key, shape, last = jax.random.fold_in(key, step), (task.batch_size,), size - task.length
    stride = -(-last // WIDEST)
    starts = xp.asarray(jax.random.randint(key, shape, 0, last // stride))
    if stride == 1:
        return starts
    finer = xp.asarray(jax.random.randint(jax.random.fold_in(key, 1), shape, 0, stride))
    return starts.astype(int) * stride + finer


def evaluation_starts(xp: ModuleType, task: TokenTask, size: int) -> Int[Array, "*batch"] | Int[np.ndarray, "*batch"]:
    """Return the starts of the evaluation set's windows, evenly spaced in a text of `size` tokens."""
    shape = task.evaluation_shape
    return xp.asarray(np.linspace(0, size - task.length - 1, np.prod(shape)).astype(int)).reshape(shape)


def test_windows(
    xp: ModuleType, text: Array | np.ndarray, documents: Array | np.ndarray | None, task: TokenTask
) -> Batch | None:
    """Return the test set: windows of a validation text that share no token with those of the evaluation set.

    Each begins half-way between two windows of the evaluation set. One that does not fit between them has weight 0.
    """
    before = evaluation_starts(np, task, text.size).reshape(-1)
    after = np.append(before[1:], text.size)
    starts = np.minimum((before + after) // 2, text.size - task.length - 1)
    is_apart = (starts - before > task.length) & (after - starts > task.length)
    if not is_apart.any():
        return None
    batch = windows(xp, text, documents, xp.asarray(starts.reshape(task.evaluation_shape)), task.length)
    return scale_weights(batch, is_apart.reshape(task.evaluation_shape).astype(np.float32))


def windows(
    xp: ModuleType,
    text: Array | np.ndarray,
    documents: Array | np.ndarray | None,
    starts: Array | np.ndarray,
    length: int,
) -> Batch:
    """Return the windows of a text that begin at `starts`, equal for NumPy and jax.numpy.

    Args:
      text: tokens.
      documents: the starts of all documents, and the end of the text. If given, the batch has the index of each token's
        document in its window, and its position in it (or in the window, if the document began before it), and the
        first token of a document is not scored.
      starts: [*batch].
      length: tokens per window.
    """
    offsets = xp.expand_dims(xp.arange(length + 1), tuple(range(starts.ndim)))
    places = starts[..., None] + offsets
    tokens = text[places].astype(xp.int32)
    inputs, targets = tokens[..., :-1], tokens[..., 1:]
    batch = Batch(inputs=inputs, targets=targets, weights=xp.broadcast_to(xp.float32(1), targets.shape))
    if documents is None:
        return batch
    document = xp.searchsorted(documents, places, side="right") - 1
    begun = xp.maximum(documents[document], starts[..., None])
    within = document[..., :-1] == document[..., 1:]
    return batch.replace(
        weights=within.astype(xp.float32),
        segments=(document - document[..., :1])[..., :-1].astype(xp.int32),
        positions=(places - begun)[..., :-1].astype(xp.int32),
    )


class StandardLibrary(TextTask):
    """Language modelling on the source code of the installed Python standard library; no download."""

    def corpus(self) -> Corpus:
        return standard_library()


class TextFiles(TextTask):
    """Language modelling on your own text, a file or the files in a folder that match `pattern`.

    With a tokenizer, files are UTF-8; without one, tokens are bytes, of whatever encoding.

    The end of a file becomes the validation text; files of a folder are split by a hash of their names. Files that end
    in .gz, .bz2, .xz or .zst are decompressed; `pattern` matches their names without this suffix.
    """

    path: str = static()
    pattern: str = static("**/*.txt")
    validation_tenths: int = static(1, at_least=1, at_most=9)

    def corpus(self) -> Corpus:
        return read_text_files(
            self.path, self.pattern, self.validation_tenths, is_text=read_tokenizer(self.tokenizer).is_text
        )
