"""Language modelling: predict each token of a text, a byte or a tokenizer's, from the tokens before it."""

import functools
from types import ModuleType
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from flaxformer.data.corpus import Corpus, count_model_losses, standard_library, text_files
from flaxformer.data.tokenizer import tokenizer
from flaxformer.struct import UserError, static
from flaxformer.tasks.base import Batch, Source, Task


class TokenTask(Task):
    """Windows of `length` tokens; training windows are random, evaluation windows are spread evenly and fixed."""

    is_abstract: ClassVar[bool] = True

    length: int = static(32, at_least=1)

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def unit(self) -> str:
        """Name of a token in messages."""
        return "tokens"

    def tokens(self) -> tuple[UInt[np.ndarray, "train_tokens"], UInt[np.ndarray, "validation_tokens"]]:
        """Both sides of the text as tokens."""
        raise NotImplementedError

    def checked_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """`tokens`, each side long enough for a window."""
        train, validation = self.tokens()
        for side, data in (("training", train), ("validation", validation)):
            if data.size <= self.length:
                expected = f"expected more than length {self.length}"
                raise UserError(f"{type(self).__name__}: the {side} text has {data.size} {self.unit}; {expected}")
        return train, validation

    def load(self) -> Source:
        train, validation = self.checked_tokens()
        return TextSource(jnp.asarray(train), jnp.asarray(validation), self)

    def references(self) -> dict[str, float]:
        evaluation = jax.device_get(self.load().evaluation())
        return count_model_losses(self.tokens()[0], evaluation.inputs, evaluation.targets, self.vocabulary)


class TextTask(TokenTask):
    """A text of files.

    tokenizer: the path of a tokenizer.json, which decides the vocabulary; None for bytes.
    """

    is_abstract: ClassVar[bool] = True

    tokenizer: str | None = static(None)

    @property
    def vocabulary(self) -> int:
        return tokenizer(self.tokenizer).vocabulary

    @property
    def unit(self) -> str:
        return "bytes" if self.tokenizer is None else "tokens"

    def corpus(self) -> Corpus:
        """The text itself."""
        raise NotImplementedError

    def tokens(self) -> tuple[UInt[np.ndarray, "train_tokens"], UInt[np.ndarray, "validation_tokens"]]:
        return tokenised(self.corpus(), self.tokenizer)

    def fingerprint(self) -> dict[str, Any]:
        found = self.corpus().fingerprint()
        if self.tokenizer is None:
            return found
        train, validation = self.tokens()
        counts = {"train_tokens": train.size, "validation_tokens": validation.size}
        return found | tokenizer(self.tokenizer).fingerprint | counts


@functools.cache
def tokenised(corpus: Corpus, path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of a corpus as the tokens of `tokenizer(path)`."""
    encode = tokenizer(path).encode
    return encode(corpus.train.tobytes()), encode(corpus.validation.tobytes())


class TextSource(Source):
    """Both sides of a text as tokens on the device; and where documents start, if windows keep them apart."""

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


WIDEST = 2**24
"""Places that one draw chooses from: `jax.random.randint` favours some of a range near 2^32, by its share of that."""


def random_starts(xp: ModuleType, key: Array, step: int | Int[Array, ""], task: TokenTask, size: int) -> Any:
    """Return the starts of the windows of a batch, [B], uniform over `size` tokens; of a long text, in two draws."""
    key, shape, last = jax.random.fold_in(key, step), (task.batch_size,), size - task.length
    stride = -(-last // WIDEST)
    starts = xp.asarray(jax.random.randint(key, shape, 0, last // stride))
    if stride == 1:
        return starts
    finer = xp.asarray(jax.random.randint(jax.random.fold_in(key, 1), shape, 0, stride))
    return starts.astype(int) * stride + finer


def evaluation_starts(xp: ModuleType, task: TokenTask, size: int) -> Any:
    """Return the starts of the windows of the evaluation set, [batches, B], spread evenly over `size` tokens."""
    shape = (task.evaluation_batches, task.batch_size)
    return xp.asarray(np.linspace(0, size - task.length - 1, np.prod(shape)).astype(int)).reshape(shape)


def windows(xp: ModuleType, text: Any, documents: Any, starts: Any, length: int) -> Batch:
    """The windows of a text that begin at `starts`, by NumPy or jax.numpy: the same numbers.

    With documents [n + 1], where each starts and the end, each token has the number of its document in the window and
    its place in it, counted from the window's start where the document began before; and what would be said across
    the end of a document is not scored.
    """
    offsets = xp.expand_dims(xp.arange(length + 1), tuple(range(starts.ndim)))
    places = starts[..., None] + offsets
    tokens = text[places].astype(xp.int32)
    inputs, targets = tokens[..., :-1], tokens[..., 1:]
    batch = Batch(inputs=inputs, targets=targets, weights=xp.ones(targets.shape, xp.float32))
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
    """The source code of the Python standard library, as installed on this machine: real text, nothing to download."""

    def corpus(self) -> Corpus:
        return standard_library()


class TextFiles(TextTask):
    """Your own text: a file is split at its end, a folder's files that match `pattern` by a hash of their names."""

    path: str = static()
    pattern: str = static("**/*.txt")
    validation_tenths: int = static(1, at_least=1, at_most=9)

    def corpus(self) -> Corpus:
        return text_files(self.path, self.pattern, self.validation_tenths)
