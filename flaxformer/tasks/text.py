"""Language modelling: predict each token of a text, a byte or a tokenizer's, from the tokens before it."""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from flaxformer.struct import UserError, static
from flaxformer.tasks.base import Batch, Source, Task
from flaxformer.tasks.corpus import Corpus, count_model_losses, standard_library, text_files
from flaxformer.tasks.tokenizer import tokenizer


class TextTask(Task):
    """Windows of `length` tokens; training windows are random, evaluation windows are spread evenly and fixed.

    tokenizer: the path of a tokenizer.json, which decides the vocabulary; None for bytes.
    """

    length: int = static(32, at_least=1)
    tokenizer: str | None = static(None)

    @property
    def vocabulary(self) -> int:
        return tokenizer(self.tokenizer).vocabulary

    @property
    def sequence_length(self) -> int:
        return self.length

    def corpus(self) -> Corpus:
        """The text itself."""
        raise NotImplementedError

    def tokens(self) -> tuple[UInt[np.ndarray, "train_tokens"], UInt[np.ndarray, "validation_tokens"]]:
        """Both sides of the text as tokens."""
        return tokenised(self.corpus(), self.tokenizer)

    def load(self) -> "TextSource":
        train, validation = self.tokens()
        unit = "bytes" if self.tokenizer is None else "tokens"
        for side, data in (("training", train), ("validation", validation)):
            if data.size <= self.length:
                expected = f"expected more than length {self.length}"
                raise UserError(f"{type(self).__name__}: the {side} text has {data.size} {unit}; {expected}")
        return TextSource(jnp.asarray(train), jnp.asarray(validation), self)

    def fingerprint(self) -> dict[str, Any]:
        found = self.corpus().fingerprint()
        if self.tokenizer is None:
            return found
        train, validation = self.tokens()
        counts = {"train_tokens": train.size, "validation_tokens": validation.size}
        return found | tokenizer(self.tokenizer).fingerprint | counts

    def references(self) -> dict[str, float]:
        evaluation = jax.device_get(self.load().evaluation())
        return count_model_losses(self.tokens()[0], evaluation.inputs, evaluation.targets, self.vocabulary)


@functools.cache
def tokenised(corpus: Corpus, path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of a corpus as the tokens of `tokenizer(path)`."""
    encode = tokenizer(path).encode
    return encode(corpus.train.tobytes()), encode(corpus.validation.tobytes())


class TextSource(Source):
    """Both sides of a text as tokens on the device."""

    train: UInt[Array, "train_tokens"]
    validation: UInt[Array, "validation_tokens"]
    task: TextTask = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        last = self.train.size - self.task.length
        starts = jax.random.randint(jax.random.fold_in(key, step), (self.task.batch_size,), 0, last)
        return self._windows(self.train, starts)

    def evaluation(self) -> Batch:
        shape = (self.task.evaluation_batches, self.task.batch_size)
        last = self.validation.size - self.task.length - 1
        return self._windows(
            self.validation, jnp.asarray(np.linspace(0, last, np.prod(shape)).astype(int)).reshape(shape)
        )

    def _windows(self, text: Array, starts: Int[Array, "*batch"]) -> Batch:
        places = jnp.expand_dims(jnp.arange(self.task.length + 1), range(starts.ndim))
        tokens = text[starts[..., None] + places].astype(jnp.int32)
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        return Batch(inputs=inputs, targets=targets, weights=jnp.ones(targets.shape, jnp.float32))


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
